"""A bag and the model that speaks for it: by its file, or by its name in a run or among other bags."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dasmil.data.formats import probe_features
from dasmil.data.formats.hdf5 import is_own
from dasmil.data.store import open_h5, read_bag
from dasmil.data.tables import is_table
from dasmil.errors import DataError, InputError, nearest
from dasmil.models import read_model
from dasmil.models.base import MILModel
from dasmil.runs import OriginRecord, Speaker, find_model, model_files, origin_of, speaker_for, speakers
from dasmil.study.notes import Note, silent
from dasmil.study.reading import read_alike, run_loader, with_scale_of
from dasmil.study.scale import check_scale
from dasmil.study.spec import BagSpec
from dasmil.types import Bag


def models_of(run: Path) -> list[MILModel]:
    """The models of all seeds (and folds) of a run, or the one of a file."""
    return [read_model(file) for file in model_files(run) or [find_model(run)]]


def run_origin(run: Path) -> OriginRecord:
    """What a run notes about the origin of its data (of a cross-validation: its first fold); empty for a model file."""
    return speakers(run)[0].origin if run.is_dir() else {}


def find_bag(
    run: str | Path,
    name: str,
    *,
    seed: int | None = None,
    bags: BagSpec | None = None,
    mnist_dir: Path | None = None,
    note: Note = silent,
) -> tuple[Bag, Speaker]:
    """A bag and the model that explains it: of a cross-validation the one of the fold that held the bag out.

    Example: ``bag, speaker = dasmil.find_bag("runs/mine", "slide1")``

    run: a run directory or a model file. name: the bag's file, or its name: among ``bags`` if they are given, else
    among those that the run has scored. seed: which seed's model; default the first.
    """
    found = speakers(Path(run), seed)
    bag = _read_bag(found, name, bags or BagSpec(), mnist_dir, note)
    # A file may call its bag otherwise than the run does, which goes by the file's name.
    known = bag.bag_id if any(bag.bag_id in one.sets for one in found) else Path(name).stem
    return bag, speaker_for(found, known)


def _read_bag(found: list[Speaker], name: str, given: BagSpec, mnist_dir: Path | None, note: Note) -> Bag:
    path = Path(name)
    file = found[0].model_file
    if given.bags is not None:
        cohort = read_alike(origin_of(file), given, note)
        if name not in cohort.bag_ids:
            raise InputError(f"{given.bags} has no bag {name!r}.{nearest(name, cohort.bag_ids, 3)}")
        return cohort[cohort.bag_ids.index(name)]
    if not path.is_file():
        return _scored_bag(speaker_for(found, name), found, name, mnist_dir)
    if is_table(path):
        raise InputError(f"{path} is a table of many bags: name one of them, --bag NAME --bags {path}")
    origin = origin_of(file)
    if origin.get("cohort", {}).get("per_patient"):
        note(
            f"Warning: this run was trained on patients with all their slides joined; {path.name} is explained alone: "
            "for the whole patient give its name, --bag PATIENT, or with --bags FOLDER and --slide-table (slide, "
            "patient) where it is new"
        )
    bag = read_one(path, with_scale_of(origin, path, given))
    check_scale(origin, {str(path): (bag.metadata.get("tile_um"), bag.metadata.get("mpp"))})
    return bag


def _scored_bag(speaker: Speaker, found: list[Speaker], name: str, mnist_dir: Path | None) -> Bag:
    """A bag that one of these models has scored."""
    if speaker.seed is None:
        raise InputError(f"{name} does not exist: expected the feature file of a bag, as dasmil extract writes it")
    if name not in speaker.sets:
        known = {bag_id for one in found for bag_id in one.sets}
        raise InputError(
            f"{name} does not exist: it is no file and no bag in {speaker.seed.predictions_file} "
            f"(where those of a locked test set stand after dasmil evaluate).{nearest(name, known, 3)}"
        )
    return run_loader(speaker.origin, mnist_dir)(speaker.sets[name], name)


def read_one(path: Path, given: BagSpec) -> Bag:
    """A bag from its file: our own format as it is, other tools' features brought to micrometres."""
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
