"""What `dasmil explain` needs from elsewhere: models of a run, bags, slides; and its questions to a whole run."""

from __future__ import annotations

import json as json_module
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasmil.data.tables import is_table
from dasmil.errors import DataError, InputError, nearest
from dasmil.files import finite

if TYPE_CHECKING:
    from dasmil.attribution.ground import Ground
    from dasmil.cli.cohort_arguments import BagArguments
    from dasmil.models.base import MILModel
    from dasmil.runs import Origin, Speaker
    from dasmil.types import Bag


def models_of(run: Path) -> list[MILModel]:
    """The models of all seeds (and folds) of a run, or the one of a file."""
    from dasmil.models import read_model
    from dasmil.runs import find_model, model_files

    return [read_model(file) for file in model_files(run) or [find_model(run)]]


def run_data(run: Path) -> Origin:
    """What a run notes about the origin of its data (of a cross-validation: its first fold); empty for a model file."""
    from dasmil.runs import speakers

    return speakers(run)[0].origin if run.is_dir() else {}


def find_bag(
    run: Path, seed: int | None, name: str, given: BagArguments, mnist_dir: Path | None
) -> tuple[Bag, Speaker]:
    """A bag and the model that explains it: of a cross-validation the one of the fold that held the bag out.

    The bag by its file, or by its name: among --bags if they are given, else among those that the run has scored.
    """
    from dasmil.runs import speaker_for, speakers

    found = speakers(run, seed)
    bag = _read_bag(found, name, given, mnist_dir)
    # A file may call its bag otherwise than the run does, which goes by the file's name.
    known = bag.bag_id if any(bag.bag_id in one.sets for one in found) else Path(name).stem
    return bag, speaker_for(found, known)


def _read_bag(found: list[Speaker], name: str, given: BagArguments, mnist_dir: Path | None) -> Bag:
    from dasmil.cli.display import say
    from dasmil.runs import origin_of, speaker_for
    from dasmil.study.scale import check_scale

    path = Path(name)
    file = found[0].model_file
    if given.bags is not None:
        from dasmil.study.reading import read_alike

        cohort = read_alike(origin_of(file), given, say)
        if name not in cohort.bag_ids:
            raise InputError(f"{given.bags} has no bag {name!r}.{nearest(name, cohort.bag_ids, 3)}")
        return cohort[cohort.bag_ids.index(name)]
    if not path.is_file():
        return _scored_bag(speaker_for(found, name), found, name, mnist_dir)
    if is_table(path):
        raise InputError(f"{path} is a table of many bags: name one of them, --bag NAME --bags {path}")
    origin = origin_of(file)
    bag = read_one(path, _with_scale_of(origin, path, given))
    check_scale(origin, {str(path): (bag.metadata.get("tile_um"), bag.metadata.get("mpp"))})
    return bag


def _with_scale_of(data: Mapping[str, Any], path: Path, given: BagArguments) -> BagArguments:
    """What is given, and for a file out of the run's own folder the scale that the run was given for it."""
    noted = type(given).from_record(data.get("cohort", {}))
    names = ("mpp", "tile_um", "scale_table")
    if noted.bags is None or not path.resolve().is_relative_to(noted.bags.resolve()):
        return given
    if any(name in names for name in given.given()):
        return given
    return replace(given, **{name: getattr(noted, name) for name in names})


def _scored_bag(speaker: Speaker, found: list[Speaker], name: str, mnist_dir: Path | None) -> Bag:
    """A bag that one of these models has scored."""
    from dasmil.study.reading import run_loader

    if speaker.seed is None:
        raise InputError(f"{name} does not exist: expected the feature file of a bag, as dasmil extract writes it")
    if name not in speaker.sets:
        known = {bag_id for one in found for bag_id in one.sets}
        raise InputError(
            f"{name} does not exist: it is no file and no bag in {speaker.seed.predictions_file} "
            f"(where those of a locked test set stand after dasmil evaluate).{nearest(name, known, 3)}"
        )
    return run_loader(speaker.origin, mnist_dir)(speaker.sets[name], name)


