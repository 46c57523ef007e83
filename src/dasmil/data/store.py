"""Bag files: one HDF5 file per bag, the only reader and writer of the product's own layout (docs/bag-format.md)."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import h5py
import numpy as np
import torch
from torch import Tensor

from dasmil import __version__
from dasmil.data.attributes import described, json_names
from dasmil.data.guard import check_hdf5
from dasmil.data.instance_ids import IDS, id_array, read_ids
from dasmil.data.memory import need_memory
from dasmil.errors import DasmilError, DataError, InputError, named, shown
from dasmil.files import replacing
from dasmil.types import Bag, Unit, channels_last, plain_tensor

FORMAT = "dasmil-bag"
FORMAT_VERSION = 1
CLASSES = 10_000  # no bag has a class number from here on

_OPTIONAL = ("section", "instance_labels", "key_instances")
# Attributes with a field of their own in Bag; all other root attributes are Bag.metadata.
_FIELDS = ("unit", "bag_id", "label", "patient_id")
_BOOKKEEPING = ("format", "format_version", "json_attributes")
_READ_ERRORS = (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, MemoryError)


@dataclass(frozen=True)
class BagInfo:
    """What a bag file says about itself, read without its features."""

    path: Path
    bag_id: str
    unit: Unit
    n: int
    feature_shape: tuple[int, ...]
    label: int | None
    patient_id: str | None
    has: tuple[str, ...]
    metadata: dict[str, Any]
    format_version: int


def write_bag(path: str | Path, bag: Bag, *, dtype: Literal["float16", "float32"] | None = None) -> None:
    """Write a bag to one file, which appears only when complete; dtype None keeps the features' own type."""
    path = Path(path)
    arrays = {"features": _feature_array(bag, dtype), "coords": bag.coords.detach().cpu().numpy()}
    for name in _OPTIONAL:
        value = getattr(bag, name)
        if value is not None:
            arrays[name] = _plain_array(bag, name, value)
    if "key_instances" in arrays:
        arrays["key_instances"] = arrays["key_instances"].astype(np.uint8)
    if bag.instance_ids is not None:
        arrays[IDS] = id_array(bag.instance_ids)
    attributes = _attributes(bag)
    with replacing_h5(path) as file:
        for name, array in arrays.items():
            # Contiguous, uncompressed: features of a network hardly compress, and rows can be read lazily.
            file.create_dataset(name, data=array)
        for name, value in attributes.items():
            file.attrs[name] = value


def read_bag(
    path: str | Path, *, label: int | None = None, patient_id: str | None = None, bag_id: str | None = None
) -> Bag:
    """Read a whole bag file; label, patient_id and bag_id, where given, stand in for those in the file."""
    path = Path(path)
    with _opened(path) as (file, info):
        return bag_of(path, file, info, label=label, patient_id=patient_id, bag_id=bag_id)


