from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from dasmil.errors import InputError
from dasmil.wsi.config import TissueConfig
from dasmil.wsi.reader import Slide
from dasmil.wsi.tiling import make_grid
from dasmil.wsi.tissue import TissueMask, find_tissue, is_blank, sharpness

UM = 8.0


@pytest.fixture
def glass():
    """4 x 3.2 mm of glass with a piece of tissue of 1.2 x 1.2 mm, and noise as a scanner has it."""
    rng = np.random.default_rng(0)
    picture = np.full((400, 500, 3), (243, 242, 244), np.float32)
    picture[100:250, 150:300] = (205, 130, 180)
    picture[140:200, 200:260] = (140, 80, 160)
    return np.clip(picture + rng.normal(0, 2, picture.shape), 0, 255).astype(np.uint8)


def tissue_box():
    mask = np.zeros((400, 500), bool)
    mask[100:250, 150:300] = True
    return mask


def agreement(found: np.ndarray, expected: np.ndarray) -> float:
    return (found & expected).sum() / (found | expected).sum()


def test_tissue_is_found(glass):
    found = find_tissue(glass, UM, TissueConfig())
    assert agreement(found.mask, tissue_box()) > 0.99


@pytest.mark.parametrize(
    "ink",
    [(40, 140, 70), (30, 60, 170), (200, 30, 40), (20, 20, 22), (20, 150, 150)],
    ids=["green", "blue", "red", "black", "cyan"],
)
def test_pen_is_left_out(glass, ink):
    glass[300:330, 50:400] = ink
    glass[100:115, 150:300] = ink  # over the tissue
    found = find_tissue(glass, UM, TissueConfig()).mask
    assert not found[296:334].any()
    assert not found[101:114, 151:299].any()
    assert found[122:248, 152:298].mean() > 0.99
    if ink != (20, 20, 22):
        kept = find_tissue(glass, UM, TissueConfig(pen=False)).mask
        assert kept[302:328, 55:395].mean() > 0.99


def test_black_borders_and_dust_are_left_out(glass):
    glass[:40] = 3
    glass[:, :30] = (12, 10, 14)
    glass[350:354, 350:354] = (90, 50, 90)  # a coloured speck of 32 um
    glass[360:366, 100:108] = (90, 90, 92)  # grey dust
    assert agreement(find_tissue(glass, UM, TissueConfig()).mask, tissue_box()) > 0.99


def test_white_glass_has_no_tissue():
    rng = np.random.default_rng(1)
    for shade in (255, 243, 225):
        picture = np.clip(shade + rng.normal(0, 2, (200, 200, 3)), 0, 255).astype(np.uint8)
        assert not find_tissue(picture, UM, TissueConfig()).mask.any()


def test_a_picture_full_of_tissue_is_all_tissue():
    picture = np.full((200, 200, 3), (214, 150, 190), np.uint8)
    picture[:, 100:] = (140, 80, 160)
    assert find_tissue(picture, UM, TissueConfig()).mask.all()


def test_holes_and_gaps_follow_their_settings(glass):
    glass[200:210, 160:170] = 243  # 0.0064 mm2
    glass[100:250, 280:283] = 243  # a crack of 24 um
    found = find_tissue(glass, UM, TissueConfig())
    assert agreement(found.mask, tissue_box()) > 0.99
    strict = find_tissue(glass, UM, TissueConfig(close_um=0, max_hole_mm2=0)).mask
    assert not strict[201:209, 161:169].any()
    assert not strict[110:240, 281].any()
    assert not find_tissue(glass, UM, TissueConfig(min_area_mm2=3)).mask.any()


def test_the_real_slide_is_masked_alike_from_its_thumbnail_and_from_its_pixels(real_slide):
    with Slide(real_slide) as slide:
        picture, um = slide.overview(8.0, 1000)
        full = slide.thumbnail(8.0)
    step = 8.0 / um
    rows, columns = ((np.arange(n) * step + step / 2).astype(int) for n in full.shape[:2])
    small = picture[np.minimum(rows, len(picture) - 1)][:, np.minimum(columns, picture.shape[1] - 1)]
    one, other = (find_tissue(p, 8.0, TissueConfig()).mask for p in (small, full))
    assert agreement(one, other) > 0.93
    assert 0.3 < other.mean() < 0.5  # as the picture shows: two fifths of it is tissue


