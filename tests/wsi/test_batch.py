from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dasmil.cli import app
from dasmil.cli.extract_display import TimeLeft
from dasmil.data.store import read_bag, read_bag_info
from dasmil.engine import EngineOptions
from dasmil.engine.locks import HOST, file_lock
from dasmil.engine.progress import duration
from dasmil.errors import DataError, InputError
from dasmil.wsi import batch, slide_units
from dasmil.wsi.batch import extract, find_slides, read_mpp_table
from dasmil.wsi.config import ExtractConfig, RunOptions, TissueConfig

FLAT = TissueConfig(sharpness=0, blank_share=0)


def colour(batch: np.ndarray) -> np.ndarray:
    return batch.mean(axis=(1, 2))


CONFIG = ExtractConfig(tile_um=64, tile_px=32, stain="none", encoder=colour, tissue=FLAT)

# What a second process runs: an encoder that says that it began, and then takes its time.
WORKER = """
import json, os, sys, time
from pathlib import Path
import numpy as np
from dasmil.wsi.batch import extract
from dasmil.wsi.config import ExtractConfig, TissueConfig

slides, out, began, seconds = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
calls = 0

def encode(batch):
    global calls
    calls += 1
    if calls > 1:  # the first call only asks for the number of features
        with open(began, "a") as file:
            file.write("x")
        time.sleep(seconds if calls > 2 or seconds < 1 else 0)
    return batch.mean(axis=(1, 2))

config = ExtractConfig(tile_um=128, tile_px=32, stain="none", encoder=encode,
                       tissue=TissueConfig(sharpness=0, blank_share=0))
summary = extract([slides], out, config)
print(json.dumps({r.slide: r.status for r in summary.results}))
"""


@pytest.fixture
def folder(made_slide, tmp_path):
    for name in ("a", "b", "c"):
        made_slide(f"slides/{name}.tif", mpp=1.0, factors=(1, 4))
    (tmp_path / "worker.py").write_text(WORKER)
    return tmp_path


