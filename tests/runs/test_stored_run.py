"""Runs that an earlier version left stay readable: a plain one and a cross-validation, with what that version said.

tests/runs/stored was made with `dasmil train --bags bags --labels labels.csv --seeds 2` (and `--folds 3`), then
`dasmil predict` and `dasmil evaluate --json` on the same bags.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import dasmil
from dasmil.cli import app
from dasmil.errors import DataError
from dasmil.files import read_csv
from dasmil.report import write_report
from dasmil.runs import Run

STORED = Path(__file__).parent / "stored"
SOURCES = Path(dasmil.__file__).parent


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A copy whose runs find their bags where they now are."""
    folder = Path(shutil.copytree(STORED, tmp_path / "stored"))
    for file in folder.rglob("*.json"):
        file.write_text(file.read_text().replace("/data/stored", str(folder)))
    return folder


def test_a_plain_run(stored: Path) -> None:
    run = Run.read(stored / "plain")
    assert (run.model, run.dataset, run.classes, run.class_names) == ("das-mil", "bags", 2, ["negative", "positive"])
    assert run.config["training"]["epochs"] == 2
    assert run.config["model"].get("options", {})["hidden"] == 2
    assert list(run.seeds) == [0, 1]
    assert not run.folds
    assert run.splits == ["val", "train"]
    assert run.data.get("held_out") == {"test": ["slide-03", "slide-12", "slide-14"]}
    assert run.data.get("splits", {})["train"]["n"] == 10
    rows = read_csv(stored / "plain" / "seed-1" / "predictions.csv")
    found = run.seeds[1].predictions("val")
    expected = [row for row in rows if row["split"] == "val"]
    assert found.bag_ids == [row["bag_id"] for row in expected]
    assert found.patients == [row["patient_id"] for row in expected]
    np.testing.assert_array_equal(found.logits, [float(row["logit"]) for row in expected])
    np.testing.assert_array_equal(found.labels, [int(row["label"]) for row in expected])
    with pytest.raises(DataError, match="has no rows of the split 'test'"):
        run.seeds[1].predictions("test")
    assert run.seeds[0].history["epoch"].tolist() == [1, 2]
    assert run.seeds[0].status.get("seed") == 0
    assert run.seeds[0].distances[0]["unit"] == "um"
    model = run.seeds[0].model()
    for bag_id, logit in zip(run.seeds[0].predictions("val").bag_ids, run.seeds[0].predictions("val").logits):
        bag = dasmil.read_bag(stored / "bags" / f"{bag_id}.h5")
        assert model(bag.features.float(), bag.coords).logit.item() == pytest.approx(logit, abs=1e-5)


def test_a_cross_validation(stored: Path) -> None:
    run = Run.read(stored / "folds")
    assert not run.seeds
    assert [list(fold.seeds) for fold in run.folds] == [[0, 1]] * 3
    assert run.summary.get("folds") == 3
    assert len(run.thresholds) == len(run.models()) == 6
    tested = [bag for fold in run.folds for bag in fold.seeds[0].predictions("test").bag_ids]
    assert sorted(tested) == [f"slide-{k:02d}" for k in range(16)]
    assert run.per_seed("test")[0].bag_ids == tested
    mean = np.mean([fold.summary["splits"]["test"]["mean"]["auroc"] for fold in run.folds])
    assert run.summary["splits"]["test"]["mean"]["auroc"] == pytest.approx(mean)


@pytest.mark.parametrize("kind", ["plain", "folds"])
def test_it_predicts_and_scores_as_the_version_that_made_it(stored: Path, kind: str, capsys) -> None:
    app(["predict", str(stored / kind), "--bags", str(stored / "bags"), "-o", str(stored / "now.csv")],
        result_action="return_value")  # fmt: skip
    before, now = read_csv(stored / f"predicted-{kind}.csv"), read_csv(stored / "now.csv")
    assert [(row["bag_id"], row["prediction"], row["class"]) for row in now] == [
        (row["bag_id"], row["prediction"], row["class"]) for row in before
    ]
    np.testing.assert_allclose(
        [float(row["probability"]) for row in now], [float(row["probability"]) for row in before], atol=1e-6
    )
    capsys.readouterr()
    app(["evaluate", str(stored / kind), "--bags", str(stored / "bags"), "--labels", str(stored / "labels.csv"),
         "--json"], result_action="return_value")  # fmt: skip
    expected, found = (
        json.loads(t) for t in ((stored / f"evaluated-{kind}.json").read_text(), capsys.readouterr().out)
    )
    assert found.keys() - expected.keys() == ({"folds", "models"} if kind == "folds" else set())
    assert expected.keys() <= found.keys()
    assert found["threshold"] == expected["threshold"]
    assert found["seeds"] == expected["seeds"]
    for name in ("mean", "std"):
        assert found["splits"]["bags"][name] == pytest.approx(expected["splits"]["bags"][name], abs=1e-5)


@pytest.mark.parametrize("kind", ["plain", "folds"])
def test_it_has_a_report(stored: Path, kind: str) -> None:
    page = write_report(stored / kind).read_text()
    mean = Run.read(stored / kind).summary["splits"]["train"]["mean"]["auroc"]
    assert f"{mean:.3f}" in page


def test_its_locked_test_set_is_opened_into_it(stored: Path, capsys) -> None:
    app(["evaluate", str(stored / "plain")], result_action="return_value")
    run = Run.read(stored / "plain")
    assert run.splits == ["test", "val", "train"]
    assert run.seeds[0].predictions("test").bag_ids == ["slide-03", "slide-12", "slide-14"]
    assert run.data.get("test_set", "").startswith("3 bags, opened 1 time ")


def test_its_checkpoint_is_taken_up_again() -> None:
    """The stored checkpoint belongs to the stored configuration, by the hash that today's writer computes."""
    from dasmil.runs.writer import RunWriter

    config = json.loads((STORED / "plain" / "config.json").read_text())
    loaded = RunWriter(STORED / "plain", config).load()
    assert loaded is not None
    assert loaded[1]["rows"] == []  # finished


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"seeds": "none"}, r"config\.json: seeds: .*valid list.*found none"),
        ("config.json", {"seeds": []}, r"config\.json: it names no seeds"),
        ("config.json", {"format": "other"}, r"config\.json does not describe a run"),
        ("summary.json", {"threshold": 0.5}, r"summary\.json: threshold: .*found 0\.5"),
        ("data.json", {"splits": {"train": {"n": "many"}}}, r"data\.json: splits\.train\.n: .*found many"),
        ("seed-0/status.json", {"fitted": "perhaps"}, r"status\.json: fitted: .*found perhaps"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(stored: Path, file: str, change: dict, message: str) -> None:
    path = stored / "plain" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=message):
        write_report(stored / "plain")


def test_only_the_room_of_runs_knows_the_files_of_a_run() -> None:
    names = re.compile(
        r"""["'/](config|data|status|versions|checkpoint)\.json["']|predictions\.csv["']\)|["'/]metrics\.csv["']"""
        r"""|f["'](seed|fold)-\{\w+\}["']|glob\(["'](seed|fold)-|["']seed-0["']|checkpoint\.safetensors"""
    )
    found = [
        f"{file.relative_to(SOURCES)}: {line.strip()}"
        for file in SOURCES.rglob("*.py")
        if file.parent.name != "runs"
        for line in file.read_text(encoding="utf-8").splitlines()
        if names.search(line) and not re.search(r'"""|Annotated\[Path', line)
    ]
    # save_pretrained writes a config.json of its own, for model hubs.
    assert [line for line in found if not line.startswith(("models/storage.py", "study/hub.py"))] == []
