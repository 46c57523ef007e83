"""Slideflow bags: ``{slide}.pt`` (a tensor of features) with ``{slide}.index.npz`` (tile centres, level-0 pixels)."""

from __future__ import annotations

import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dasmil.data.formats.contents import FeatureFile, Probe, agreed, pixel_scale
from dasmil.data.memory import need_memory
from dasmil.data.scale import Scale
from dasmil.errors import WORD, DataError, shown
from dasmil.files import read_object

INDEX_SUFFIXES = (".index.npz", ".index.npy")


def probe_slideflow(path: Path) -> Probe:
    """Tell the size of a slideflow bag (the tensor is mapped, not read) and what ``bags_config.json`` says of it."""
    features = _load(path)
    index = _find_index(path)
    config = _config(path)
    extractor = config.get("extractor")
    encoder = extractor.get("class") if isinstance(extractor, dict) else extractor
    return Probe(
        path=path,
        format="slideflow",
        n=features.shape[0],
        n_coords=None if index is None else _read_index(index, None)[0],
        in_features=features.shape[1],
        encoder=None if encoder is None else str(encoder)[:WORD],
        tile_um=_tile_um(path, config.get("tile_um")),
    )


def read_slideflow(path: Path, scale: Scale, *, features: bool = True) -> FeatureFile:
    """Read a slideflow bag; slideflow does not store the slide's um/px: it is given, or that of tiles side by side.

    features: False leaves them out.
    """
    probe = probe_slideflow(path)
    index = _find_index(path)
    if index is None:
        raise DataError(
            f"{path}: no {path.stem}{INDEX_SUFFIXES[0]} beside it, so its instances have no positions; "
            "slideflow writes that file, CLAM's pt_files have none (use CLAM's h5_files instead)"
        )
    _, coords = _read_index(index, probe.n)
    tile_um = agreed(path, "tile_um", probe.tile_um, scale.tile_um)
    mpp, source = pixel_scale(path, "slideflow", coords, scale, tile_px=None, declared_um=tile_um)
    with np.errstate(over="ignore"):  # infinite positions are refused by whoever needs them
        centres = (coords * mpp).astype(np.float32)
    return FeatureFile(
        probe=probe,
        features=_load(path).to(torch.float32).numpy() if features else np.empty((probe.n, 0), np.float32),
        coords=centres,
        tile_um=tile_um,
        mpp=mpp,
        placed=f"slideflow: centre = level-0 px x mpp ({source})",
    )


def _load(path: Path) -> Tensor:
    try:
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except Exception as error:  # the reader of PyTorch has no error of its own for damaged bytes
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DataError(f"{path} cannot be read as a plain tensor ({reason}); export the bag again") from None
    if not isinstance(value, Tensor):
        raise DataError(f"{path} holds {type(value).__name__}, expected one tensor of features [n, f]")
    if value.is_nested or value.layout != torch.strided or value.is_quantized or value.is_complex() or value.is_meta:
        raise DataError(f"{path} holds a tensor of {value.dtype} ({value.layout}), expected plain numbers [n, f]")
    if value.ndim != 2 or 0 in value.shape:
        raise DataError(f"{path} holds {tuple(value.shape)}, expected one tensor of features [n, f]")
    stored, declared = value.untyped_storage().nbytes(), value.numel() * value.element_size()
    if declared > stored:
        raise DataError(
            f"{path} declares {' x '.join(map(str, value.shape))} features ({declared:,} bytes), but only {stored:,} "
            "bytes are stored; export the bag again"
        )
    need_memory(path, "features", 4 * value.numel())
    return value.detach().resolve_neg()


def _is_zip(path: Path) -> bool:
    """Whether the tensor can be mapped: files of old torch versions are no zip archives."""
    return path.is_file() and zipfile.is_zipfile(path)


def _find_index(path: Path) -> Path | None:
    beside = (path.with_name(path.stem + suffix) for suffix in INDEX_SUFFIXES)
    return next((index for index in beside if index.is_file()), None)


def _read_index(index: Path, n: int | None) -> tuple[int, np.ndarray]:
    """How many positions an index holds, as its header says, and these [n, 2]; n None: none of them are read."""
    try:
        with ExitStack() as opened:
            stream: Any = opened.enter_context(index.open("rb"))
            if index.suffix == ".npz":
                stream = opened.enter_context(opened.enter_context(zipfile.ZipFile(stream)).open("arr_0.npy"))
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, columns_first, dtype = read(stream)
            if len(shape) != 2 or shape[1] < 2 or min(shape) < 0 or dtype.kind not in "fiu" or shape[1] > 1000:
                raise DataError(f"{index} holds an array of shape {shape} of {dtype}, expected numbers [n, 2]")
            if n is None:
                return shape[0], np.empty((0, 2))
            if shape[0] != n:
                raise DataError(f"{index} holds {shape[0]} positions, expected {n}: one for each row of features")
            data = np.frombuffer(stream.read(dtype.itemsize * shape[0] * shape[1]), dtype)
            coords = data.reshape(shape, order="F" if columns_first else "C")
    except DataError:
        raise
    except Exception as error:  # zip, NumPy's headers and the operating system each have errors of their own
        reason = str(error) or type(error).__name__
        raise DataError(f"{index} cannot be read as an array of positions: {reason[:WORD]}") from None
    return n, np.asarray(coords[:, :2], dtype=np.float64)


def _config(path: Path) -> dict[str, Any]:
    config = path.with_name("bags_config.json")
    return read_object(config, "the settings of slideflow; correct or remove it") if config.is_file() else {}


def _tile_um(path: Path, value: Any) -> float | None:
    """Edge of a tile as ``bags_config.json`` declares it; slideflow also writes magnifications such as '20x'."""
    if value is None or isinstance(value, str):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise DataError(
            f"{path.with_name('bags_config.json')}: tile_um is {shown(value)}, expected micrometres; correct it"
        )
    return float(value)
