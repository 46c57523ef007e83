"""Patches around given points: the right pixels, under the names of the table, in either unit."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dasmil.cli import app
from dasmil.data.store import read_bag
from dasmil.errors import DataError, InputError

POINTS = {"nucleus": (180.0, 140.0), "stroma": (360.0, 300.0), "glass": (500.0, 100.0), "edge": (2.0, 700.0)}
COLOURS = {"nucleus": (120, 60, 150), "stroma": (214, 120, 170), "glass": (255, 255, 255)}  # of the scene


def run(*arguments: object) -> int:
    return app([str(a) for a in arguments], exit_on_error=False, result_action="return_value") or 0


def table(path: Path, slide: str, factor: float = 1.0, **more: tuple[float, float]) -> Path:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["slide", "cell_id", "x", "y"])
        out.writerows([slide, name, x / factor, y / factor] for name, (x, y) in {**POINTS, **more}.items())
    return path


@pytest.mark.parametrize(("unit", "factor"), [("um", 1.0), ("px", 0.5)])
def test_patches_are_cut_around_the_points(made_slide: Callable[..., Path], tmp_path: Path, unit, factor) -> None:
    slide, out = made_slide("a.tif", mpp=0.5), tmp_path / "bags"
    points = table(tmp_path / "cells.csv", "a.tif", factor)
    cut = (
        "extract",
        slide,
        "-o",
        out,
        "--points",
        points,
        "--points-unit",
        unit,
        "--patch-um",
        16,
        "--encoder",
        "null",
    )
    assert run(*cut) == 0
    bag = read_bag(out / "a.h5")
    assert bag.instance_ids == tuple(POINTS)
    np.testing.assert_allclose(bag.coords.numpy(), list(POINTS.values()), atol=1e-3)
    for i, colour in enumerate(COLOURS.values()):
        np.testing.assert_allclose(bag.features[i, :3].float().numpy(), np.array(colour) / 255, atol=2e-3)
    assert (bag.metadata["tile_um"], bag.metadata["mpp"]) == (16.0, pytest.approx(0.5))
    before = (out / "a.h5").stat().st_mtime_ns
    assert run(*cut) == 0
    assert (out / "a.h5").stat().st_mtime_ns == before  # finished slides are not made again


def test_pixels_are_kept_without_an_encoder(made_slide: Callable[..., Path], tmp_path: Path) -> None:
    slide, out = made_slide("a.tif", mpp=0.5), tmp_path / "bags"
    points = table(tmp_path / "cells.csv", "a.tif")
    cut = ("extract", slide, "-o", out, "--points", points, "--points-unit", "um", "--patch-um", 16)
    assert run(*cut, "--encoder", "none", "--tile-px", 32) == 0
    bag = read_bag(out / "a.h5")
    assert bag.pixels
    assert tuple(bag.features.shape) == (4, 3, 32, 32)
    for i, colour in enumerate(COLOURS.values()):
        np.testing.assert_allclose(bag.features[i].double().mean((1, 2)).numpy(), colour, atol=0.6)
    with pytest.raises(InputError, match="keeps pixels, which files of clam do not hold"):
        run("extract", slide, "-o", out, "--encoder", "none", "--format", "clam")


def test_tiles_are_kept_as_pixels_without_an_encoder(made_slide: Callable[..., Path], tmp_path: Path) -> None:
    slide = made_slide("a.tif", mpp=0.5)
    common = ("extract", slide, "--tile-um", 64, "--tile-px", 64, "--stain", "none", "--no-qc")
    assert run(*common, "-o", tmp_path / "pixels", "--encoder", "none") == 0
    assert run(*common, "-o", tmp_path / "colours", "--encoder", "null") == 0
    pixels, colours = (read_bag(tmp_path / name / "a.h5") for name in ("pixels", "colours"))
    assert tuple(pixels.features.shape[1:]) == (3, 64, 64)
    np.testing.assert_array_equal(pixels.coords.numpy(), colours.coords.numpy())
    means = pixels.features.double().mean((2, 3)) / 255
    np.testing.assert_allclose(means.numpy(), colours.features[:, :3].double().numpy(), atol=0.01)


def test_what_does_not_fit_is_named(
    made_slide: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slide, other, out = made_slide("a.tif", mpp=0.5), made_slide("b.tif", mpp=0.5), tmp_path / "bags"
    points = table(tmp_path / "cells.csv", "a", far=(1500.0, 100.0))
    cut = ("extract", slide, other, "-o", out, "--points", points, "--patch-um", 16, "--encoder", "null")
    with pytest.raises(InputError, match="--points needs --points-unit"):
        run(*cut)
    assert run(*cut, "--points-unit", "um", "--json") == 1
    a, b = json.loads(capsys.readouterr().out)["slides"]
    assert "1 of 5 points lie outside the slide of 1024 x 768 um (2,048 x 1,536 px of 0.5 um)" in a["reason"]
    assert "names no point of this slide" in b["reason"]
    assert not list(out.glob("*.h5"))
    points.write_text("slide,x,y\na,1,here\n")
    with pytest.raises(DataError, match=r"line 2: the point is \('1', 'here'\), expected two numbers"):
        run(*cut, "--points-unit", "um")
    points.write_text("slide,x\na,1\n")
    with pytest.raises(DataError, match="no column y among"):
        run(*cut, "--points-unit", "um")
    with pytest.raises(InputError, match="--points-unit and --patch-um are for --points"):
        run("extract", slide, "-o", out, "--patch-um", 16)


def test_points_of_slides_that_were_not_given_are_said(
    made_slide: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slide, points = made_slide("a.tif", mpp=0.5), table(tmp_path / "cells.csv", "a")
    cut = ("extract", slide, "-o", tmp_path / "bags", "--points", points, "--points-unit", "um", "--patch-um", 16)
    assert run(*cut, "--encoder", "null") == 0
    assert "not given" not in capsys.readouterr().err
    with points.open("a") as file:
        file.write("gone.svs,n1,5,5\naway,n2,5,5\naway,n3,6,6\n")
    assert run(*cut, "--encoder", "null", "--json") == 0
    said = capsys.readouterr()
    assert "Points of 2 slides that were not given: away, gone\n" in said.err
    assert json.loads(said.out)["points_without_slide"] == ["away", "gone"]


def test_a_given_scale_moves_the_points(made_slide: Callable[..., Path], tmp_path: Path) -> None:
    slide, scales = made_slide("a.tif", mpp=0.5), tmp_path / "mpp.csv"
    points = table(tmp_path / "cells.csv", "a", 0.5)
    scales.write_text("slide,mpp\na,0.25\n")
    for name, more in (("one", ("--mpp", 0.25)), ("many", ("--mpp-table", scales))):
        cut = ("extract", slide, "-o", tmp_path / name, "--points", points, "--points-unit", "px", "--patch-um", 8)
        assert run(*cut, "--encoder", "null", *more) == 0
        bag = read_bag(tmp_path / name / "a.h5")
        np.testing.assert_allclose(bag.coords[0].numpy(), np.array(POINTS["nucleus"]) / 2, atol=1e-3)
        np.testing.assert_allclose(bag.features[0, :3].float().numpy(), np.array(COLOURS["nucleus"]) / 255, atol=2e-3)
