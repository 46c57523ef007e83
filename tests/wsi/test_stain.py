from __future__ import annotations

import numpy as np
import pytest
from torchstain.numpy.normalizers import NumpyMacenkoNormalizer

from dasmil.wsi.reader import Slide
from dasmil.wsi.stain import TARGET_STAINS, TARGET_STRENGTH, apply_stains, fit_stains, normalise_tile


@pytest.fixture
def tiles(real_slide):
    with Slide(real_slide) as slide:
        return [slide.read_tile(256 * i, 256 * j, 256, 224) for j, i in ((1, 2), (2, 2), (3, 2), (4, 1), (4, 3))]


def test_agrees_with_torchstain(tiles):
    other = NumpyMacenkoNormalizer()
    for tile in tiles:
        ours, normalised = normalise_tile(tile)
        theirs = other.normalize(tile, stains=False)[0]
        difference = np.abs(ours.astype(int) - theirs)
        assert normalised
        assert ours.dtype == np.uint8
        assert difference.max() <= 1
        assert difference.mean() < 1e-3
        assert np.abs(ours.astype(int) - tile).mean() > 5  # and it does something


def test_recovers_stains_that_were_mixed_with_known_densities():
    rng = np.random.default_rng(0)
    stains = np.array([[0.65, 0.07], [0.70, 0.99], [0.29, 0.11]])
    # Pixels of haematoxylin alone, eosin alone, and both.
    amounts = np.concatenate(
        [
            np.stack([rng.uniform(0.6, 1.2, 5000), np.zeros(5000)]),
            np.stack([np.zeros(5000), rng.uniform(0.6, 1.2, 5000)]),
            rng.uniform(0.3, 0.8, (2, 5000)),
        ],
        axis=1,
    )
    # A trace in every colour, so that no pixel counts as glass.
    pixels = np.clip(np.rint(240 * np.exp(-(stains @ amounts + 0.16)) - 1), 0, 255).astype(np.uint8).T
    fit = fit_stains(pixels)
    assert fit is not None
    expected = stains / np.linalg.norm(stains, axis=0)
    angles = np.degrees(np.arccos(np.clip((fit.stains * expected).sum(axis=0), -1, 1)))
    assert (angles < 12).all()  # haematoxylin first; the trace turns both a little towards grey


def test_a_normalised_tile_has_the_targets_stains(tiles):
    ours, _ = normalise_tile(tiles[1])
    fit = fit_stains(ours)
    assert fit is not None
    target = TARGET_STAINS / np.linalg.norm(TARGET_STAINS, axis=0)
    angles = np.degrees(np.arccos(np.clip((fit.stains * target).sum(axis=0), -1, 1)))
    assert (angles < 5).all()
    assert fit.strength == pytest.approx(TARGET_STRENGTH, rel=0.25)


@pytest.mark.parametrize(
    "tile",
    [
        np.full((64, 64, 3), 255, np.uint8),
        np.full((64, 64, 3), 240, np.uint8),
        np.full((64, 64, 3), (180, 90, 160), np.uint8),
        np.zeros((64, 64, 3), np.uint8),
    ],
)
def test_tiles_without_two_stains_pass_unchanged(tile):
    ours, normalised = normalise_tile(tile)
    assert not normalised
    assert np.array_equal(ours, tile)


def test_a_few_stained_pixels_are_not_enough(tiles):
    tile = np.full((224, 224, 3), 250, np.uint8)
    tile[:10, :10] = tiles[1][:10, :10]
    ours, normalised = normalise_tile(tile)
    assert not normalised
    assert np.array_equal(ours, tile)


def test_one_fit_for_the_slide_keeps_tiles_comparable(tiles):
    fit = fit_stains(np.stack(tiles))
    assert fit is not None
    shared = [apply_stains(tile, fit) for tile in tiles]
    # The same input colour gives the same output colour on every tile, which a fit per tile does not do.
    colour = np.full((8, 8, 3), (150, 80, 150), np.uint8)
    assert np.array_equal(apply_stains(colour, fit)[0, 0], apply_stains(np.tile(colour, (2, 1, 1)), fit)[0, 0])
    own = fit_stains(tiles[0])
    assert own is not None
    assert not np.allclose(own.strength, fit.strength, rtol=0.02)
    assert all(np.abs(s.astype(int) - t).mean() > 3 for s, t in zip(shared, tiles, strict=True))
