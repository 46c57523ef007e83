"""Where training bags come from: arguments of the command line become sets of bags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dasmil.types import Bag


@dataclass(frozen=True)
class Splits:
    """One round of training: its bags, and what config.json and data.json note about their origin."""

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
    return {name: built_in_split(data["name"], data["protocol"], name, mnist_dir) for name in names}


def labelled_bags(
    bags: Path,
    labels: Path,
    config: Mapping[str, Any],
    *,
    mpp: str | None,
    tile_um: float | None,
    scale_table: Path | None,
) -> Sequence[Bag]:
    """Feature files (or a table of cells) with their label table; read as the run's own, classes numbered alike."""
    from dasmil.cli.cohort_source import read_alike

    return read_alike(config["data"], bags, labels, mpp=mpp, tile_um=tile_um, scale_table=scale_table)


def unlabelled_bags(
    bags: Path,
    *,
    mpp: str | None,
    tile_um: float | None,
    scale_table: Path | None,
    config: Mapping[str, Any] | None = None,
) -> Sequence[Bag]:
    """Feature files, or a table of cells; with the configuration of a run they are read as its own were."""
    from dasmil.cli.cohort_source import read_alike

    data = {} if config is None else config["data"]
    return read_alike(data, bags, None, mpp=mpp, tile_um=tile_um, scale_table=scale_table)
