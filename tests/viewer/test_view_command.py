"""`dasmil view` through its real entry point: a run of one's own bags with a slide, and bad input."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from PIL import Image

import dasmil.cli.view as view_module
from dasmil.data import load_dataset
from dasmil.data.store import write_bag
from dasmil.models import create_model
from dasmil.study import viewing
from dasmil.study.reading import run_loader
from dasmil.types import Bag
from dasmil.viewer.answers import bag_list
from dasmil.viewer.shelf import Shelf
from dasmil.wsi.reader import fingerprint

COMMAND = [sys.executable, "-c", "from dasmil.cli import main; main()", "view"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One bag with its slide (a picture of 0.5 um per pixel), one whose slide has changed, one without slide."""
    torch.manual_seed(0)
    (tmp_path / "slides").mkdir()
    (tmp_path / "bags").mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (400, 300), (200, 120, 160)).save(tmp_path / "slides" / f"{name}.png")
    for name in ("a", "b", "c"):
        slide = tmp_path / "slides" / f"{name}.png"
        facts = {"tile_um": 20.0, "mpp": 0.5, "slide_width_px": 400, "slide_height_px": 300}
        facts["source_fingerprint"] = fingerprint(slide) if name == "a" else "sampled-sha256:0"
        coords = torch.tensor([[20.0, 20.0], [60.0, 40.0], [150.0, 100.0]])
        patient = "patient-7" if name == "b" else None
        bag = Bag(torch.randn(3, 8), coords, "um", name, patient_id=patient, metadata=facts)
        write_bag(tmp_path / "bags" / f"{name}.h5", bag)
    model = create_model("das-mil", in_features=8, out_features=4, unit="um", distance_scale=50.0)
    model.save(tmp_path / "model.safetensors")
    return tmp_path


def test_bags_with_and_without_their_slides(folder: Path) -> None:
    arguments = ["--model", folder / "model.safetensors", "--bags", folder / "bags", "--slides", folder / "slides"]
    process = subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = process.stdout.readline() + process.stdout.readline()
        assert lines.startswith("3 bags.")
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", lines)
        assert found is not None

        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        opened = browser.open(found.group())
        address = opened.geturl()  # the token is in a cookie now
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(address)

        def ask(path: str) -> dict:
            return json.load(browser.open(address + path))

        assert [bag["id"] for bag in ask("api/bags")["bags"]] == ["a", "b", "c"]
        shown = ask("api/bag/0")
        assert (shown["picture"]["width"], shown["picture"]["height"], shown["warnings"]) == (400, 300, [])
        assert shown["frame"]["px_per_unit"] == pytest.approx(2.0)
        changed = ask("api/bag/1")
        assert changed["picture"] is None
        assert "slide" in changed["warnings"][0]
        assert "no slide named c" in ask("api/bag/2")["warnings"][0]
    finally:
        process.terminate()
        process.wait(timeout=30)


def test_other_bags_are_shown_with_the_class_names_of_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelves: list[Shelf] = []
    monkeypatch.setattr(viewing, "serve", lambda shelf, *_: shelves.append(shelf))
    model = folder / "run" / "seed-0" / "model.safetensors"
    model.parent.mkdir(parents=True)
    shutil.copy(folder / "model.safetensors", model)
    config = {"format": "dasmil-run", "seeds": [0], "model": {"name": "das-mil"}, "training": {}}
    config["data"] = {"classes": ["benign", "7"]}
    (folder / "run" / "config.json").write_text(json.dumps(config))
    view_module.view(folder / "run", bags=folder / "bags")
    view_module.view(model=model, bags=folder / "bags")
    view_module.view(model=folder / "model.safetensors", bags=folder / "bags")
    assert [shelf.classes for shelf in shelves] == [("benign", "7"), ("benign", "7"), ("negative", "positive")]