def read_one(path: Path, given: BagArguments) -> Bag:
    """A bag from its file: our own format as it is, other tools' features brought to micrometres."""
    from dasmil.data.formats import probe_features
    from dasmil.data.formats.hdf5 import is_own
    from dasmil.data.store import open_h5, read_bag

    if path.suffix.lower() in (".h5", ".hdf5"):
        with open_h5(path) as file:
            own, placed = is_own(file), "coords" in file
        if own and placed:
            return read_bag(path)
    else:
        own = False
    if own or probe_features(path).n_coords is None:
        raise DataError(
            f"{path}: the bag has no coordinates, so nothing can be placed on a map; extract it again with positions"
        )
    return replace(given, bags=path).load()[0]


def built_in(run: Path, data: str | None, protocol: str, split: str, index: int, mnist_dir: Path | None) -> Bag:
    """One bag of a built-in data set, by default the one that the run was trained on."""
    from dasmil.cli.cohort_arguments import BagArguments

    bags = LabelledBags(data, protocol, split, BagArguments(), None, mnist_dir).load(run)
    if not 0 <= index < len(bags):
        raise InputError(f"--index is {index}, but the split {split!r} has the bags 0 to {len(bags) - 1}")
    return bags[index]


def ground_of(bag: Bag, slide: Path | None) -> Ground | None:
    """The picture that a bag was cut from: the slide, or its own collage; None for a plain ground."""
    from dasmil.cli.slide_ground import open_ground, open_slide

    if slide is None:
        opened = open_ground(bag, None)
        return None if opened is None else opened[0]
    if not slide.exists():
        raise InputError(f"the slide {slide} does not exist: leave --slide out for a map on a plain ground")
    return open_slide(slide, bag)[0]


@dataclass(frozen=True)
class LabelledBags:
    """Where the labelled bags of a question to a whole run come from."""

    data: str | None
    protocol: str
    split: str | None
    given: BagArguments
    limit: int | None
    mnist_dir: Path | None

    def parts(self, run: Path) -> list[tuple[list[MILModel], Sequence[Bag]]]:
        """Models and the bags to score them on: one part, or of a cross-validation each fold with what it held out."""
        if not self._own_folds(run):
            return [(models_of(run), self.load(run))]
        from dasmil.runs import Run
        from dasmil.study.reading import run_loader

        found = []
        for fold in Run.read(run).folds:
            first = next(iter(fold.seeds.values()))
            load, split = run_loader(fold.origin, self.mnist_dir), self.split or "test"
            ids = first.predictions(split).bag_ids
            bags = [load(split, bag_id) for bag_id in ids[: self.limit]]
            found.append((fold.models(), bags))
        return found

    def _own_folds(self, run: Path) -> bool:
        """Whether the bags are those that the folds of a cross-validation held out."""
        from dasmil.runs import speakers

        return self.data is None and self.given.bags is None and speakers(run)[0].fold is not None

    def load(self, run: Path) -> Sequence[Bag]:
        from dasmil.cli.display import say
        from dasmil.study.data import built_in_split
        from dasmil.study.held_out import run_sets
        from dasmil.study.reading import labelled_bags

        known = run_data(run)
        if self.given.bags is not None:
            bags = labelled_bags(self.given, known, say)
        elif self.data is None and "cohort" in known:  # the bags that this run kept apart
            sets = run_sets(known, None if self.split is None else [self.split], None, run, say)
            parts = list(sets.values())
            bags = parts[0] if len(parts) == 1 else [bag for part in parts for bag in part]
        else:
            name = self.data or known.get("name")
            if name is None:
                raise InputError(
                    f"{run} was not trained on built-in data: give --data NAME, or a bag with --bag or --bags"
                )
            bags = built_in_split(str(name), *self._set(known), self.mnist_dir)
        return bags if self.limit is None else bags[: self.limit]

    def _set(self, known: Mapping[str, Any]) -> tuple[str, str]:
        """Protocol and split of built-in data: the run's own, but the published test bags only when asked for.

        These repeat the layouts of training bags; the clean ones share nothing with either protocol's.
        """
        if self.split is None:
            return ("published", "test") if self.protocol == "published" else ("clean", "test-large")
        return (self.protocol if self.data or "protocol" not in known else str(known["protocol"])), self.split

    def describe(self, run: Path) -> str:
        known = run_data(run)
        if self.given.bags is not None:
            return str(self.given.bags)
        if self._own_folds(run):
            return f"each fold on its own {self.split or 'test'} bags, mean of the folds"
        if self.data is None and "cohort" in known:
            return f"the run's own bags, {self.split or 'all kept apart'}"
        protocol, split = self._set(known)
        return f"{self.data or known.get('name')}, {protocol} protocol, split {split}"

    def state(self, run: Path) -> tuple[object, ...]:
        """What decides the figures beside `describe`: how bags are read, and their files; nothing for built-in data."""
        from dasmil.data.formats import find_feature_files

        known = run_data(run)
        given = self.given
        if given.bags is None and (self.data is not None or "cohort" not in known):
            return ()
        cohort = known.get("cohort", {})
        bags = given.bags or Path(cohort["bags"])
        names = ("labels", "slide_table", "scale_table")
        tables = [getattr(given, n) if given.bags else cohort.get(n) for n in names]
        files = [*([bags] if is_table(bags) else find_feature_files(bags)), *(Path(t) for t in tables if t)]
        stamps = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
        return {name: str(value) for name, value in given.given().items()}, known, stamps


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for k, name in enumerate(header):
        table.add_column(name, justify="left" if k < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False)  # names may hold square brackets
    if not console.is_terminal:
        console = Console(width=200, markup=False)  # a file or pipe has no edge to wrap at
    console.print(table)