def start(folder: Path, name: str, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, folder / "worker.py", folder / "slides", folder / "bags", folder / name, str(seconds)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_kill_and_restart_loses_only_the_slide_in_work(folder):
    process = start(folder, "began", 600)
    try:
        # The encoder sleeps on the second slide; by then the first one is written.
        deadline = time.monotonic() + 120
        while len((folder / "began").read_text() if (folder / "began").exists() else "") < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    bags = folder / "bags"
    assert sorted(p.name for p in bags.glob("*.h5")) == ["a.h5"]
    assert (bags / ".b.lock").exists()  # its holder could not remove it; the lock itself died with it
    (bags / ".b.h5.0123456789ab.tmp").write_bytes(b"half a file")
    before = (bags / "a.h5").read_bytes()
    second = start(folder, "again", 0)
    output, _ = second.communicate(timeout=120)
    assert json.loads(output) == {"a": "skipped", "b": "done", "c": "done"}
    assert second.returncode == 0
    assert (bags / "a.h5").read_bytes() == before
    assert [len(read_bag(bags / f"{name}.h5")) for name in "abc"] == [len(read_bag(bags / "a.h5"))] * 3
    assert not [p for p in bags.iterdir() if p.name.startswith(".")]


def test_what_a_killed_run_left_is_cleared_but_nothing_of_a_live_one(folder):
    """Of finished slides too, which workers are never given again; with an engine and without one."""
    bags, config = folder / "bags", ExtractConfig(encoder="null", stain="none", tile_um=128, tissue=FLAT)
    extract([folder / "slides"], bags, config)
    before = {path: path.read_bytes() for path in bags.glob("*.h5")}
    for engine in (None, EngineOptions(workers=1)):
        left = [bags / ".a.h5.0123456789ab.tmp", bags / ".a.lock", bags / "qc" / ".a.jpg.0123456789ab.tmp",
                bags / "qc" / ".b.json.0123456789ab.tmp",
                bags / "logs" / f".slides-{HOST}-0123456789ab.mark"]  # fmt: skip
        notes, live = bags / "logs" / f"slides-{HOST}-0123456789ab", bags / "qc" / ".c.jpg.0123456789ab.tmp"
        notes.mkdir(parents=True)
        for path in (*left, live, notes / "a.json"):
            path.touch()
        with file_lock(bags / ".c.lock") as state:
            assert state == "held"
            summary = extract([folder / "slides" / "a.tif", folder / "slides" / "b.tif"], bags, config, engine=engine)
            assert live.exists()
        assert summary.counts()["skipped"] == 2
        assert not [path for path in (*left, notes) if path.exists()]
        extract([folder / "slides"], bags, config, engine=engine)
        assert not [path for path in bags.rglob("*") if path.name.startswith(".")]
    assert {path: path.read_bytes() for path in bags.glob("*.h5")} == before


def test_bags_whose_folder_is_deleted_are_named_and_made_again(folder):
    process = start(folder, "began", 3)
    deadline = time.monotonic() + 120
    while len((folder / "began").read_text() if (folder / "began").exists() else "") < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    shutil.rmtree(folder / "bags")  # the first slide is written, the second in hand
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert json.loads(output) == {"a": "done", "b": "failed", "c": "done"}
    second = start(folder, "again", 0)
    output, _ = second.communicate(timeout=120)
    assert json.loads(output) == {"a": "done", "b": "done", "c": "skipped"}
    assert [len(read_bag(folder / "bags" / f"{name}.h5")) > 0 for name in "abc"] == [True] * 3


def test_two_processes_share_the_slides(folder):
    processes = [start(folder, name, 0.7) for name in ("one", "two")]
    results = [json.loads(process.communicate(timeout=180)[0]) for process in processes]
    for name in "abc":
        states = sorted(result[name] for result in results)
        assert states.count("done") == 1, results  # made once, by one of them
        assert states in (["busy", "done"], ["done", "skipped"])
        assert len(read_bag(folder / "bags" / f"{name}.h5")) > 0
    # One call of the encoder per slide in all.
    assert sum(len((folder / n).read_text()) for n in ("one", "two") if (folder / n).exists()) == 3


def test_one_bad_slide_does_not_stop_the_rest(folder, tmp_path):
    (folder / "slides" / "bad.svs").write_text("not a slide")
    (folder / "slides" / "empty.tif").touch()
    summary = extract([folder / "slides"], tmp_path / "out", CONFIG)
    assert summary.counts() == {"done": 3, "skipped": 0, "busy": 0, "failed": 2}
    assert not summary.ok
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert written["counts"] == summary.counts()
    by_name = {row["slide"]: row for row in written["slides"]}
    assert "cannot be read" in by_name["bad"]["reason"]
    assert "empty" in by_name["empty"]["reason"]
    assert by_name["a"]["tiles"] == len(read_bag(tmp_path / "out" / "a.h5"))
    page = (tmp_path / "out" / "qc" / "index.html").read_text()
    assert "3 slides" in page
    assert "2 failed" in page
    assert page.index("bad.svs") < page.index('src="a.jpg"')  # what failed comes first
    assert (tmp_path / "out" / "qc" / "a.jpg").is_file()


def test_the_contact_sheet_shows_what_earlier_calls_put_into_the_folder(folder, tmp_path):
    extract([folder / "slides" / "a.tif"], tmp_path / "out", CONFIG)
    extract([folder / "slides" / "b.tif"], tmp_path / "out", CONFIG)
    tiles = sum(len(read_bag(tmp_path / "out" / f"{name}.h5")) for name in "ab")
    page = (tmp_path / "out" / "qc" / "index.html").read_text()
    assert f"2 slides, {tiles:,} tiles" in page
    assert 'src="a.jpg"' in page
    (tmp_path / "out" / "a.h5").unlink()  # training would not see it either
    extract([folder / "slides" / "b.tif"], tmp_path / "out", CONFIG)
    assert 'src="a.jpg"' not in (tmp_path / "out" / "qc" / "index.html").read_text()


def test_names_with_marks_are_safe_on_the_contact_sheet(made_slide, tmp_path):
    made_slide("s/<b>&#1 50%.tif", mpp=1.0, factors=(1,))
    extract([tmp_path / "s"], tmp_path / "out", CONFIG)
    page = (tmp_path / "out" / "qc" / "index.html").read_text()
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;#1 50%" in page
    assert 'src="%3Cb%3E%26%231%2050%25.jpg"' in page


def test_slides_from_files_folders_and_patterns(tmp_path, monkeypatch):
    for name in ("x/a.svs", "x/deep/b.TIF", "x/notes.txt", "x/.hidden.svs", "y/c.ome.tif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    assert find_slides(["x"]) == [Path("x/a.svs"), Path("x/deep/b.TIF")]
    assert find_slides(["x/a.svs", "x/*.svs", "y"]) == [Path("x/a.svs"), Path("y/c.ome.tif")]
    assert find_slides(["**/*.TIF"]) == [Path("x/deep/b.TIF")]
    with pytest.raises(InputError, match=r"no slide z/\*\.svs"):
        find_slides(["z/*.svs"])
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="none holds no slides"):
        find_slides(["none"])
    (tmp_path / "y" / "a.tif").write_bytes(b"1")
    with pytest.raises(InputError, match=r"x/a.svs and y/a.tif would both become a.h5"):
        find_slides(["x", "y"])


def test_a_dicom_series_is_one_slide_named_after_its_folder(tmp_path):
    for name, size in (("s1/1.dcm", 10), ("s1/2.dcm", 30), ("s2/1.dcm", 10), ("s2/2.dcm", 5)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1" * size)
    assert find_slides([tmp_path]) == [tmp_path / "s1" / "2.dcm", tmp_path / "s2" / "1.dcm"]


def test_a_table_of_resolutions(tmp_path, scene, capsys):
    for name, um in (("fine", 0.5), ("coarse", 1.0)):
        Image.fromarray(scene(um)).save(tmp_path / f"{name}.png")
    table = tmp_path / "mpp.csv"
    table.write_text("slide,mpp\nfine.png,0.5\ncoarse,1.0\nelsewhere,0.2\n")
    slides = [tmp_path / "fine.png", tmp_path / "coarse.png"]
    notes: list[str] = []
    found = read_mpp_table(table, slides, notes.append)
    assert found == {"fine": 0.5, "coarse": 1.0}
    (warning,) = notes
    assert "1 rows of" in warning
    assert "name no slide of this call: elsewhere" in warning
    assert read_mpp_table(table, slides) == found
    assert capsys.readouterr() == ("", "")  # library code prints nothing
    summary = extract(slides, tmp_path / "out", CONFIG, mpp_table=found)
    assert [r.mpp for r in summary.results] == [0.5, 1.0]
    fine, coarse = (read_bag(tmp_path / "out" / f"{n}.h5") for n in ("fine", "coarse"))
    assert np.array_equal(fine.coords.numpy(), coarse.coords.numpy())  # the same scene at the same micrometres
    # Another row changes the hash of its own slide only.
    again = extract(slides, tmp_path / "out", CONFIG, mpp_table=found | {"coarse": 1.1})
    assert [r.status for r in again.results] == ["skipped", "failed"]
    table.write_text("slide,mpp\nother,0.5\n")
    with pytest.raises(InputError, match="no mpp for any of the 2 slides"):
        read_mpp_table(table, slides)
    table.write_text("slide,mpp\nfine,half\n")
    with pytest.raises(DataError, match="slide 'fine': mpp is 'half', expected a number"):
        read_mpp_table(table, slides)
    table.write_text("slide,mpp\nfine,500\n")
    with pytest.raises(DataError, match=r"mpp\.csv, slide 'fine': mpp is 500, expected 0.05 to 10"):
        read_mpp_table(table, slides)


def run(*arguments: object) -> int:
    code = app([str(a) for a in arguments], exit_on_error=False, result_action="return_value")
    assert isinstance(code, int)
    return code


def test_the_command_line(real_slide, tmp_path, capsys):
    out = tmp_path / "bags"
    assert run("extract", real_slide, "-o", out, "--encoder", "null", "--tissue-fraction", "0.5", "--no-qc") == 0
    text = capsys.readouterr()
    assert "CMU-1-Small-Region  done" in text.out
    assert f"{out}/summary.json" in text.out
    assert text.err == ""  # quick work leaves no line of progress in a log
    assert read_bag_info(out / "CMU-1-Small-Region.h5").metadata["tissue"]["fraction"] == 0.5
    assert not (out / "qc").exists()
    (tmp_path / "bad.svs").write_text("x")
    tissue = ("--tissue-fraction", "0.5")
    assert run("extract", real_slide, tmp_path / "bad.svs", "-o", out, "--encoder", "null", *tissue, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] == {"done": 0, "skipped": 1, "busy": 0, "failed": 1}
    assert run("extract", "-o", out) == 2


def test_the_command_line_takes_mpp_and_formats(tmp_path, scene, capsys):
    Image.fromarray(scene(1.0)).save(tmp_path / "p.png")
    common = ("extract", tmp_path / "p.png", "-o", tmp_path / "o", "--encoder", "null", "--stain", "none")
    flat = ("--sharpness", "0", "--tile-um", "64")
    assert run(*common, *flat) == 1
    assert "does not say how many micrometres" in capsys.readouterr().out
    assert run(*common, *flat, "--mpp", "1", "--format", "stamp") == 0
    assert run(*common, *flat, "--mpp", "1", "--format", "stamp") == 0
    assert "skipped" in capsys.readouterr().out


def test_time_left_learns_from_the_slides_that_were_worked_on(tmp_path):
    sizes = {"a": 100, "b": 300, "c": 200, "d": 400}
    slides = [tmp_path / name for name in sizes]
    for slide in slides:
        slide.write_bytes(b"1" * sizes[slide.name])
    left = TimeLeft(slides)
    assert left.seconds(slides[0], 0.0, 0.0) is None
    assert left.seconds(slides[0], 0.5, 10.0) == pytest.approx(190.0)  # 50 of 1,000 bytes in 10 s
    left.finish(slides[0], 0.0, worked=False)
    assert left.seconds(slides[1], 0.0, 0.0) is None
    left.finish(slides[1], 30.0, worked=True)
    assert left.seconds(slides[2], 0.0, 1.0) == pytest.approx(60.0)
    assert left.seconds(slides[2], 0.5, 1.0) == pytest.approx(50.0)
    assert [duration(s) for s in (None, 20, 600, 9000)] == ["?", "20 s", "10 min", "2.5 h"]


def test_patches_keep_their_size_in_workers(folder):
    """A worker made the encoder that keeps pixels without --tile-px, and then refused its own tiles."""
    config = ExtractConfig(encoder="none", stain="none", tile_um=128, tile_px=32, tissue=FLAT)
    slide, bags, note = (str(folder / name) for name in ("slides/a.tif", "bags", "result.json"))
    slide_units.extract_unit(slide, bags, slide_units._plain(config), vars(RunOptions()), None, note)
    assert json.loads(Path(note).read_text())["status"] == "done"
    assert read_bag(folder / "bags" / "a.h5").features.shape[1:] == (3, 32, 32)
    assert read_bag_info(folder / "bags" / "a.h5").metadata["tile_px"] == 32


def test_slides_are_searched_and_described_once(folder, monkeypatch):
    searched, described = [], []
    search, describe = batch.find_slides, ExtractConfig.described
    monkeypatch.setattr(batch, "find_slides", lambda slides: searched.append(1) or search(slides))
    monkeypatch.setattr(ExtractConfig, "described", lambda *given: described.append(1) or describe(*given))
    assert (
        run("extract", folder / "slides", "-o", folder / "bags", "--encoder", "null", "--no-qc", "--tile-um", 128) == 0
    )
    assert (len(searched), len(described)) == (1, 3 + 1)  # every slide, and the summary


def test_force_makes_all_again(folder, tmp_path):
    out = tmp_path / "out"
    extract([folder / "slides"], out, CONFIG)
    again = extract([folder / "slides"], out, CONFIG, options=RunOptions(force=True))
    assert again.counts()["done"] == 3
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file, expected a folder"):
        extract([folder / "slides"], tmp_path / "file", CONFIG)


def test_slides_whose_name_is_no_text_or_a_circle_of_links(tmp_path):
    odd = tmp_path / "\udcff.svs"
    odd.write_bytes(b"x")
    with pytest.raises(InputError, match="is not UTF-8 text, so no table or page can hold it: rename it"):
        find_slides([odd])
    odd.unlink()
    circle = tmp_path / "s.svs"
    circle.symlink_to(circle)
    assert find_slides([circle]) == [circle]
