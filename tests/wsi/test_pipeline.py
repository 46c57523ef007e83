from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from dasmil.data.formats import read_features
from dasmil.data.source import to_bag
from dasmil.data.store import read_bag, read_bag_info
from dasmil.engine.locks import file_lock
from dasmil.errors import InputError
from dasmil.files import json_hash, replacing
from dasmil.wsi import pipeline, qc
from dasmil.wsi.config import ExtractConfig, RunOptions, TissueConfig
from dasmil.wsi.finished import save_features
from dasmil.wsi.pipeline import extract_slide, make_encoder
from dasmil.wsi.reader import Slide
from dasmil.wsi.stain import apply_stains, fit_stains, normalise_tile


def whole(batch: np.ndarray) -> np.ndarray:
    """The tile itself as its features."""
    return batch.reshape(len(batch), -1)


def colour(batch: np.ndarray) -> np.ndarray:
    return batch.mean(axis=(1, 2))


# The made-up scenes have no texture; their edges lie between two pixels of a mask of 4 um.
FLAT = TissueConfig(mask_um=4, sharpness=0, blank_share=0)
SMALL = ExtractConfig(tile_um=64, tile_px=32, stain="none", encoder=whole, dtype="float32", tissue=FLAT)
FORCE = RunOptions(force=True, workers=2)


@pytest.mark.parametrize("mpp", [0.5, 0.25])
def test_a_bag_holds_the_right_tiles_at_the_right_micrometres(made_slide, scene, tmp_path, mpp):
    path = made_slide("made.tif", mpp=mpp, factors=(1, 2, 4, 8))
    result = extract_slide(path, tmp_path / "bags", SMALL)
    assert (result.status, result.reason) == ("done", None)
    bag = read_bag(tmp_path / "bags" / "made.h5")
    # Tiles of 64 um: every one that a shape covers by a tenth or more, and no other.
    expected = []
    for row in range(12):
        for column in range(16):
            covered = (scene(1.0, column * 64, row * 64, 64, 64) != 255).any(axis=2).mean()
            if covered >= 0.1:
                expected.append((column * 64 + 32, row * 64 + 32))
    assert bag.coords.tolist() == [list(map(float, centre)) for centre in expected]
    assert bag.unit == "um"
    assert result.tiles == len(expected) == len(bag)
    for centre, features in zip(expected, bag.features.numpy(), strict=True):
        tile = scene(2.0, centre[0] - 32, centre[1] - 32, 64, 64)
        assert np.array_equal(features.reshape(32, 32, 3), tile)


def test_the_real_slide_with_its_attributes(real_slide, tmp_path):
    config = ExtractConfig(encoder="null", stain="none")
    result = extract_slide(real_slide, tmp_path, config)
    assert (result.status, result.tiles, result.grid_tiles, result.blank, result.out_of_focus) == ("done", 17, 30, 0, 0)
    info = read_bag_info(tmp_path / "CMU-1-Small-Region.h5")
    assert (info.bag_id, info.n, info.feature_shape) == ("CMU-1-Small-Region", 17, (15,))
    with h5py.File(tmp_path / "CMU-1-Small-Region.h5") as file:
        assert file["features"].dtype == np.float16
    data = info.metadata
    assert (data["tile_um"], data["tile_px"], data["mpp"]) == (256, 224, 0.499)
    assert (data["slide_width_px"], data["slide_height_px"]) == (2220, 2967)
    assert (data["encoder"], data["stain"], data["source"]) == ("null", "none", "CMU-1-Small-Region.svs")
    assert data["tissue"] == dataclasses.asdict(TissueConfig())
    assert data["config_hash"] == json_hash(data["config"])
    assert data["source_fingerprint"].startswith("sampled-sha256:")
    assert data["dasmil_version"]
    # Null features begin with the mean colour.
    bag = read_bag(tmp_path / "CMU-1-Small-Region.h5")
    with Slide(real_slide) as slide:
        for (x, y), features in zip(bag.coords.tolist(), bag.features.numpy(), strict=True):
            mean = slide.read_tile(x - 128, y - 128, 256, 224).mean(axis=(0, 1)) / 255
            assert features[:3] == pytest.approx(mean, abs=1e-3)


