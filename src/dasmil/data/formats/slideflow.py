"""Slideflow bags: ``{slide}.pt`` (a tensor of features) with ``{slide}.index.npz`` (tile centres, level-0 pixels)."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dasmil.data.formats.contents import FeatureFile, Probe, agreed, pixel_scale
from dasmil.data.scale import Scale
from dasmil.errors import DataError

INDEX_SUFFIXES = (".index.npz", ".index.npy")


def probe_slideflow(path: Path) -> Probe:
    """Tell the size of a slideflow bag (the tensor is mapped, not read) and what ``bags_config.json`` says of it."""
    features = _load(path)
    coords = _index(path)
    config = _config(path)
    extractor = config.get("extractor")
    encoder = extractor.get("class") if isinstance(extractor, dict) else extractor
    tile_um = config.get("tile_um")
    return Probe(
        path=path,
        format="slideflow",
        n=features.shape[0],
        n_coords=None if coords is None else len(coords),
        in_features=features.shape[1],
        encoder=None if encoder is None else str(encoder),
        tile_um=float(tile_um) if isinstance(tile_um, int | float) else None,
    )


def read_slideflow(path: Path, scale: Scale, *, features: bool = True) -> FeatureFile:
    """Read a slideflow bag; the slide's um/px must be given, because slideflow does not store it.

    features: False leaves them out.
    """
    probe = probe_slideflow(path)
    coords = _index(path)
    if coords is None:
        raise DataError(
            f"{path}: no {path.stem}{INDEX_SUFFIXES[0]} beside it, so its instances have no positions; "
            "slideflow writes that file, CLAM's pt_files have none (use CLAM's h5_files instead)"
        )
    mpp, source = pixel_scale(path, "slideflow", coords, scale, tile_px=None)
    tile_um = agreed(path, "tile_um", probe.tile_um, scale.tile_um)
    return FeatureFile(
        probe=probe,
        features=_load(path).to(torch.float32).numpy() if features else np.empty((probe.n, 0), np.float32),
        coords=(coords * mpp).astype(np.float32),
        tile_um=tile_um,
        mpp=mpp,
        placed=f"slideflow: centre = level-0 px x mpp ({source})",
    )


def _load(path: Path) -> Tensor:
    try:
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError) as error:
        reason = str(error).splitlines()[0][:120]
        raise DataError(f"{path} cannot be read as a plain tensor ({reason}); export the bag again") from None
    if not isinstance(value, Tensor) or value.ndim != 2:
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise DataError(f"{path} holds {found}, expected one tensor of features [n, f]")
    return value


def _is_zip(path: Path) -> bool:
    """Whether the tensor can be mapped: files of old torch versions are no zip archives."""
    return path.is_file() and zipfile.is_zipfile(path)


def _index(path: Path) -> np.ndarray | None:
    for suffix in INDEX_SUFFIXES:
        index = path.with_name(path.stem + suffix)
        if index.is_file():
            try:
                loaded = np.load(index, allow_pickle=False)
                coords = loaded["arr_0"] if suffix.endswith("npz") else loaded
            except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
                raise DataError(f"{index} cannot be read as an array of positions: {error}") from None
            if coords.ndim != 2 or coords.shape[1] < 2:
                raise DataError(f"{index} holds an array of shape {coords.shape}, expected [n, 2]")
            return np.asarray(coords[:, :2], dtype=np.float64)
    return None


def _config(path: Path) -> dict[str, Any]:
    config = path.with_name("bags_config.json")
    if not config.is_file():
        return {}
    try:
        value = json.loads(config.read_text())
    except ValueError as error:
        raise DataError(f"{config} is not valid JSON: {error}") from None
    return value if isinstance(value, dict) else {}