def test_fractions_weigh_pixels_by_overlap():
    mask = np.zeros((10, 10), bool)
    mask[:, 5:] = True
    tissue = TissueMask(mask, 10.0, 0.1)
    x, y = np.array([0.0, 30.0, 50.0, 45.0, 85.0]), np.zeros(5)
    assert tissue.fractions(x, y, 30.0) == pytest.approx([0, 1 / 3, 1, 25 / 30, 0.5])  # the last reaches over the edge
    whole = tissue.fractions(np.array([0.0]), np.array([0.0]), 100.0)
    assert whole == pytest.approx([0.5])


def test_blank_and_sharp(real_slide):
    with Slide(real_slide) as slide:
        tile, empty = slide.read_tile(512, 768, 256, 224), slide.read_tile(0, 1100, 256, 224)
        fine = slide.read_tile(512, 768, 128, 256)
    config = TissueConfig()
    assert is_blank(empty, config)
    assert not is_blank(tile, config)
    um = 256 / 224
    assert sharpness(tile, um) > 300
    assert sharpness(fine, 0.5) > 300
    for sigma_um, limit in ((4.0, 8.0), (8.0, 4.0)):
        for pixels, scale in ((tile, um), (fine, 0.5)):
            blurred = ndimage.gaussian_filter(pixels, (sigma_um / scale, sigma_um / scale, 0))
            assert sharpness(blurred, scale) < limit < config.sharpness


def test_sharpness_is_the_variance_of_the_laplacian():
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, (30, 40), dtype=np.uint8)
    tile = np.repeat(grey[..., None], 3, axis=2)
    kernel = np.array([[0, -1, 0], [-1, 4, -1], [0, -1, 0]])
    expected = ndimage.convolve(grey.astype(float), kernel)[1:-1, 1:-1].var()
    assert sharpness(tile, 1.0) == pytest.approx(expected, rel=1e-4)


def test_the_grid_covers_the_slide():
    grid = make_grid(1024.0, 768.1, 256.0)
    assert (grid.columns, grid.rows, len(grid)) == (4, 3, 12)  # a tenth of a micrometre is rounding
    assert make_grid(1024.0, 770.0, 256.0).rows == 4
    x, y = grid.corners()
    assert (x[5], y[5]) == (256, 256)
    assert grid.centres(np.array([0, 5])).tolist() == [[128, 128], [384, 384]]
    assert make_grid(10, 10, 256).columns == 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"fraction": 1.5}, "fraction is 1.5"),
        ({"saturation_low": 0.5}, "above saturation_high"),
        ({"close_um": -1}, "close_um is -1"),
        ({"mask_um": 0}, "mask_um is 0"),
        ({"blank_level": 300}, "blank_level is 300"),
    ],
)
def test_impossible_settings_are_refused(option, message):
    with pytest.raises(InputError, match=message):
        TissueConfig(**option)


def test_folds_are_left_out_and_dense_tissue_is_not(glass):
    tissue = glass[100:250, 150:300].astype(np.float32)
    band = tissue[20:32]  # about 100 um: light goes through two layers
    glass[120:132, 150:300] = np.round(band**2 / 255)
    kept = find_tissue(glass, UM, TissueConfig(fold=1.9)).mask
    assert kept[122:130, 153:297].mean() < 0.01
    far = np.r_[105:114, 140:245]
    assert kept[far][:, 152:298].mean() > 0.99, "the purple part, 1.8 times as dense as the pink one, counts as tissue"
    assert find_tissue(glass, UM, TissueConfig()).mask[122:130, 153:297].all(), "folds are kept unless asked for"
    with pytest.raises(InputError, match="more than 1"):
        TissueConfig(fold=0.5)
