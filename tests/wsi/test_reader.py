from __future__ import annotations

import os
import random
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from dasmil.errors import DataError, MissingDependencyError
from dasmil.wsi import reader, tiff_source
from dasmil.wsi.reader import Slide, fingerprint
from dasmil.wsi.sources import OpenSlideSource, PictureSource, true_downsample
from dasmil.wsi.tiff_source import AgreedSource, TiffSource, open_with_openslide


@pytest.mark.parametrize("mpp", [0.5, 0.25])
@pytest.mark.parametrize("um_per_px", [0.5, 1.0, 2.0])
def test_tiles_show_the_shapes_at_their_micrometres_to_the_pixel(made_slide, scene, mpp, um_per_px):
    with Slide(made_slide(mpp=mpp, factors=(1, 2, 4, 8))) as slide:
        assert slide.mpp == pytest.approx(mpp, rel=1e-6)
        assert (slide.width_um, slide.height_um) == pytest.approx((1024, 768))
        for x, y in [(0, 0), (128, 96), (512, 256), (800, 480)]:
            tile = slide.read_tile(x, y, 128 * um_per_px, 128)
            assert np.array_equal(tile, scene(um_per_px, x, y, 128 * um_per_px, 128 * um_per_px))


@pytest.mark.parametrize("mpp", [0.5, 0.25])
def test_a_slide_of_one_level_is_shrunk_to_the_same_places(made_slide, scene, mpp):
    with Slide(made_slide(mpp=mpp, factors=(1,))) as slide:
        tile = slide.read_tile(96, 64, 256, 256)
    expected = scene(1.0, 96, 64, 256, 256)
    assert np.array_equal(tile[..., 1] < 188, expected[..., 1] < 188)  # halfway between pink and white
    assert np.array_equal(tile[..., 1] < 90, expected[..., 1] < 90)  # halfway between pink and purple
    same = (tile == expected).all(axis=2)
    assert same.mean() > 0.9  # all but the pixels beside an edge
    assert tile.mean() == pytest.approx(expected.mean(), abs=0.05)


def test_tiles_that_do_not_fall_on_whole_pixels_keep_their_place(made_slide, scene):
    with Slide(made_slide(mpp=0.5, factors=(1,))) as slide:
        tile = slide.read_tile(93.3, 51.7, 224 * 1.143, 224)
    x = 93.3 + (np.arange(224) + 0.5) * 1.143
    y = 51.7 + (np.arange(224) + 0.5) * 1.143
    inside = ((y >= 60) & (y < 380))[:, None] & ((x >= 100) & (x < 420))[None, :]
    off = (tile[..., 1] < 188) != inside
    assert off.sum() == 0


def test_the_coarsest_level_that_is_fine_enough_is_read(made_slide):
    with Slide(made_slide(mpp=0.25)) as slide:
        assert [level.downsample for level in slide.levels] == [1, 2, 4]
        assert [slide.best_level(um) for um in (0.1, 0.25, 0.4, 0.5, 0.9, 1.0, 3.0)] == [0, 0, 0, 1, 1, 2, 2]


def test_outside_the_slide_is_white(made_slide, scene):
    with Slide(made_slide()) as slide:
        tile = slide.read_tile(960, 704, 128, 128)
        assert (tile[64:] == 255).all()
        assert (tile[:, 64:] == 255).all()
        corner = slide.read_tile(36, -4, 128, 128)
    assert np.array_equal(corner[64:, 64:], scene(1.0, 100, 60, 64, 64))
    assert (corner[:4] == 255).all()


def test_a_thumbnail_is_the_whole_slide(made_slide, scene):
    with Slide(made_slide()) as slide:
        assert np.array_equal(slide.thumbnail(2.0), scene(2.0))
        assert slide.thumbnail(7.0).shape == (110, 147, 3)


def test_the_rounding_of_a_levels_size_is_not_taken_for_its_scale():
    assert true_downsample((2220, 2967), (555, 741)) == 4.0
    assert true_downsample((2220, 2967), (555, 742)) == 4.0
    assert true_downsample((1000, 1000), (400, 400)) == 2.5


LOSSLESS = {
    "jpeg-strips.tif": {"rowsperstrip": 32, "compression": "lzw"},
    "one-strip.tif": {},
    "tiled.tif": {"tile": (64, 64), "compression": "deflate"},
    "planar.tif": {"tile": (64, 64), "planarconfig": "separate"},
}