@pytest.mark.parametrize("stain", ["macenko", "macenko-slide"])
def test_tiles_are_normalised_before_they_are_encoded(real_slide, tmp_path, stain):
    config = ExtractConfig(encoder=colour, stain=stain, dtype="float32")
    assert extract_slide(real_slide, tmp_path, config).status == "done"
    bag = read_bag(tmp_path / "CMU-1-Small-Region.h5")
    with Slide(real_slide) as slide:
        tiles = [slide.read_tile(x - 128, y - 128, 256, 224) for x, y in bag.coords.tolist()]
    fit = fit_stains(np.stack(tiles))
    assert fit is not None
    for tile, features in zip(tiles, bag.features.numpy(), strict=True):
        expected = normalise_tile(tile)[0] if stain == "macenko" else apply_stains(tile, fit)
        assert features == pytest.approx(expected.mean(axis=(0, 1)), abs=1e-3)


def test_workers_and_batches_do_not_change_the_result(real_slide, tmp_path):
    found = []
    for workers, batch in ((1, 1), (3, 5), (2, 64)):
        folder = tmp_path / f"{workers}-{batch}"
        config = ExtractConfig(encoder="null", stain="macenko")
        extract_slide(real_slide, folder, config, options=RunOptions(workers=workers, batch_size=batch))
        bag = read_bag(folder / "CMU-1-Small-Region.h5")
        found.append((bag.features.numpy(), bag.coords.numpy(), bag.metadata["config_hash"]))
    for features, coords, name in found[1:]:
        assert np.array_equal(features, found[0][0])
        assert np.array_equal(coords, found[0][1])
        assert name == found[0][2]


def test_finished_slides_are_skipped_and_others_need_force(made_slide, tmp_path):
    path, out = made_slide("a.tif", factors=(1, 4)), tmp_path / "bags"
    assert extract_slide(path, out, SMALL).status == "done"
    before = (out / "a.h5").stat().st_mtime_ns
    again = extract_slide(path, out, SMALL)
    assert (again.status, again.tiles > 0, again.mpp) == ("skipped", True, 0.5)
    assert (out / "a.h5").stat().st_mtime_ns == before
    other = dataclasses.replace(SMALL, tile_um=128.0, tile_px=64)
    refused = extract_slide(path, out, other)
    assert refused.status == "failed"
    assert "made with other settings; use --force" in (refused.reason or "")
    assert read_bag_info(out / "a.h5").metadata["tile_um"] == 64
    assert extract_slide(path, out, other, options=FORCE).status == "done"
    assert read_bag_info(out / "a.h5").metadata["tile_um"] == 128
    made_slide("a.tif", factors=(1, 2))
    assert "made from another file" in (extract_slide(path, out, other).reason or "")
    (out / "a.h5").write_bytes(b"junk")
    assert "damaged" in (extract_slide(path, out, other).reason or "")


CHANGES = {
    "tile_um": 100.0,
    "tile_px": 200,
    "stain": "macenko-slide",
    "encoder": "other",
    "mpp": 0.3,
    "dtype": "float32",
    "format": "clam",
    "tissue": TissueConfig(fraction=0.3),
    "roi": "a.geojson",
    "roi_class": "Tumor",
    "exclude": "a.geojson",
    "exclude_class": "Tumor",
    "masks": "a.png",
}


