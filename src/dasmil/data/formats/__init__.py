"""Feature files of other tools, told apart by what is in them and brought to micrometre centres."""

from __future__ import annotations

from pathlib import Path

from dasmil.data.formats.contents import FeatureFile, Probe, left_out_text
from dasmil.data.formats.hdf5 import probe_hdf5, read_hdf5
from dasmil.data.formats.slide2vec import COORDINATES, find_coordinates, probe_slide2vec, read_slide2vec
from dasmil.data.formats.slideflow import INDEX_SUFFIXES, probe_slideflow, read_slideflow
from dasmil.data.formats.torchmil import find_torchmil, probe_torchmil, read_torchmil
from dasmil.data.scale import Scale
from dasmil.errors import DataError, InputError
from dasmil.files import need_readable

__all__ = [
    "SUFFIXES",
    "FeatureFile",
    "Probe",
    "find_feature_files",
    "left_out_text",
    "probe_features",
    "read_features",
    "slide_name",
]

SUFFIXES = (".h5", ".hdf5", ".pt")


def slide_name(path: Path) -> str:
    """The slide that a feature file belongs to: its name without the suffix."""
    return path.stem


def find_feature_files(folder: Path) -> list[Path]:
    """All feature files below a folder, sorted by name; a single file is taken as it is.

    CLAM writes each slide twice, as h5_files/slide.h5 and, without positions, as pt_files/slide.pt: the first is taken.
    slide2vec may write an embedding of the whole slide beside its tiles: those with positions are taken. Of .npy files
    only torchmil's features are.
    """
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise InputError(f"no folder {folder}: expected a folder of feature files ({', '.join(SUFFIXES)})")
    need_readable(folder)
    found = sorted(
        path
        for path in folder.rglob("*")
        if (path.suffix.lower() in SUFFIXES or find_torchmil(path)) and path.is_file() and not path.name.startswith(".")
    )
    with_coords = {path.stem for path in found if path.suffix.lower() != ".pt"}
    placed = {path: _placed(path) for path in found if path.suffix.lower() == ".pt"}
    with_coords |= {path.stem for path, there in placed.items() if there}
    found = [path for path in found if path.stem not in with_coords or placed.get(path, True)]
    if not found:
        raise InputError(f"{folder} holds no feature files: expected files ending in {', '.join(SUFFIXES)}")
    return found


def _placed(path: Path) -> bool:
    """Whether positions lie beside a tensor."""
    return find_coordinates(path) is not None or any(
        path.with_name(path.stem + suffix).is_file() for suffix in INDEX_SUFFIXES
    )


def probe_features(path: Path) -> Probe:
    """Tell the format, the number of instances and what the file declares, without reading the features."""
    if (root := find_torchmil(path)) is not None:
        return probe_torchmil(path, root)
    if path.suffix.lower() != ".pt":
        return probe_hdf5(path)
    coordinates = find_coordinates(path)
    return probe_slideflow(path) if coordinates is None else probe_slide2vec(path, coordinates)


def read_features(path: Path, scale: Scale | None = None, *, features: bool = True) -> FeatureFile:
    """Read one feature file; coordinates come back as micrometre centres, the rule that was used in ``rule``.

    features: False leaves them out (the array is [n, 0]), which is quick.
    """
    if path.name.endswith((*INDEX_SUFFIXES, COORDINATES)):
        raise DataError(f"{path} is an index of positions, not a feature file: give the .pt file beside it")
    scale = scale or Scale()
    if (root := find_torchmil(path)) is not None:
        return read_torchmil(path, root, scale, features=features)
    if path.suffix.lower() != ".pt":
        return read_hdf5(path, scale, features=features)
    coordinates = find_coordinates(path)
    if coordinates is None:
        return read_slideflow(path, scale, features=features)
    return read_slide2vec(path, coordinates, scale, features=features)