@pytest.mark.parametrize(
    "name", [*LOSSLESS, "picture.png", "channels.ome.tif", "levels.ome.tif", "sub.tif", "rgba.tif"]
)
def test_every_format_gives_the_same_pixels(tmp_path, scene, name):
    pixels, path = scene(0.5), tmp_path / name
    scale = {"resolution": (20_000, 20_000), "resolutionunit": "CENTIMETER"}
    size = {"PhysicalSizeX": 500, "PhysicalSizeXUnit": "nm", "PhysicalSizeY": 0.0005, "PhysicalSizeYUnit": "mm"}
    if name == "picture.png":
        Image.fromarray(pixels).save(path, dpi=(50_800, 50_800))
    elif name == "channels.ome.tif":
        planes = np.moveaxis(pixels, -1, 0)
        tifffile.imwrite(path, planes, photometric="minisblack", tile=(64, 64), metadata={"axes": "CYX", **size})
    elif name in ("levels.ome.tif", "sub.tif"):
        ome = name.endswith(".ome.tif")
        with tifffile.TiffWriter(path, ome=ome) as file:
            options = {"photometric": "rgb", "tile": (64, 64), "compression": "deflate"}
            metadata = {"axes": "YXS", **size} if ome else None
            file.write(pixels, subifds=1, metadata=metadata, **options, **({} if ome else scale))
            file.write(scene(1.0), subfiletype=1, **options)
    elif name == "rgba.tif":
        alpha = np.full((*pixels.shape[:2], 1), 255, np.uint8)
        alpha[:100] = 0
        four = np.concatenate([pixels, alpha], axis=2)
        tifffile.imwrite(path, four, photometric="rgb", extrasamples=["unassalpha"], rowsperstrip=16, **scale)
        pixels = pixels.copy()
        pixels[:100] = 255
    else:
        array = np.moveaxis(pixels, -1, 0) if name == "planar.tif" else pixels
        tifffile.imwrite(path, np.ascontiguousarray(array), photometric="rgb", **LOSSLESS[name], **scale)
    with Slide(path) as slide:
        assert slide.mpp == pytest.approx(0.5, rel=1e-5)
        assert np.array_equal(slide.read_tile(0, 0, 256, 512), pixels[:512, :512])
        assert np.array_equal(slide.read_tile(512, 300, 256, 512), pixels[600:1112, 1024:1536])
        if name in ("levels.ome.tif", "sub.tif"):
            assert [level.downsample for level in slide.levels] == [1, 2]
            assert np.array_equal(slide.read_tile(512, 300, 256, 256), scene(1.0, 512, 300, 256, 256))


def test_grey_and_inverted_tiff(tmp_path, scene):
    grey = scene(0.5)[..., 1]
    for name, photometric, stored in (("grey.tif", "minisblack", grey), ("inverted.tif", "miniswhite", 255 - grey)):
        tifffile.imwrite(tmp_path / name, stored, photometric=photometric, rowsperstrip=16)
        with Slide(tmp_path / name, mpp=0.5) as slide:
            assert np.array_equal(slide.read_tile(0, 0, 256, 512), np.repeat(grey[:512, :512, None], 3, axis=2))


def test_jpeg_needs_mpp_and_reads_close(tmp_path, scene):
    path = tmp_path / "photo.jpg"
    Image.fromarray(scene(0.5)).save(path, quality=95, subsampling=0)
    with pytest.raises(DataError, match=r"photo.jpg.*--mpp .*--mpp-table"):
        Slide(path)
    with Slide(path, mpp=0.5) as slide:
        found, expected = slide.read_tile(64, 32, 256, 512).astype(int), scene(0.5, 64, 32, 256, 256)
    assert np.abs(found - expected).mean() < 1


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        (np.zeros((64, 64), np.uint16), {"photometric": "minisblack"}, "uint16, expected 8 bits"),
        (np.zeros((5, 64, 64), np.uint8), {"photometric": "minisblack", "metadata": {"axes": "CYX"}}, "axes"),
    ],
)
def test_pictures_that_are_not_rgb_are_refused(tmp_path, array, options, message):
    path = tmp_path / "strange.ome.tif"
    tifffile.imwrite(path, array, **options)
    with pytest.raises(DataError, match=message):
        Slide(path, mpp=0.5)


def test_broken_files_say_what_is_wrong(tmp_path, real_slide):
    (tmp_path / "empty.svs").touch()
    (tmp_path / "text.svs").write_text("not a slide")
    (tmp_path / "short.svs").write_bytes(real_slide.read_bytes()[:900_000])
    (tmp_path / "short.png").write_bytes(b"\x89PNG\r\n\x1a\n1234")
    for name, message in {
        "empty.svs": "the file is empty",
        "text.svs": "cannot be read as a slide .*OpenSlide",
        "short.svs": "truncated",
        "short.png": "cannot be read as a slide .*Pillow",
        "absent.svs": "no such file",
    }.items():
        with pytest.raises(DataError, match=message) as error:
            Slide(tmp_path / name)
        assert name in str(error.value)
    with pytest.raises(DataError, match="is a folder"):
        Slide(tmp_path)