def test_the_hash_covers_every_setting():
    def name(config: ExtractConfig) -> str:
        return json_hash(config.described(str(config.encoder), "sha", config.tile_px or 224))

    base = ExtractConfig()
    assert {field.name for field in dataclasses.fields(base)} == {
        *CHANGES,
        "weights",
    }  # weights count by their checksum
    names = [name(dataclasses.replace(base, **{key: value})) for key, value in CHANGES.items()]
    for field in dataclasses.fields(TissueConfig):
        value = getattr(base.tissue, field.name)
        changed = not value if isinstance(value, bool) else type(value)(value * 0.5) if value else 1.5
        names.append(name(dataclasses.replace(base, tissue=dataclasses.replace(base.tissue, **{field.name: changed}))))
    assert len({name(base), *names}) == 1 + len(names)
    assert json_hash(base.described("e", "one", 224)) != json_hash(base.described("e", "two", 224))


@pytest.mark.parametrize("format", ["stamp", "trident", "clam"])
def test_other_layouts_are_skipped_when_finished_too(made_slide, tmp_path, format):
    path, out = made_slide("a.tif"), tmp_path / "bags"
    config = dataclasses.replace(SMALL, format=format)
    assert extract_slide(path, out, config).status == "done"
    with h5py.File(out / "a.h5") as file:
        features = file["feats" if format == "stamp" else "features"][:]
        assert file.attrs["dasmil_config_hash"]
    assert len(features) == extract_slide(path, out, config).tiles
    # The scale is in the file, so that nobody has to give it again.
    foreign = to_bag(read_features(out / "a.h5"), "a")
    assert extract_slide(path, tmp_path / "own", SMALL).status == "done"
    np.testing.assert_allclose(foreign.coords, read_bag(tmp_path / "own" / "a.h5").coords, atol=0.5)
    assert foreign.metadata["tile_um"] == SMALL.tile_um
    assert extract_slide(path, out, config).status == "skipped"
    assert extract_slide(path, out, SMALL).status == "failed"


def test_a_white_slide_fails_with_its_reason_and_a_picture(tmp_path):
    Image.new("RGB", (800, 600), (243, 243, 243)).save(tmp_path / "white.png", dpi=(50_800, 50_800))
    result = extract_slide(tmp_path / "white.png", tmp_path / "bags", SMALL)
    assert result.status == "failed"
    assert "no tissue was found" in (result.reason or "")
    assert not (tmp_path / "bags" / "white.h5").exists()
    assert (tmp_path / "bags" / "qc" / "white.jpg").is_file()


def test_blank_and_blurred_tiles_are_dropped_and_counted(tmp_path, scene):
    rng = np.random.default_rng(0)
    pixels = np.full((1024, 1024, 3), 244, np.uint8)
    sharp = np.clip(np.array((190, 110, 160)) + rng.normal(0, 25, (512, 512, 1)), 0, 255)
    pixels[:512, :512] = sharp
    pixels[512:, 512:] = (200, 140, 180)  # tissue without an edge
    pixels[:512, 512:] = (236, 222, 240)  # hardly stained
    Image.fromarray(pixels).save(tmp_path / "s.png", dpi=(50_800, 50_800))
    config = ExtractConfig(
        tile_um=128, tile_px=128, stain="none", encoder=colour, tissue=TissueConfig(saturation_high=0.06)
    )
    result = extract_slide(tmp_path / "s.png", tmp_path, config)
    assert (result.tiles, result.blank, result.out_of_focus, result.grid_tiles) == (4, 4, 4, 16)
    assert read_bag(tmp_path / "s.h5").coords.tolist() == [[64, 64], [192, 64], [64, 192], [192, 192]]


def test_bad_slides_are_results_not_exceptions(tmp_path, real_slide):
    (tmp_path / "cut.svs").write_bytes(real_slide.read_bytes()[:500_000])
    result = extract_slide(tmp_path / "cut.svs", tmp_path / "bags", SMALL)
    assert result.status == "failed"
    assert "cut.svs" in (result.reason or "")

    def broken(batch: np.ndarray) -> np.ndarray:
        if len(batch) > 1:
            raise ZeroDivisionError("in the encoder")
        return batch.mean(axis=(1, 2))

    result = extract_slide(real_slide, tmp_path / "bags", ExtractConfig(encoder=broken, stain="none"))
    assert "ZeroDivisionError: in the encoder" in (result.reason or "")
    assert not list((tmp_path / "bags").glob("*.h5"))
    assert not list((tmp_path / "bags").glob(".*.tmp"))


