"""A small DICOM slide, written by hand (VL Whole Slide Microscopy, JPEG frames), goes the whole way."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dasmil.data.store import read_bag
from dasmil.wsi.batch import extract
from dasmil.wsi.config import ExtractConfig, TissueConfig
from dasmil.wsi.reader import Slide

SLIDE_CLASS, JPEG = "1.2.840.10008.5.1.4.1.1.77.1.6", "1.2.840.10008.1.2.4.50"
TILE = 128


def element(group: int, number: int, kind: str, value: str | int | bytes) -> bytes:
    if isinstance(value, int):
        value = struct.pack({"US": "<H", "UL": "<I"}[kind], value)
    data = value.encode() if isinstance(value, str) else value
    data += (b"\0" if kind == "UI" else b" ") * (len(data) % 2)
    size = struct.pack("<HI", 0, len(data)) if kind in ("OB", "SQ") else struct.pack("<H", len(data))
    return struct.pack("<HH", group, number) + kind.encode() + size + data


def item(data: bytes) -> bytes:
    return struct.pack("<HHI", 0xFFFE, 0xE000, len(data)) + data


def frames_of(pixels: np.ndarray) -> list[bytes]:
    frames = []
    for y in range(0, pixels.shape[0], TILE):
        for x in range(0, pixels.shape[1], TILE):
            buffer = io.BytesIO()
            Image.fromarray(pixels[y : y + TILE, x : x + TILE]).save(buffer, "JPEG", quality=95, subsampling=0)
            frames.append(buffer.getvalue() + b"\0" * (len(buffer.getvalue()) % 2))
    return frames


def write_dicom(path: Path, pixels: np.ndarray, um: float, number: int) -> None:
    height, width = pixels.shape[:2]
    frames = frames_of(pixels)
    meta = element(2, 1, "OB", b"\0\1") + element(2, 2, "UI", SLIDE_CLASS) + element(2, 3, "UI", f"1.2.3.4.{number}")
    meta += element(2, 0x10, "UI", JPEG) + element(2, 0x12, "UI", "1.2.3.4")
    spacing = element(0x28, 0x30, "DS", f"{um / 1000:.6f}\\{um / 1000:.6f}")
    measures = element(0x28, 0x9110, "SQ", item(element(0x18, 0x50, "DS", "0.001") + spacing))
    body = [
        element(8, 8, "CS", "ORIGINAL\\PRIMARY\\VOLUME\\" + ("RESAMPLED" if number else "NONE")),
        element(8, 0x16, "UI", SLIDE_CLASS),
        element(8, 0x18, "UI", f"1.2.3.4.{number}"),
        element(8, 0x60, "CS", "SM"),
        element(0x20, 0xD, "UI", "1.2.3.5"),
        element(0x20, 0xE, "UI", "1.2.3.6"),
        element(0x20, 0x52, "UI", "1.2.3.7"),
        element(0x20, 0x9311, "CS", "TILED_FULL"),
        element(0x28, 2, "US", 3),
        element(0x28, 4, "CS", "YBR_FULL_422"),
        element(0x28, 6, "US", 0),
        element(0x28, 8, "IS", str(len(frames))),
        element(0x28, 0x10, "US", TILE),
        element(0x28, 0x11, "US", TILE),
        *(element(0x28, tag, "US", value) for tag, value in ((0x100, 8), (0x101, 8), (0x102, 7), (0x103, 0))),
        element(0x48, 6, "UL", width),
        element(0x48, 7, "UL", height),
        element(0x48, 0x105, "SQ", item(element(0x48, 0x106, "SH", "1"))),
        element(0x48, 0x302, "UL", 1),
        element(0x48, 0x303, "UL", 1),
        element(0x5200, 0x9229, "SQ", item(measures)),
    ]
    offsets = np.cumsum([0, *(8 + len(frame) for frame in frames[:-1])]).astype("<u4").tobytes()
    data = struct.pack("<HH", 0x7FE0, 0x10) + b"OB" + struct.pack("<HI", 0, 0xFFFFFFFF)
    data += item(offsets) + b"".join(map(item, frames)) + struct.pack("<HHI", 0xFFFE, 0xE0DD, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0" * 128 + b"DICM" + element(2, 0, "UL", len(meta)) + meta + b"".join(body) + data)


def colour(batch: np.ndarray) -> np.ndarray:
    return batch.mean(axis=(1, 2))


def test_a_dicom_series_becomes_one_bag(tmp_path, scene, made_slide):
    for number, um in enumerate((0.5, 2.0)):
        write_dicom(tmp_path / "in" / "patient7" / f"{number}.dcm", scene(um), um, number)
    with Slide(tmp_path / "in" / "patient7" / "0.dcm") as slide:
        assert (slide.mpp, [level.downsample for level in slide.levels]) == (0.5, [1, 4])
        assert np.abs(slide.read_tile(128, 96, 256, 512).astype(int) - scene(0.5, 128, 96, 256, 256)).mean() < 1
    tissue = TissueConfig(sharpness=0, blank_share=0)
    config = ExtractConfig(tile_um=128, tile_px=64, stain="none", encoder=colour, dtype="float32", tissue=tissue)
    made_slide("in/same.tif", mpp=0.5, factors=(1, 4))
    summary = extract([tmp_path / "in"], tmp_path / "out", config)
    assert [(r.slide, r.status) for r in summary.results] == [("patient7", "done"), ("same", "done")]
    dicom, tiff = read_bag(tmp_path / "out" / "patient7.h5"), read_bag(tmp_path / "out" / "same.h5")
    assert np.array_equal(dicom.coords.numpy(), tiff.coords.numpy())
    assert dicom.features.numpy() == pytest.approx(tiff.features.numpy(), abs=1)