def test_a_file_that_ends_in_the_middle_of_its_pixels_fails_when_they_are_read(tmp_path, scene):
    path = tmp_path / "cut.tif"
    tifffile.imwrite(path, scene(0.5), photometric="rgb", rowsperstrip=16)  # directory first, pixels after it
    path.write_bytes(path.read_bytes()[:-100_000])
    with Slide(path, mpp=0.5) as slide:
        slide.read_tile(0, 0, 64, 128)
        with pytest.raises(DataError, match="truncated"):
            slide.read_tile(0, 704, 64, 128)


def test_openslide_missing_is_one_clear_error(monkeypatch, real_slide):
    monkeypatch.setitem(sys.modules, "openslide", None)
    with pytest.raises(MissingDependencyError, match=r"dasmil\[slides\]"):
        Slide(real_slide)


def test_the_real_slide(real_slide):
    with Slide(real_slide) as slide:
        assert (slide.width, slide.height, slide.mpp, slide.mpp_origin) == (2220, 2967, 0.499, "openslide.mpp-x, mpp-y")
        assert slide.reader == "openslide + tifffile"
        tile = slide.read_tile(512, 512, 256, 224)
    import openslide

    with openslide.OpenSlide(str(real_slide)) as bare:
        region = bare.read_region((1026, 1026), 0, (514, 514)).convert("RGB")
    left = 512 / 0.499 - 1026
    box = (left, left, left + 256 / 0.499, left + 256 / 0.499)
    expected = np.asarray(region.resize((224, 224), Image.Resampling.BILINEAR, box=box))
    assert np.abs(tile.astype(int) - expected).max() <= 1