def test_features_too_large_for_their_type_are_refused(real_slide, tmp_path):
    config = ExtractConfig(encoder=lambda batch: colour(batch) * 1e4, stain="none")
    assert "too large for float16" in (extract_slide(real_slide, tmp_path, config).reason or "")
    assert extract_slide(real_slide, tmp_path, dataclasses.replace(config, dtype="float32")).status == "done"


def test_a_locked_slide_is_left_to_its_holder(made_slide, tmp_path):
    path, out = made_slide("a.tif", factors=(1, 4)), tmp_path / "bags"
    out.mkdir()
    (out / ".a.lock").touch()  # left by a process that died: no lock is on it
    leftover = out / ".a.h5.0123456789ab.tmp"
    leftover.write_bytes(b"half a file")
    with file_lock(out / ".a.lock") as state:
        assert state == "held"
        assert extract_slide(path, out, SMALL).status == "busy"
        assert leftover.exists()
    assert extract_slide(path, out, SMALL).status == "done"
    assert not leftover.exists()
    assert not (out / ".a.lock").exists()


def test_disks_without_locks_are_said(monkeypatch, made_slide, tmp_path):
    import fcntl

    def refuse(*args: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    result = extract_slide(made_slide("a.tif", factors=(1, 4)), tmp_path / "bags", SMALL)
    assert result.status == "done"
    assert "no file locks" in result.warnings[0]


def test_the_picture_shows_kept_and_dropped_tiles(made_slide, tmp_path):
    config = dataclasses.replace(SMALL, tile_um=128.0, tile_px=32, tissue=dataclasses.replace(FLAT, sharpness=2.0))
    result = extract_slide(made_slide("a.tif"), tmp_path / "bags", config)
    assert result.qc is not None
    picture = np.asarray(Image.open(result.qc)).astype(int)
    um = 1024 / qc.LONG_SIDE

    def at(x_um: float, y_um: float) -> np.ndarray:
        x, y = round(qc.MARGIN + x_um / um), round(qc.HEADER + y_um / um)
        return picture[y - 1 : y + 2, x - 1 : x + 2].mean(axis=(0, 1))

    bag = read_bag(tmp_path / "bags" / "a.h5")
    kept = {(int(x) // 128, int(y) // 128) for x, y in bag.coords.tolist()}
    assert (0, 0) in kept
    assert (7, 0) not in kept
    pink = np.array((214, 120, 170))
    assert at(20, 20) == pytest.approx(255 * 0.84375 + np.array(qc.BLUE) * 0.15625, abs=6)  # glass in a kept tile
    assert at(1000, 20) == pytest.approx([255, 255, 255], abs=4)  # glass in no tile
    assert at(120, 100) == pytest.approx(pink * 0.84375 + np.array(qc.BLUE) * 0.15625, abs=8)
    # Tile (5, 3) is plain pink, so it was dropped as out of focus: orange over pink.
    assert (5, 3) not in kept
    assert result.out_of_focus > 0
    top, left = round(qc.HEADER + 400 / um), round(qc.MARGIN + 660 / um)
    area = picture[top : top + 90, left : left + 90].mean(axis=(0, 1))
    assert area[0] > area[2] + 40  # more red than blue: orange
    # The outline of the mask is drawn on the left edge of the first shape, at 100 um.
    x = round(qc.MARGIN + 100 / um)
    assert picture[qc.HEADER + round(200 / um), x - 9 : x + 10].sum(axis=1).min() < 250
    # A scale bar of 100 um: a black line of that length at the bottom right.
    row = (picture[-20:, :, :].max(axis=2) < 90).sum(axis=1).max()
    assert row == pytest.approx(100 / um, abs=3)


def test_encoders_by_function_or_name():
    encoder = make_encoder(ExtractConfig(encoder=colour, tile_px=64))
    assert (encoder.dim, encoder.input_px) == (3, 64)
    assert encoder.name.endswith(":colour")
    assert len(encoder.sha256) == 64
    assert make_encoder(ExtractConfig(encoder="null"), RunOptions(batch_size=7)).batch_size == 7
    with pytest.raises(InputError, match="brings its own"):
        make_encoder(ExtractConfig(encoder=colour, weights=Path("w.pth")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile_um": 0}, "tile_um is 0"),
        ({"tile_px": 3}, "tile_px is 3"),
        ({"stain": "makenko"}, "Did you mean 'macenko'"),
        ({"format": "stam"}, "Did you mean 'stamp'"),
        ({"mpp": 50}, "mpp is 50"),
        ({"tile_um": float("inf")}, "tile_um is inf"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        ExtractConfig(**options)


@pytest.mark.parametrize("name", ["mask_um", "close_um", "min_area_mm2", "max_hole_mm2", "sharpness", "fraction"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_tissue_settings_that_are_no_numbers_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} is"):
        TissueConfig(**{name: value})


@pytest.mark.parametrize("by_tifffile", [True, False])
def test_damaged_pixels_are_a_fault_of_the_file_and_not_tried_again(real_slide, tmp_path, by_tifffile, monkeypatch):
    content = bytearray(real_slide.read_bytes())
    content[600_000:900_000] = np.random.default_rng(0).bytes(300_000)
    (tmp_path / "hurt.svs").write_bytes(content)
    if not by_tifffile:  # OpenSlide alone
        monkeypatch.setattr("dasmil.wsi.tiff_source.TiffSource", None)
    # raise_unexpected: only what is known to be wrong with the slide becomes a result.
    result = extract_slide(tmp_path / "hurt.svs", tmp_path / "bags", SMALL, raise_unexpected=True)
    assert result.status == "failed"
    assert "cannot be decoded" in (result.reason or "")
    assert "copy it again" in (result.reason or "")


@pytest.mark.parametrize("format", ["dasmil", "stamp"])
def test_bags_made_without_pictures_are_counted_when_skipped(made_slide, tmp_path, format):
    config = dataclasses.replace(SMALL, format=format, encoder=colour, dtype="float16")
    first = extract_slide(made_slide(), tmp_path / "bags", config, options=RunOptions(qc=False))
    again = extract_slide(made_slide(), tmp_path / "bags", config, options=RunOptions(qc=False))
    assert (first.status, again.status) == ("done", "skipped")
    assert again.tiles == first.tiles > 0
    assert again.mpp == 0.5


def test_a_run_that_dies_right_after_a_bag_was_written_has_told_its_counts(made_slide, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def last_act(*given: Any) -> None:
        save_features(*given)
        raise Killed

    whole = extract_slide(made_slide(), tmp_path / "whole", SMALL)
    monkeypatch.setattr(pipeline, "save_features", last_act)
    with pytest.raises(Killed):
        extract_slide(made_slide(), tmp_path / "bags", SMALL)
    again = extract_slide(made_slide(), tmp_path / "bags", SMALL)
    assert again.status == "skipped"
    counts = [(r.tiles, r.grid_tiles, r.blank, r.reader, r.mpp_origin) for r in (whole, again)]
    assert counts[0] == counts[1]
    notes = [json.loads((tmp_path / name / f"qc/{whole.slide}.json").read_text()) for name in ("whole", "bags")]
    assert notes[0]["status"] == notes[1]["status"] == "done"
    assert notes[0]["grid_tiles"] == notes[1]["grid_tiles"] == whole.grid_tiles


def test_a_full_disk_is_said_and_leaves_nothing(made_slide, tmp_path, monkeypatch):
    def full(checked: object, path: Path) -> None:
        with replacing(path):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(qc, "save", full)
    result = extract_slide(made_slide(), tmp_path / "bags", SMALL)
    assert result.status == "failed"
    assert "the disk is full" in (result.reason or "")
    assert result.bag is None
    assert not [p for p in (tmp_path / "bags").rglob("*") if p.is_file()]