def test_the_list_knows_the_patients_of_a_run_and_of_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelves: list[Shelf] = []
    monkeypatch.setattr(viewing, "serve", lambda shelf, *_: shelves.append(shelf))
    seed = folder / "run" / "seed-0"
    seed.mkdir(parents=True)
    shutil.copy(folder / "model.safetensors", seed)
    config = {"format": "dasmil-run", "seeds": [0], "model": {"name": "das-mil"}, "data": {}, "training": {}}
    (folder / "run" / "config.json").write_text(json.dumps(config))
    scored = {"n": 2, "mean": {}, "std": {}, "interval": {}, "per_seed": [{}]}
    summary = {
        "seeds": [0],
        "stuck_seeds": [],
        "selection": "last",
        "splits": {"train": scored},
        "threshold": {"chosen_on": "val", "decision": 0.5, "per_seed": [0.5]},
    }
    (folder / "run" / "summary.json").write_text(json.dumps(summary))
    known = "bag_id,split,label,logit,probability,prediction"
    (seed / "predictions.csv").write_text(f"{known},patient_id\na,test,1,0,0.5,1,patient-3\nb,test,0,0,0.5,1,\n")
    view_module.view(folder / "run")
    (seed / "predictions.csv").write_text(f"{known}\na,test,1,0,0.5,1\n")  # as older versions wrote it
    view_module.view(folder / "run")
    view_module.view(model=folder / "model.safetensors", bags=folder / "bags")
    patients = [{bag["id"]: bag["patient"] for bag in bag_list(shelf)["bags"]} for shelf in shelves]
    assert patients == [{"a": "patient-3", "b": None}, {"a": None}, {"a": None, "b": "patient-7", "c": None}]


def test_slides_of_a_new_patient_are_shown_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shelves: list[Shelf] = []
    monkeypatch.setattr(viewing, "serve", lambda shelf, *_: shelves.append(shelf))
    model = folder / "run" / "seed-0" / "model.safetensors"
    model.parent.mkdir(parents=True)
    shutil.copy(folder / "model.safetensors", model)
    config = {"format": "dasmil-run", "seeds": [0], "model": {"name": "das-mil"}, "training": {}}
    config["data"] = {"classes": ["benign", "7"], "cohort": {"per_patient": True}}
    (folder / "run" / "config.json").write_text(json.dumps(config))
    table = folder / "slides.csv"
    table.write_text("slide,patient\na,p1\nb,p1\nc,p2\nd,p2\n")
    view_module.view(folder / "run", bags=folder / "bags", slide_table=table)
    said = capsys.readouterr().err
    assert "The slides of a patient are joined, as the run was trained" in said
    assert "1 patients lack a slide of the slide table: p2; the first: slide d of the slide table has no file" in said
    view_module.view(model=model, bags=folder / "bags", slide_table=table, per_patient=True)
    for shelf in shelves:
        assert [entry.bag_id for entry in shelf.entries] == ["p1", "p2"]
        bag = shelf.entries[0].load()
        assert (len(bag), bag.section.tolist(), bag.metadata["slides"]) == (6, [0, 0, 0, 1, 1, 1], ["a", "b"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--per-patient"], "--per-patient and --slide-table join slides of --bags"),
        ([], "give a run directory, or --model"),
        (["nowhere"], "nowhere does not exist"),
        (["--model", "m.safetensors"], "--model needs --bags"),
        (["nowhere", "--slides", "no-folder"], "no-folder is not a folder"),
        (["nowhere", "--bags", "b", "--split", "test"], "--split names sets of the run, but --bags gives other bags"),
        (["nowhere", "--port", "99999"], "--port is 99999, expected 0 (a free one) to 65535"),
        (["nowhere", "--port=-1"], "--port is -1, expected 0"),
    ],
)
def test_bad_input_is_one_message(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False
    )
    assert result.returncode == 2
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_run_of_the_published_bags_opens_its_clean_sets_too() -> None:
    load = run_loader({"name": "mnist-collage", "protocol": "published"}, None)
    for split, bag_id in (
        ("test", "mnist-collage/test/0003"),
        ("validation", "mnist-collage/val/0003"),
        ("test-large", "mnist-collage/test-large/0003"),
    ):
        assert load(split, bag_id).bag_id == bag_id
    clean = load_dataset("mnist-collage", protocol="clean", split="test-large")[3]
    assert torch.equal(load("test-large", clean.bag_id).coords, clean.coords)
