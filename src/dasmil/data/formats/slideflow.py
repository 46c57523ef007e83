"""Slideflow bags: ``{slide}.pt`` (a tensor of features) with ``{slide}.index.npz`` (tile centres, level-0 pixels)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dasmil.data.formats.contents import SLIDE_VECTOR, FeatureFile, Probe, agreed, pixel_scale, slide_vector
from dasmil.data.formats.tensors import load_tensor, read_array
from dasmil.data.scale import Scale
from dasmil.errors import WORD, DataError, shown
from dasmil.files import read_object

INDEX_SUFFIXES = (".index.npz", ".index.npy")


def probe_slideflow(path: Path) -> Probe:
    """Tell the size of a slideflow bag (the tensor is mapped, not read) and what ``bags_config.json`` says of it."""
    return _probe(path, load_tensor(path, vector=True), _find_index(path))


def _probe(path: Path, features: Tensor, index: Path | None) -> Probe:
    if features.ndim == 1:
        return Probe(path, SLIDE_VECTOR, n=1, n_coords=1, in_features=features.shape[0])
    config = _config(path)
    extractor = config.get("extractor")
    encoder = extractor.get("class") if isinstance(extractor, dict) else extractor
    return Probe(
        path=path,
        format="slideflow",
        n=features.shape[0],
        n_coords=None if index is None else read_array(index)[0][0],
        in_features=features.shape[1],
        encoder=None if encoder is None else str(encoder)[:WORD],
        tile_um=_tile_um(path, config.get("tile_um")),
    )


def read_slideflow(path: Path, scale: Scale, *, features: bool = True) -> FeatureFile:
    """Read a slideflow bag; slideflow does not store the slide's um/px: it is given, or that of tiles side by side.

    features: False leaves them out.
    """
    stored, index = load_tensor(path, vector=True), _find_index(path)
    probe = _probe(path, stored, index)
    if probe.format == SLIDE_VECTOR:
        return slide_vector(probe, stored.to(torch.float32).numpy()[None] if features else np.empty((1, 0), np.float32))
    if index is None:
        raise DataError(
            f"{path}: no {path.stem}{INDEX_SUFFIXES[0]} beside it, so its instances have no positions; "
            "slideflow writes that file (slide2vec: .coordinates.npz), CLAM's pt_files have none (use its h5_files)"
        )
    coords = read_array(index, rows=probe.n)[1][:, :2]
    tile_um = agreed(path, "tile_um", probe.tile_um, scale.tile_um)
    mpp, source = pixel_scale(path, "slideflow", coords, scale, tile_px=None, declared_um=tile_um)
    with np.errstate(over="ignore"):  # infinite positions are refused by whoever needs them
        centres = (coords * mpp).astype(np.float32)
    return FeatureFile(
        probe=probe,
        features=stored.to(torch.float32).numpy() if features else np.empty((probe.n, 0), np.float32),
        coords=centres,
        tile_um=tile_um,
        mpp=mpp,
        placed=f"slideflow: centre = level-0 px x mpp ({source})",
    )


def _find_index(path: Path) -> Path | None:
    beside = (path.with_name(path.stem + suffix) for suffix in INDEX_SUFFIXES)
    return next((index for index in beside if index.is_file()), None)


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
