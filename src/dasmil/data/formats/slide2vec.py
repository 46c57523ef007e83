"""slide2vec tiles: ``{slide}.pt`` (features), hs2p's ``{slide}.coordinates.npz`` (corners) and its ``.meta.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dasmil.data.formats.contents import FeatureFile, Probe, agreed, measured_stride, pixel_scale, shows_stride
from dasmil.data.formats.tensors import load_tensor, read_array
from dasmil.data.scale import Scale
from dasmil.errors import WORD, DataError, shown
from dasmil.files import read_object

COORDINATES = ".coordinates.npz"
_META = ".coordinates.meta.json"
_SPACE = "level0_px"
_TILES = "tile_embeddings"


def find_coordinates(path: Path) -> Path | None:
    """The corners that belong to a tensor: beside it, or for tile_embeddings/ in the folder tiles/ of that output.

    The tiles of one annotated class lie in a folder of its name in both.
    """
    name, folder = path.stem + COORDINATES, path.parent
    places = [folder]
    if folder.name == _TILES:
        places.append(folder.parent / "tiles")
    elif folder.parent.name == _TILES:
        places.append(folder.parent.parent / "tiles" / folder.name)
    return next((place / name for place in places if (place / name).is_file()), None)


def probe_slide2vec(path: Path, coordinates: Path) -> Probe:
    """Tell the size of the tensor (mapped, not read) and what the settings beside it and the corners say."""
    return _probe(path, load_tensor(path), coordinates, _settings(coordinates))


def _probe(path: Path, features: Tensor, coordinates: Path, said: _Settings) -> Probe:
    about = path.with_name(f"{path.stem}.meta.json")
    known = read_object(about, "the settings of slide2vec; correct or remove it") if about.is_file() else {}
    encoder = known.get("encoder_name")
    return Probe(
        path=path,
        format="slide2vec",
        n=features.shape[0],
        n_coords=read_array(coordinates, "x", columns=None)[0][0],
        in_features=features.shape[1],
        encoder=None if encoder is None else str(encoder)[:WORD],
        tile_um=None if said.mpp is None or said.tile_px is None else said.mpp * said.tile_px,
        mpp=said.mpp,
        size_px=said.size_px,
    )


def read_slide2vec(path: Path, coordinates: Path, scale: Scale, *, features: bool = True) -> FeatureFile:
    """Read the tiles of a slide; corners are level-0 pixels, whose size hs2p notes. features: False leaves them out."""
    stored, said = load_tensor(path), _settings(coordinates)
    probe = _probe(path, stored, coordinates, said)
    x, y = (read_array(coordinates, axis, rows=probe.n, columns=None)[1] for axis in ("x", "y"))
    corners = np.stack([x, y], axis=1)
    tile_um = agreed(path, "tile_um", probe.tile_um, scale.tile_um)
    mpp, source = pixel_scale(path, "slide2vec", corners, scale, said.tile_px, said.mpp, tile_um)
    if said.tile_px is not None:
        edge, whence = said.tile_px, "declared"
    elif tile_um is not None:
        edge, whence = tile_um / mpp, "given"
    elif shows_stride(corners):
        edge, whence = measured_stride(corners), "taken from the stride"
    else:
        edge, whence = 0.0, "unknown (too few or scattered tiles), corner used"
    with np.errstate(over="ignore"):  # infinite positions are refused by whoever needs them
        centres = ((corners + edge / 2) * mpp).astype(np.float32)
    return FeatureFile(
        probe=probe,
        features=stored.to(torch.float32).numpy() if features else np.empty((probe.n, 0), np.float32),
        coords=centres,
        tile_um=edge * mpp or None,
        mpp=mpp,
        placed=f"slide2vec: centre = (level-0 px top left + tile/2) x mpp ({source}; tile {edge:g} px {whence})",
    )


class _Settings:
    """What hs2p notes about its tiles: um per level-0 pixel, edge of a tile and size of the slide in such pixels."""

    def __init__(self, path: Path, known: Mapping[str, Any]) -> None:
        self.path = path
        slide, tiling, artifact = (self._part(known, name) for name in ("slide", "tiling", "artifact"))
        space = artifact.get("coordinate_space", _SPACE)
        if space != _SPACE:
            raise DataError(f"{path}: coordinate_space is {shown(space)}, expected {_SPACE!r}: make the tiles again")
        self.mpp = self._number("base_spacing_um", slide.get("base_spacing_um"))
        self.tile_px = self._number("tile_size_lv0", tiling.get("tile_size_lv0"))
        size = slide.get("dimensions")
        sides = size if isinstance(size, list) and len(size) == 2 else (None, None)
        width, height = (self._number("dimensions", side) for side in sides)
        self.size_px = None if width is None or height is None else (width, height)

    def _part(self, known: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        part = known.get(name, {})
        if not isinstance(part, dict):
            raise DataError(f"{self.path}: {name!r} is {shown(part)}, expected an object; make the tiles again")
        return part

    def _number(self, name: str, value: Any) -> float | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise DataError(f"{self.path}: {name} is {shown(value)}, expected a positive number; make the tiles again")
        return float(value)


def _settings(coordinates: Path) -> _Settings:
    path = coordinates.with_name(coordinates.name.removesuffix(COORDINATES) + _META)
    return _Settings(path, read_object(path, "the settings of hs2p; make the tiles again") if path.is_file() else {})