def distances(run: Path, output: Path | None, json: bool) -> int:
    """The learned distance over seeds."""
    from dasmil.attribution.distance import learned_distances
    from dasmil.attribution.export import write_json
    from dasmil.attribution.ground import UNIT_SYMBOL
    from dasmil.report.phi import phi_figure, phis
    from dasmil.report.style import save_png
    from dasmil.runs import verdict_of

    models = models_of(run)
    rows = learned_distances(models)
    judged = verdict_of(run)
    if judged is not None and judged.caveat:
        print(f"Caveat of the run: {judged.caveat}", file=sys.stderr)
    if output is not None:
        doubtful = judged is not None and not judged.told
        save_png(phi_figure(phis(models), doubtful=doubtful), output / "learned-distance.png")
        write_json(output / "learned-distance.json", [asdict(row) for row in rows])
    if json:
        print(json_module.dumps([asdict(row) for row in rows], indent=2))
        return 0

    def cell(values: Sequence[float]) -> str:
        mean, sd = rows[0].spread(values)
        return f"{mean:.1f}" + ("" if sd is None else f" ± {sd:.1f}")

    unit = UNIT_SYMBOL[rows[0].unit]
    header = ("layer", "head", f"midpoint, {unit}", f"width, {unit}", "seeds")
    print_table(
        header, [(str(r.layer), str(r.head), cell(r.midpoints), cell(r.widths), str(len(models))) for r in rows]
    )
    if output is not None:
        print(output / "learned-distance.png")
        print(output / "learned-distance.json")
    return 0


def space(run: Path, source: LabelledBags, output: Path | None, json: bool) -> int:
    """Does space matter?"""
    from dasmil.attribution.export import write_json
    from dasmil.attribution.space_test import space_test_folds
    from dasmil.report.words import bags_text

    parts = source.parts(run)
    with status("moving coordinates") as show:
        result = space_test_folds(parts, progress=show)
    if output is not None:
        write_json(output / "space-test.json", finite(asdict(result)))
    if json:
        print(json_module.dumps(finite(asdict(result)), indent=2))
        return 0
    bags_used = bags_text(result.n_bags, result.n_patients)
    who = (
        f"{result.n_models} models" if len(parts) > 1 else f"{result.n_models} seed{'s' if result.n_models > 1 else ''}"
    )
    print(f"{bags_used}, {who}: {source.describe(run)}")
    known = "too few bags to say" if math.isnan(result.low) else f"{result.low:.3f} to {result.high:.3f}"
    rows = [("as it is", f"{result.auroc:.4f}", f"({known})", "")]
    rows += [
        (r.change, f"{r.auroc:.4f}", f"{r.difference:+.4f}", f"{r.low:+.4f} to {r.high:+.4f}") for r in result.rows
    ]
    print_table(("coordinates", "AUROC", "change", "95 % interval"), rows)
    if output is not None:
        print(output / "space-test.json")
    return 0


class status:
    """A line that says what is being done, on a terminal only."""

    def __init__(self, text: str) -> None:
        from rich.console import Console
        from rich.text import Text

        self._text = text
        self._status = Console(stderr=True).status(Text(text))

    def __enter__(self) -> Callable[[str], None]:
        from rich.text import Text

        self._status.start()
        return lambda step: self._status.update(Text(f"{self._text}: {step}"))

    def __exit__(self, *_: object) -> None:
        self._status.stop()