def bag_of(
    path: Path,
    file: h5py.File,
    info: BagInfo,
    *,
    label: int | None = None,
    patient_id: str | None = None,
    bag_id: str | None = None,
) -> Bag:
    """The bag in a file that is open."""
    arrays = {name: read_numbers(path, file, name) for name in ("features", "coords", *info.has)}
    ids = read_ids(path, file)
    if "key_instances" in arrays and not np.isin(arrays["key_instances"], (0, 1)).all():
        raise DataError(f"{path}: key_instances hold values other than 0 and 1")
    try:
        return Bag(
            unit=info.unit,
            bag_id=bag_id if bag_id is not None else info.bag_id,
            label=label if label is not None else info.label,
            patient_id=patient_id if patient_id is not None else info.patient_id,
            metadata=info.metadata,
            instance_ids=ids,
            **{name: torch.from_numpy(array) for name, array in arrays.items()},  # pyright: ignore[reportArgumentType]
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def read_bag_info(path: str | Path) -> BagInfo:
    """Read a bag file's attributes and shapes, checked as in read_bag, but no arrays."""
    with _opened(Path(path)) as (_, info):
        return info


def read_coords(path: str | Path) -> np.ndarray:
    """Read only the coordinates [n, 2 or 3] (float32, in the file's unit) of a bag file."""
    path = Path(path)
    with _opened(path) as (file, _):
        return coords_of(path, file)


def coords_of(path: Path, file: h5py.File) -> np.ndarray:
    """The coordinates in a file that is open."""
    coords = read_numbers(path, file, "coords").astype(np.float32, copy=False)
    if not np.isfinite(coords).all():
        raise DataError(
            f"{path}: {_bad_rows(coords)} of {len(coords)} instances have NaN or infinite coordinates; "
            "remove or repair them"
        )
    return coords


@contextmanager
def replacing_h5(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file under a temporary name in the same folder, renamed to path when the block ends well."""
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist; create it first")
    # No locks: no other process knows the name, and they fail on some network file systems.
    with replacing(path) as temporary, h5py.File(temporary, "w", locking=False) as file:
        yield file


@contextmanager
def open_h5(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file open for reading; a file that is missing, of another kind or damaged is one clear error."""
    if not path.is_file():
        raise DataError(f"{path}: no such file" if not path.exists() else f"{path}: is a folder, expected an HDF5 file")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; make it again")
    try:
        if not h5py.is_hdf5(path):
            raise DataError(f"{path}: not an HDF5 file, expected a bag of features (.h5)")
        check_hdf5(path)
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except DasmilError:
        raise
    except _READ_ERRORS as error:
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            raise  # no fault of the file
        reason = str(error).strip("'\"") or type(error).__name__
        raise DataError(f"{path}: truncated or damaged HDF5 file ({reason}); make it again") from error


@contextmanager
def _opened(path: Path) -> Iterator[tuple[h5py.File, BagInfo]]:
    with open_h5(path) as file:
        yield file, bag_info(path, file)


def bag_info(path: Path, file: h5py.File) -> BagInfo:
    """What a file that is open says about itself."""
    attributes = {name: plain(value) for name, value in file.attrs.items()}
    if attributes.get("format") != FORMAT:
        found = f"format {shown(attributes['format'])}" if "format" in attributes else "no attribute 'format'"
        raise DataError(
            f"{path}: not a dasmil bag: {found}, expected {FORMAT!r}; it holds {named(sorted(file))}. "
            "Features of other tools (CLAM, TRIDENT, STAMP) are read with `dasmil train --bags`, not with read_bag"
        )
    version = attributes.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DataError(f"{path}: format_version is {shown(version)}, expected a number from 1 to {FORMAT_VERSION}")
    if version > FORMAT_VERSION:
        raise DataError(
            f"{path}: written in format version {version}; this dasmil {__version__} reads up to {FORMAT_VERSION}. "
            "Update dasmil"
        )
    for name in json_names(path, attributes):
        if isinstance(attributes.get(name), str):
            try:
                attributes[name] = json.loads(attributes[name])
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}: attribute {shown(name)} is not valid JSON ({error})") from None
    unit = attributes.get("unit")
    if unit not in ("um", "px"):
        found = "has no attribute 'unit'" if unit is None else f"has unit {shown(unit)}"
        raise DataError(f"{path}: {found}, expected 'um' (micrometres) or 'px' (level-0 pixels)")
    shapes = _shapes(path, file)
    n = shapes["features"][0]
    label, patient = attributes.get("label"), attributes.get("patient_id")
    if label is not None and (not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < CLASSES):
        raise DataError(f"{path}: label is {shown(label)}, expected a class number 0, 1, ... below {CLASSES:,}")
    return BagInfo(
        path=path,
        bag_id=str(attributes.get("bag_id") or path.stem),
        unit=cast(Unit, unit),
        n=n,
        feature_shape=_feature_shape(file["features"]),
        label=label,
        patient_id=None if patient is None else str(patient),
        has=tuple(name for name in _OPTIONAL if name in shapes),
        metadata=described(path, {k: v for k, v in attributes.items() if k not in (*_FIELDS, *_BOOKKEEPING)}),
        format_version=version,
    )


def _feature_shape(stored: Any) -> tuple[int, ...]:
    """The shape of one instance as `Bag` keeps it: pixels have their colours first."""
    shape = tuple(int(size) for size in stored.shape)
    return (3, *shape[1:3]) if stored.dtype == np.uint8 and channels_last(shape) else shape[1:]


def _shapes(path: Path, file: h5py.File) -> dict[str, tuple[int, ...]]:
    """The shapes of a bag's datasets, which must belong together."""
    shapes = {name: number_dataset(path, file, name).shape for name in ("features", "coords")}
    shapes |= {name: number_dataset(path, file, name).shape for name in _OPTIONAL if name in file}
    n = shapes["features"][0] if shapes["features"] else 0
    if len(shapes["features"]) < 2 or 0 in shapes["features"]:
        raise DataError(f"{path}: features have shape {shapes['features']}, expected [n, ...] with n >= 1")
    for name, shape in shapes.items():
        if not shape or shape[0] != n:
            rows = shape[0] if shape else "no"
            raise DataError(f"{path}: {n} rows of features but {rows} of {name}; they must match one to one")
        if name in _OPTIONAL and shape != (n,):
            raise DataError(f"{path}: {name} has shape {shape}, expected [{n}]: one value per instance")
    if len(shapes["coords"]) != 2 or shapes["coords"][1] not in (2, 3):
        raise DataError(f"{path}: coords have shape {shapes['coords']}, expected [{n}, 2] or [{n}, 3]")
    return shapes


def number_dataset(path: Path, file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset of numbers; one that is missing or holds something else is one clear error."""
    item = file.get(name)
    if item is None:
        raise DataError(
            f"{path}: has no dataset {name!r}; it holds {named(sorted(file))}, expected features and "
            "coords (the centres of the instances), one row each per instance: extract the slide or write the bag again"
        )
    if not isinstance(item, h5py.Dataset) or item.dtype.kind not in "fiub" or item.shape is None:
        kind = f"a dataset of {item.dtype}" if isinstance(item, h5py.Dataset) else "a group"
        raise DataError(f"{path}: {name} is {kind}, expected a dataset of numbers")
    if name in ("section", "instance_labels") and item.dtype.kind not in "iu":
        raise DataError(f"{path}: {name} is a dataset of {item.dtype}, expected integers")
    return item


def read_numbers(path: Path, file: h5py.File, name: str) -> np.ndarray:
    """The numbers of a dataset in a type that PyTorch has; more than fits into free memory is refused, not tried."""
    item = number_dataset(path, file, name)
    need_memory(path, name, math.prod(item.shape) * item.dtype.itemsize)
    try:
        return plain_tensor(name, item[...]).numpy()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _bad_rows(coords: np.ndarray) -> int:
    return int((~np.isfinite(coords)).any(axis=1).sum())


def _feature_array(bag: Bag, dtype: str | None) -> np.ndarray:
    if dtype not in (None, "float16", "float32"):
        raise InputError(f"dtype is {dtype!r}, expected 'float16', 'float32' or None (keep the features' own type)")
    features = bag.features
    if features.dtype == torch.bfloat16:  # HDF5 has no such type; float32 holds every value of it exactly
        features = features.float()
    array = _plain_array(bag, "features", features)
    if dtype is None or array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    lost = int((~np.isfinite(converted) & np.isfinite(array)).sum())
    if lost:
        raise DataError(
            f"bag {bag.bag_id!r}: {lost} feature values are too large for {dtype} "
            f"(largest {np.abs(array[np.isfinite(array)]).max():g}); write with dtype='float32' or None"
        )
    return converted


def _plain_array(bag: Bag, name: str, tensor: Tensor) -> np.ndarray:
    try:
        array = tensor.detach().cpu().numpy()
    except TypeError:  # quantised and eight-bit float types
        array = None
    if array is None or array.dtype.kind not in "fiub":
        raise DataError(f"bag {bag.bag_id!r}: {name} are {tensor.dtype}, which bag files do not hold; use float32")
    return array


def _attributes(bag: Bag) -> dict[str, Any]:
    """The root attributes of a bag: plain values as themselves, all else as JSON text named in json_attributes."""
    values: dict[str, Any] = {"format": FORMAT, "format_version": FORMAT_VERSION}
    fields = {name: getattr(bag, name) for name in _FIELDS}
    values |= {name: value for name, value in fields.items() if value is not None}
    metadata = {"dasmil_version": __version__, **bag.metadata}
    for name, value in metadata.items():
        where = f"bag {bag.bag_id!r}: metadata"
        if not isinstance(name, str) or not name or "\0" in name or not _encodable(name):
            raise DataError(f"{where} has the name {name!r}, expected non-empty text")
        if name in _BOOKKEEPING[1:] or (name in (*_FIELDS, "format") and value != (fields | {"format": FORMAT})[name]):
            raise DataError(f"{where} {name!r} is {value!r}: that name is kept for the bag itself; use another")
        values[name] = _to_json(value, f"{where} {name!r}")
    as_json = [name for name, value in values.items() if not _storable(value)]
    values |= {name: json.dumps(values[name]) for name in as_json}
    return values | {"json_attributes": json.dumps(sorted(as_json))}


def _storable(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" not in value and _encodable(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return -(2**63) <= value < 2**63
    return isinstance(value, bool | float)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # file names that are not UTF-8 reach Python as lone surrogates
        return False
    return True


def _to_json(value: Any, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | bool | int | float | None):
        return value
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _to_json(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item, where) for item in value]
    raise DataError(
        f"{where} holds {type(value).__name__}, expected text, numbers, booleans, None, or lists and "
        "dictionaries (with text keys) of these"
    )


def plain(value: Any) -> Any:
    """An attribute as h5py reads it, in Python's own types."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return value
