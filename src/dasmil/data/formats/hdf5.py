"""HDF5 feature files: the product's bags, CLAM, TRIDENT, STAMP (all ages), marugoto and end2end-WSI-preprocessing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dasmil.data.formats.contents import (
    SLIDE_VECTOR,
    FeatureFile,
    Probe,
    agreed,
    measured_stride,
    need_scale,
    pixel_scale,
    shows_stride,
    slide_vector,
)
from dasmil.data.scale import Scale
from dasmil.data.store import (
    FORMAT,
    BagInfo,
    bag_info,
    bag_of,
    coords_of,
    number_dataset,
    open_h5,
    plain,
    read_numbers,
)
from dasmil.errors import DataError, named, shown
from dasmil.files import read_object

HISTORIC_STRIDE_PX = 224
HISTORIC_TILE_UM = 256.0
OWN_RULE = "dasmil: um centres as stored"


def probe_hdf5(path: Path) -> Probe:
    """Tell which tool wrote the file, and what it declares."""
    with open_h5(path) as file:
        return _probe_own(path, bag_info(path, file)) if is_own(file) else _probe(path, file)


def read_hdf5(path: Path, scale: Scale, *, features: bool = True) -> FeatureFile:
    """Read the file by the rule of the tool that wrote it; features: False leaves these out."""
    with open_h5(path) as file:
        if is_own(file):
            return _read_own(path, file, features=features)
        probe = _probe(path, file)
        if probe.format == SLIDE_VECTOR:
            stored = read_numbers(path, file, _features(path, file)) if features else np.empty((1, 0))
            return slide_vector(probe, _rows(stored, 1))
        if "coords" not in file:
            raise DataError(f"{path}: no dataset 'coords', so its instances have no positions; extract it again")
        coords = _places(path, read_numbers(path, file, "coords"), probe.n)
        attributes = _attributes(file)
        name = _features(path, file)
        data = _rows(read_numbers(path, file, name), probe.n) if features else np.empty((probe.n, 0), np.float32)
        kept = _not_augmented(path, file, probe.n)
        left_out = 0 if kept is None else int((~kept).sum())
        if kept is not None:
            data, coords = data[kept], coords[kept]
        centres, tile_um, mpp, text = _RULES[probe.format](path, coords, attributes, scale)
        with np.errstate(over="ignore"):  # infinite positions are refused by whoever needs them
            centres = centres.astype(np.float32)
    return FeatureFile(probe, data, centres, tile_um=tile_um, mpp=mpp, placed=text, left_out=left_out)


def _rows(stored: np.ndarray, n: int) -> np.ndarray:
    with np.errstate(over="ignore"):  # a float64 that float32 does not hold becomes infinite, which is found later
        return stored.astype(np.float32, copy=False).reshape(n, -1)


def _places(path: Path, stored: np.ndarray, n: int) -> np.ndarray:
    coords = stored.astype(np.float64)
    if coords.ndim == 3 and coords.shape[0] == 1:
        coords = coords[0]
    if coords.ndim != 2 or coords.shape[1] < 2:
        raise DataError(f"{path}: coords have shape {coords.shape}, expected [{n}, 2]")
    if len(coords) != n:
        raise DataError(f"{path}: {n} rows of features but {len(coords)} of coords; extract the slide again")
    return coords[:, :2]


def _not_augmented(path: Path, file: h5py.File, n: int) -> np.ndarray | None:
    """Which rows are tiles and not augmented copies of them; None for all."""
    if "augmented" not in file:
        return None
    augmented = read_numbers(path, file, "augmented").astype(bool)
    if augmented.shape != (n,):
        raise DataError(f"{path}: {n} rows of features but 'augmented' has shape {augmented.shape}, expected [{n}]")
    if augmented.all():
        raise DataError(f"{path}: every row is marked as augmented, so no tile is left; extract it again")
    return ~augmented if augmented.any() else None


def is_own(file: h5py.File) -> bool:
    """Whether a file says that it is a bag of ours."""
    return plain(file.attrs.get("format")) == FORMAT


def _probe_own(path: Path, info: BagInfo) -> Probe:
    if len(info.feature_shape) not in (1, 3):
        raise DataError(f"{path}: features have shape [n, {info.feature_shape}], expected [n, f] or [n, 3, h, w]")
    known = info.metadata
    return Probe(
        path=path,
        format="dasmil",
        n=info.n,
        n_coords=info.n,
        in_features=math.prod(info.feature_shape),
        picture_shape=tuple(info.feature_shape) if len(info.feature_shape) == 3 else None,
        encoder=None if known.get("encoder") is None else str(known["encoder"]),
        tile_um=_positive(path, known, "tile_um"),
        mpp=_positive(path, known, "mpp"),
        size_px=_size(path, known, "slide_width_px", "slide_height_px"),
        label=info.label,
        patient_id=info.patient_id,
    )


def _positive(path: Path, attributes: Mapping[str, Any], name: str, *, or_zero: bool = False) -> float | None:
    """The number in an attribute (of several, one per axis, the first); None where the file is silent."""
    value = attributes.get(name)
    if value is None:
        return None
    try:
        number = float(np.ravel(value)[0])
    except (TypeError, ValueError, IndexError, OverflowError):
        number = float("nan")
    if np.isfinite(number) and (number > 0 or (or_zero and number == 0)):
        return number
    what = "0 or a positive number" if or_zero else "a positive number"
    raise DataError(
        f"{path}: attribute {shown(name)} is {shown(value)}, expected {what}; correct it or extract the slide again"
    )


def _size(path: Path, attributes: Mapping[str, Any], width: str, height: str) -> tuple[float, float] | None:
    size = (_positive(path, attributes, width), _positive(path, attributes, height))
    return None if size[0] is None or size[1] is None else (size[0], size[1])


def _read_own(path: Path, file: h5py.File, *, features: bool) -> FeatureFile:
    info = bag_info(path, file)
    probe = _probe_own(path, info)
    if not features:
        empty = np.empty((probe.n, 0), np.float32)
        return FeatureFile(probe, empty, coords_of(path, file), tile_um=probe.tile_um, mpp=probe.mpp, placed=OWN_RULE)
    bag = bag_of(path, file, info)
    optional = {
        name: value.numpy()
        for name in ("instance_labels", "key_instances", "section")
        if (value := getattr(bag, name)) is not None
    }
    if bag.unit != "um":
        raise DataError(f"{path}: positions are in {bag.unit}, expected um; extract the slide with its scale")
    return FeatureFile(
        probe=probe,
        features=np.asarray((bag.features if bag.pixels else bag.features.float()).numpy()),
        coords=bag.coords.numpy(),
        tile_um=probe.tile_um,
        mpp=probe.mpp,
        placed=OWN_RULE,
        optional=optional,
        metadata=dict(bag.metadata),
        instance_ids=bag.instance_ids,
    )


def _clam(path: Path, coords: np.ndarray, attributes: dict[str, Any], scale: Scale) -> _Placed:
    tile_px = _clam_tile(path, attributes)
    own_mpp, own_um = (_positive(path, attributes, f"dasmil_{name}") for name in ("mpp", "tile_um"))  # by our extract
    if tile_px is None and own_mpp is not None and own_um is not None:
        tile_px = own_um / own_mpp
    mpp, source = pixel_scale(path, "CLAM", coords, scale, tile_px, own_mpp)
    given = None if scale.tile_um is None else scale.tile_um / mpp
    if tile_px is not None:
        edge, whence = tile_px, "declared"
    elif given is not None:
        edge, whence = given, "given"
    elif shows_stride(coords):
        edge, whence = measured_stride(coords), "taken from the stride"
    elif scale.stride_px is not None:
        edge, whence = scale.stride_px, "taken from the cohort's stride"
    else:
        edge, whence = 0.0, "unknown (too few or scattered tiles), corner used"
    text = f"CLAM: centre = (level-0 px top left + tile/2) x mpp ({source}; tile {edge:g} px {whence})"
    return (coords + edge / 2) * mpp, edge * mpp or None, mpp, text


def _trident(path: Path, coords: np.ndarray, attributes: dict[str, Any], scale: Scale) -> _Placed:
    tile_px = _positive(path, attributes, "coords.patch_size_level0")
    assert tile_px is not None
    own_mpp = _positive(path, attributes, "dasmil_mpp")  # written by our extract
    if scale.nominal and scale.mpp is None and scale.tile_um is None and own_mpp is None:
        magnification = _positive(path, attributes, "coords.level0_magnification")
        if magnification is None:
            raise need_scale(path, "TRIDENT", "level-0 pixels (and no magnification)")
        mpp = 10.0 / magnification
        source = f"nominal: 10 um / {magnification:g}x = {mpp:g} um/px"
    else:
        mpp, source = pixel_scale(path, "TRIDENT", coords, scale, tile_px, own_mpp)
    text = f"TRIDENT: centre = (level-0 px top left + {tile_px:g}/2) x mpp ({source})"
    return (coords + tile_px / 2) * mpp, tile_px * mpp, mpp, text


def _stamp(path: Path, coords: np.ndarray, attributes: dict[str, Any], scale: Scale) -> _Placed:
    key = "tile_size_um" if "tile_size_um" in attributes else "tile_size"
    tile_um = agreed(path, key, _positive(path, attributes, key), scale.tile_um)
    assert tile_um is not None
    version = "STAMP" if key == "tile_size_um" else "STAMP 2.0"
    return coords + tile_um / 2, tile_um, None, f"{version}: centre = um top left + {tile_um:g}/2, as the file declares"


def _historic(path: Path, coords: np.ndarray, attributes: dict[str, Any], scale: Scale) -> _Placed:
    name = "historic STAMP / marugoto / end2end"
    said = _stamp1(path)
    declared = (said[1] if said else None) or _positive(path, attributes, "tile_size")
    edge = declared if declared is not None else measured_stride(coords)
    if said is not None:
        tile_um = said[0]
        agreed(path, "microns (info.json)", tile_um, scale.tile_um)
        if not np.isfinite(edge):
            raise need_scale(path, name, f"pixels of unknown size (info.json declares tiles of {tile_um:g} um only)")
        mpp = agreed(path, "microns / patch_size (info.json)", tile_um / edge, scale.mpp) or tile_um / edge
        source = f"{tile_um:g} um / {edge:g} px as info.json declares" + ("" if declared else "; px from the stride")
    elif scale.mpp is None and scale.tile_um is None:
        if not np.isfinite(edge) or round(edge) != HISTORIC_STRIDE_PX:
            raise need_scale(path, name, f"pixels of unknown size (stride {edge:g}, not {HISTORIC_STRIDE_PX})")
        mpp = HISTORIC_TILE_UM / HISTORIC_STRIDE_PX
        what = "tile_size" if declared is not None else "stride"
        source = f"{what} {edge:g} px, which these tools use for {HISTORIC_TILE_UM:g} um tiles; --mpp overrides it"
        edge = float(HISTORIC_STRIDE_PX)
    else:
        mpp, source = pixel_scale(path, name, coords, scale, declared)
        if declared is None and scale.tile_um is not None:
            edge = scale.tile_um / mpp
    if not np.isfinite(edge):
        edge = 0.0
    text = f"{name}: centre = (px top left + {edge:g}/2) x {mpp:g} um/px ({source})"
    return (coords + edge / 2) * mpp, edge * mpp or None, None, text


def _stamp1(path: Path) -> tuple[float, float | None] | None:
    """Edge of a tile in um, and in px of the coordinates where it is said, as STAMP 1 keeps it beside its features."""
    info = path.with_name("info.json")
    if not info.is_file():
        return None
    said = read_object(info, "the settings of STAMP 1; correct or remove it")
    tile_um = _positive(info, said, "microns")
    # Later versions of STAMP 1 call it tile_size, and may give one number for each axis.
    tile_px = _positive(info, said, "patch_size") or _positive(info, said, "tile_size")
    return None if tile_um is None else (tile_um, tile_px)


_Placed = tuple[np.ndarray, float | None, float | None, str]
_RULES = {
    "CLAM": _clam,
    "TRIDENT": _trident,
    "STAMP": _stamp,
    "STAMP 2.0": _stamp,
    "historic STAMP": _historic,
}


def _probe(path: Path, file: h5py.File) -> Probe:
    attributes = _attributes(file)
    features = number_dataset(path, file, _features(path, file))
    shape = features.shape[1:] if features.ndim == 3 and features.shape[0] == 1 else features.shape
    encoder = attributes.get("extractor", attributes.get("features.encoder"))
    encoder = None if encoder is None else str(encoder)
    if "coords" not in file and len(shape) in (1, 2) and shape[:-1] in ((), (1,)) and shape[-1] > 0:
        return Probe(path, SLIDE_VECTOR, n=1, n_coords=1, in_features=int(shape[-1]), encoder=encoder)
    if len(shape) == 2 and shape[0] == 0:
        raise DataError(f"{path}: the file has no tiles (features of shape {shape}), so there is nothing to learn from")
    if len(shape) != 2 or 0 in shape:
        raise DataError(f"{path}: features have shape {features.shape}, expected [n, f] with at least one instance")
    n_coords: int | None = None
    if "coords" in file:
        coords = number_dataset(path, file, "coords")
        n_coords = coords.shape[1] if coords.ndim == 3 and coords.shape[0] == 1 else sum(coords.shape[:1])
    dialect = _dialect(features, attributes)
    return Probe(
        path=path,
        format=dialect,
        n=int(shape[0]),
        n_coords=n_coords,
        in_features=int(shape[1]),
        encoder=encoder,
        tile_um=_declared_tile(path, attributes, dialect),
        size_px=_size(path, attributes, "coords.level0_width", "coords.level0_height"),
    )


def _dialect(features: h5py.Dataset, attributes: dict[str, Any]) -> str:
    if str(features.name).endswith("/feats"):
        if "tile_size_um" in attributes:
            return "STAMP"
        if "tile_size" in attributes and attributes.get("unit") == "um":
            return "STAMP 2.0"
        return "historic STAMP"
    return "TRIDENT" if "coords.patch_size_level0" in attributes else "CLAM"


def _declared_tile(path: Path, attributes: Mapping[str, Any], dialect: str) -> float | None:
    """Tile edge in um, where the file (or, of STAMP 1, the settings beside it) states it."""
    said = _stamp1(path) if dialect == "historic STAMP" else None
    if said is not None:
        return said[0]
    tile_um = _positive(path, attributes, "tile_size_um")
    if tile_um is None and attributes.get("unit") == "um":
        tile_um = _positive(path, attributes, "tile_size")
    return tile_um


def _clam_tile(path: Path, attributes: Mapping[str, Any]) -> float | None:
    """Edge of a CLAM patch in level-0 pixels, where its patch file's attributes were kept."""
    size = _positive(path, attributes, "coords.patch_size")
    if size is None or not _positive(path, attributes, "coords.patch_level", or_zero=True):
        return size
    downsample = _positive(path, attributes, "coords.downsample")
    return None if downsample is None else size * downsample


def _attributes(file: h5py.File) -> dict[str, Any]:
    """Root attributes by name, those of a dataset as ``dataset.name``."""
    found: dict[str, Any] = {}
    places = [("", file), ("coords.", file.get("coords")), ("features.", file.get("features"))]
    for prefix, item in places:
        for name, value in item.attrs.items() if item is not None else []:
            found[prefix + name] = plain(value)
    return {name: value for name, value in found.items() if value is not None}


def _features(path: Path, file: h5py.File) -> str:
    for name in ("features", "feats"):
        if isinstance(file.get(name), h5py.Dataset):
            return name
    raise DataError(
        f"{path}: no dataset 'features' (dasmil, CLAM, TRIDENT) or 'feats' (STAMP, marugoto); it holds {named(file)}"
    )
