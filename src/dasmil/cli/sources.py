"""Where training bags come from: arguments of the command line become sets of bags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dasmil.cli.cohort_arguments import BagArguments
    from dasmil.data.cohort import Cohort
    from dasmil.types import Bag


@dataclass(frozen=True)
class Splits:
    """One round of training: its bags, and what the run notes about their origin."""

    train: Sequence[Bag]
    val: Sequence[Bag] | None
    tests: Mapping[str, Sequence[Bag]]
    data: dict[str, Any] = field(default_factory=dict)
    counted: bool = False
    """Whether reading the tests opens a locked test set, which is noted."""


@dataclass(frozen=True)
class Source:
    """Rounds of training (one, or one per fold), and the model preset that fits this data."""

    rounds: Callable[[], list[Splits]]
    preset: str | None = None


def built_in(name: str, protocol: str, mnist_dir: Path | None) -> Source:
    """A built-in data set; its test sets are those of the protocol."""
    from dasmil.data import list_datasets
    from dasmil.errors import unknown_name

    if name not in list_datasets():
        raise unknown_name("data set", name, list_datasets())

    def rounds() -> list[Splits]:
        load = lambda split: built_in_split(name, protocol, split, mnist_dir)  # noqa: E731
        held_out = ["test", "test-large"] if protocol == "clean" else ["test"]
        val = load("val") if protocol == "clean" else None
        origin = {"name": name, "protocol": protocol}
        return [Splits(load("train"), val, {split: load(split) for split in held_out}, origin)]

    return Source(rounds, preset="mnist-collage")


def built_in_split(name: str, protocol: str, split: str, mnist_dir: Path | None) -> Sequence[Bag]:
    """The bags of one split of a built-in data set."""
    from dasmil.data import load_dataset

    options = {} if mnist_dir is None else {"mnist_dir": mnist_dir}
    return load_dataset(name, protocol=protocol, split=split, **options)


def _built_in_set(protocol: str, split: str) -> tuple[str, str]:
    """Where the bags of a run's set are: validation and test-large are clean bags, whatever it was trained on."""
    if split in ("validation", "test-large"):
        return "clean", {"validation": "val"}.get(split, split)
    return protocol, split


def run_loader(data: Mapping[str, Any], mnist_dir: Path | None) -> Callable[[str, str], Bag]:
    """Reads a bag of the run by split and name; what it needs is opened once, at the first call."""
    from functools import cache

    from dasmil.errors import DataError, InputError

    @cache
    def members(split: str) -> tuple[Sequence[Bag], dict[str, int]]:
        if "cohort" in data:
            from dasmil.cli.cohort_source import run_cohort

            cohort = run_cohort(data)
            return cohort, {bag_id: k for k, bag_id in enumerate(cohort.bag_ids)}
        if "name" not in data:
            raise InputError("this run does not say where its bags are: give them with --bags")
        bags = built_in_split(data["name"], *_built_in_set(data["protocol"], split), mnist_dir)
        return bags, {bag.bag_id: k for k, bag in enumerate(bags)}

    def load(split: str, bag_id: str) -> Bag:
        bags, index = members("" if "cohort" in data else split)
        if bag_id not in index:
            raise DataError(f"bag {bag_id!r} is not where the run found it; put its file back")
        return bags[index[bag_id]]

    return load


def run_splits(
    config: Mapping[str, Any], names: Sequence[str] | None, mnist_dir: Path | None, run: Path
) -> dict[str, Sequence[Bag]]:
    """Sets of the built-in data of a run, or the locked ones of its cohort; by default its test sets."""
    from dasmil.errors import InputError

    data = config["data"]
    if "cohort" in data:
        from dasmil.cli.cohort_source import held_out_bags

        return dict(held_out_bags(data, names, run))
    if "name" not in data:
        raise InputError("this run was not trained on built-in data: give the bags to score with --bags and --labels")
    if not names:
        names = ["test", "test-large"] if data["protocol"] == "clean" else ["test"]
    return {name: built_in_split(data["name"], *_built_in_set(data["protocol"], name), mnist_dir) for name in names}


def labelled_bags(bags: BagArguments, config: Mapping[str, Any]) -> Cohort:
    """Feature files (or a table of cells) with their label table; read as the run's own, classes numbered alike."""
    from dasmil.cli.cohort_source import read_alike
    from dasmil.errors import InputError

    if bags.labels is None:
        raise InputError("--bags needs --labels, a CSV with slide and label; to predict without labels: dasmil predict")
    return read_alike(config["data"], bags)


def unlabelled_bags(
    bags: Path,
    *,
    mpp: str | None,
    tile_um: float | None,
    scale_table: Path | None,
    config: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> Cohort:
    """Feature files, or a table of cells; with the configuration of a run they are read as its own were."""
    from dasmil.cli.cohort_arguments import BagArguments
    from dasmil.cli.cohort_source import read_alike
    from dasmil.data.tables import is_table
    from dasmil.errors import InputError

    data = {} if config is None else config["data"]
    if is_table(bags) and "bag_column" not in data.get("cohort", {}):
        whose = (
            "a model file does not say" if config is None else "this run does not say, because it had no such table,"
        )
        raise InputError(
            f"{bags} is a table of cells, and {whose} which of its columns are what: "
            f"give {'the run directory instead' if config is None else 'a folder of feature files'}"
        )
    return read_alike(data, BagArguments(bags=bags, mpp=mpp, tile_um=tile_um, scale_table=scale_table, strict=strict))