def test_both_decoders_give_the_same_pixels(real_slide, made_slide):
    for path in (real_slide, made_slide(mpp=0.25)):
        agreed, openslide = open_with_openslide(path), OpenSlideSource(path)
        assert isinstance(agreed, AgreedSource)
        for index, level in enumerate(agreed.levels):
            for x, y in [
                (0, 0),
                (level.width // 3, level.height // 2),
                (level.width - 100, level.height - 50),
                (-30, -9),
            ]:
                ours, theirs = agreed.read(index, x, y, 200, 200)[0], openslide.read(index, x, y, 200, 200)[0]
                assert np.array_equal(np.asarray(ours), np.asarray(theirs))
        agreed.close()
        openslide.close()


def test_where_the_decoders_differ_openslide_reads(monkeypatch, real_slide):
    read = TiffSource.read

    def inverted(self, *args):
        image, x, y = read(self, *args)
        return Image.fromarray(255 - np.asarray(image)), x, y

    monkeypatch.setattr(tiff_source.TiffSource, "read", inverted)
    source = open_with_openslide(real_slide)
    assert isinstance(source, OpenSlideSource)
    source.close()


def test_openslide_alone_reads_levels_with_odd_factors_at_their_place(monkeypatch, tmp_path, scene):
    monkeypatch.setattr(reader, "open_with_openslide", OpenSlideSource)
    path = tmp_path / "odd.tif"
    with tifffile.TiffWriter(path) as file:
        for um in (0.5, 2.0):
            pixels = scene(um)[: round(765 / um), : round(1021 / um)]  # 2042 x 1530 px: a quarter of it is 510.5
            scale = {"resolution": (1e4 / um, 1e4 / um), "resolutionunit": "CENTIMETER", "subfiletype": int(um > 1)}
            file.write(pixels, tile=(64, 64), photometric="rgb", compression="deflate", metadata=None, **scale)
    with Slide(path) as slide:
        assert slide.levels[1].downsample == 4.0
        assert not slide.levels[1].exact
        tile = slide.read_tile(768, 448, 224, 112)
    assert np.array_equal(tile[..., 1] < 188, scene(2.0, 768, 448, 224, 224)[..., 1] < 188)


def test_the_files_own_thumbnail_is_taken_only_if_it_shows_the_slide(monkeypatch, real_slide):
    with Slide(real_slide) as slide:
        picture, um = slide.overview(8.0, 1000)
        assert um == pytest.approx(1.93, abs=0.01)  # 574 x 768 px in the file
        real = slide.thumbnail(um)
        assert np.abs(picture.astype(int) - real[: len(picture), : picture.shape[1]]).mean() < 6
        embedded = slide._source.embedded()
        assert embedded is not None
        monkeypatch.setattr(slide._source, "embedded", lambda: embedded.transpose(Image.Transpose.ROTATE_180))
        turned, um = slide.overview(8.0, 1000)
        assert um == pytest.approx(2967 * 0.499 / 1000)
        assert np.abs(turned[::2, ::2].astype(int) - slide.thumbnail(um)[::2, ::2]).max() == 0


def test_a_fingerprint_follows_the_content_not_the_name(tmp_path, real_slide):
    data = real_slide.read_bytes()
    copy, other = tmp_path / "copy.svs", tmp_path / "other.svs"
    copy.write_bytes(data)
    other.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert fingerprint(copy) == fingerprint(real_slide)
    assert fingerprint(other) != fingerprint(real_slide)


def test_pictures_too_large_to_decode_are_refused(monkeypatch, tmp_path: Path):
    Image.new("RGB", (400, 300)).save(tmp_path / "large.png")
    monkeypatch.setattr("dasmil.wsi.sources.MAX_PICTURE_PIXELS", 100_000)
    with pytest.raises(DataError, match="400 x 300 px in one PNG"):
        PictureSource(tmp_path / "large.png")


def test_a_block_that_two_threads_decode_is_counted_once(tmp_path, scene):
    tifffile.imwrite(tmp_path / "a.tif", scene(0.5), tile=(256, 256), photometric="rgb", compression="zlib")
    source = TiffSource(tmp_path / "a.tif")
    page = source._pages[0][0].keyframe
    decode, both = page.decode, threading.Barrier(2)

    def together(*arguments, **options):
        both.wait(60)  # neither has put it into the cache yet
        return decode(*arguments, **options)

    page.decode = together
    with ThreadPoolExecutor(2) as pool:
        first, second = (np.asarray(image) for image, _, _ in pool.map(lambda _: source.read(0, 0, 0, 99, 99), (1, 2)))
    assert np.array_equal(first, second)
    assert source._cached_bytes == sum(block.nbytes for block in source._cache.values()) == 256 * 256 * 3
    source.close()


def tiff(width: int, height: int, tile: int, blocks: int) -> bytes:
    """A tiled TIFF that declares whatever it is told to; all its blocks are empty."""
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 2), (277, 3, 1, 3)]
    entries += [(322, 4, 1, tile), (323, 4, 1, tile), (324, 4, blocks, 200), (325, 4, blocks, 200 + 4 * blocks)]
    data = b"II*\0" + struct.pack("<IH", 8, len(entries))
    data += b"".join(struct.pack("<HHII", *entry) for entry in entries) + struct.pack("<I", 0)
    return data.ljust(200, b"\0") + bytes(8 * blocks)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (tiff(400_000, 400_000, 256, 16), "has 2,442,969 blocks, but the file lists 16"),
        (tiff(200_000, 200_000, 4096, 2401), "has no data in any block"),
        (tiff(1000, 1000, 2**31 - 1, 2), r"blocks are declared as 2,147,483,647 x 2,147,483,647 pixels"),
        (tiff(1000, 1000, 0, 2), "blocks are declared as 0 x 0 pixels"),
    ],
)
def test_directories_that_contradict_themselves_are_refused_before_decoding(
    data: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "slide.svs").write_bytes(data)
    with pytest.raises(DataError, match=message):
        Slide(tmp_path / "slide.svs")


def test_a_pipe_is_no_slide(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slide.svs")
    with pytest.raises(DataError, match="is a device or a pipe, expected a slide file"):
        Slide(tmp_path / "slide.svs")


def test_damaged_slides_are_clear_errors(tmp_path: Path) -> None:
    data = (Path(__file__).parents[1] / "data/CMU-1-Small-Region.svs").read_bytes()
    for i in range(12):
        r = random.Random(i)
        spoiled = bytearray(data)
        start = r.choice((0, len(data) - 4000, r.randrange(len(data) - 4000)))
        for _ in range(r.choice((1, 8, 64))):
            spoiled[start + r.randrange(4000)] = r.randrange(256)
        (tmp_path / "slide.svs").write_bytes(spoiled[: r.randrange(len(data)) if i % 3 == 0 else None])
        try:
            with Slide(tmp_path / "slide.svs", 0.5) as slide:
                slide.read_tile(0, 0, 256, 64)
        except DataError as error:
            message = str(error)
        else:
            message = ""
        assert "\n" not in message


def test_a_thumbnail_that_cannot_be_decoded_is_one_clear_error(made_slide, monkeypatch):
    with Slide(made_slide(factors=(1,))) as slide:

        def broken() -> None:
            raise RuntimeError("TIFFRGBAImageGet failed")

        monkeypatch.setattr(slide._source, "embedded", broken)
        with pytest.raises(DataError, match=r"its own thumbnail cannot be decoded \(TIFFRGBAImageGet failed\)"):
            slide.overview(8.0, 256)
