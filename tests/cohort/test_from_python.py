"""The workflow from Python: what `dasmil train`, `search`, `evaluate` and `predict` do, in a few lines."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasmil
from dasmil.cli import app
from dasmil.errors import InputError
from dasmil.study.data import StudyData
from dasmil.study.spec import CohortSpec

FAST = {"epochs": 2, "lr": 1e-2}


@pytest.fixture
def spec(made: Path, tmp_path: Path) -> dasmil.CohortSpec:
    """The cohort with a label table of its own, beside which openings of its test set are counted."""
    labels = tmp_path / "labels.csv"
    labels.write_text((made / "labels.csv").read_text())
    return dasmil.CohortSpec(bags=made / "bags", labels=labels)


def test_training_and_the_locked_test_set_are_those_of_the_command_line(
    spec: dasmil.CohortSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    run = dasmil.train_cohort(spec, "mean-pool", out=tmp_path / "here", seeds=2, note=said.append, **FAST)
    app(["train", "--bags", str(spec.bags), "--labels", str(spec.labels), "--model", "mean-pool", "--seeds", "2",
         "--epochs", "2", "--lr", "0.01", "--out", str(tmp_path / "there")], result_action="return_value")  # fmt: skip
    there = dasmil.Run.read(tmp_path / "there")
    assert run.config == there.config
    assert run.summary == there.summary
    for a, b in zip(run.all_seeds, there.all_seeds, strict=True):
        np.testing.assert_array_equal(a.predictions("val").logits, b.predictions("val").logits)
    assert run.report.is_file()
    assert capsys.readouterr().err.splitlines()[: len(said)] == said
    assert any(line.startswith("Split by patient: train") for line in said)
    held = run.data.get("held_out", {})["test"]
    assert run.splits == ["val", "train"]

    said.clear()
    scores = dasmil.evaluate(run, note=said.append)
    assert said == [f"Test set opened ({len(held)} bags): evaluation number 1 on it."]
    assert scores["splits"]["test"]["n"] == len(held)
    assert dasmil.Run.read(run.path).seeds[1].predictions("test").bag_ids == held
    assert str(dasmil.Run.read(run.path).data.get("test_set")).startswith(f"{len(held)} bags, opened 1 time")
    app(["evaluate", str(tmp_path / "there"), "--json"], result_action="return_value")
    assert json.loads(capsys.readouterr().out)["splits"]["test"]["mean"] == scores["splits"]["test"]["mean"]

    rows = dasmil.predict(run, spec.bags or "")
    bags = [dasmil.read_bag(file) for file in sorted(Path(str(spec.bags)).glob("*.h5"))]
    assert [row["bag_id"] for row in rows] == [bag.bag_id for bag in bags]
    again = dasmil.predict(run.path, bags)
    assert [row["probability"] for row in again] == pytest.approx([row["probability"] for row in rows])


def test_nothing_is_printed(spec: dasmil.CohortSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = dasmil.train_cohort(spec, "mean-pool", out=tmp_path / "run", test=True, **FAST)
    dasmil.evaluate(run)
    dasmil.predict(run, dasmil.BagSpec(bags=spec.bags))
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert run.splits[0] == "test"


def test_cross_validation_of_a_cohort_and_of_bags_in_memory_is_the_same(
    spec: dasmil.CohortSpec, tmp_path: Path
) -> None:
    cohort = spec.load()
    first = dasmil.cross_validate(spec, "mean-pool", folds=3, out=tmp_path / "a", **FAST)
    second = dasmil.cross_validate(list(cohort), "mean-pool", folds=3, out=tmp_path / "b", **FAST)
    assert len(first.folds) == len(second.folds) == 3
    tested = [bag for fold in first.folds for bag in fold.seeds[0].predictions("test").bag_ids]
    assert sorted(tested) == sorted(cohort.bag_ids)
    assert first.summary["splits"]["test"]["mean"] == second.summary["splits"]["test"]["mean"]
    with pytest.raises(InputError, match="already holds this run"):
        dasmil.cross_validate(spec, "mean-pool", folds=3, out=tmp_path / "a", **FAST)
    with pytest.raises(InputError, match="give --folds 3"):
        dasmil.cross_validate(spec, "mean-pool", folds=4, out=tmp_path / "a", **FAST)
    unlabelled = [dasmil.Bag(bag.features, bag.coords, bag.unit, bag.bag_id) for bag in cohort]
    with pytest.raises(InputError, match="has no label: cross-validation needs one"):
        dasmil.cross_validate(unlabelled, "mean-pool", folds=3, out=tmp_path / "c", **FAST)


def test_questions_to_a_run_are_those_of_the_command_line(
    spec: dasmil.CohortSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dasmil.cross_validate(spec, "das-mil", folds=2, out=tmp_path / "run", epochs=1, lr=1e-2).path
    capsys.readouterr()

    def told(*arguments: object) -> Any:
        app([*map(str, ("explain", run, *arguments, "--json"))], result_action="return_value")
        return json.loads(capsys.readouterr().out)

    held = dasmil.Run.read(run).folds[1].seeds[0].predictions("test")
    bag, speaker = dasmil.find_bag(run, held.bag_ids[0])
    assert (bag.bag_id, speaker.fold, speaker.sets[bag.bag_id]) == (held.bag_ids[0], 1, "test")
    answer = dasmil.explain_bag(run, bag.bag_id)
    assert float(answer.explanation.logit) == pytest.approx(float(held.logits[0]), abs=1e-5)
    files = answer.write(tmp_path / "here")
    there = told("--bag", bag.bag_id, "-o", tmp_path / "there")
    same = {**answer.as_json(), "files": [str(tmp_path / "there" / f.name) for f in files]}
    assert json.loads(json.dumps(same)) == there
    assert (tmp_path / "here/instances.csv").read_bytes() == (tmp_path / "there/instances.csv").read_bytes()
    with pytest.raises(InputError, match="unknown score 'x'"):
        answer.write(tmp_path / "nowhere", "x")
    assert not (tmp_path / "nowhere").exists()

    rows = dasmil.learned_distances(run)
    assert [list(row.midpoints) for row in rows] == [row["midpoints"] for row in told("--distances")]
    tested = dasmil.space_test(run, dasmil.LabelledBags(limit=8))
    assert json.loads(json.dumps(asdict(tested))) == told("--space-test", "--limit", 8)

    pages: list[tuple[str, int]] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: sockets[0].close())
    dasmil.view(run, open_browser=False, ready=lambda address, bags: pages.append((address, bags)))
    assert [bags for _, bags in pages] == [len(spec.load())]
    assert pages[0][0].startswith("http://127.0.0.1:")


def test_key_instances_are_scored_and_kept(tmp_path: Path) -> None:
    dasmil.create_model("mean-pool", preset="mnist-collage").save(tmp_path / "m.safetensors")
    source = dasmil.LabelledBags(data="mnist-collage", split="test", limit=6)
    said: list[str] = []
    ask = {"table": tmp_path / "keys.csv", "note": said.append}
    rows = dasmil.key_instances([tmp_path / "m.safetensors"], source, **ask)
    assert [row.model for row in rows] == ["mean-pool"] * len(rows)
    assert said == [f"1 of 1: {tmp_path / 'm.safetensors'}"]
    assert dasmil.key_instances([tmp_path / "m.safetensors"], source, **ask) == rows
    assert len(said) == 1, "what the table holds is not computed again"
    assert (tmp_path / "keys-all.md").is_file()


def test_search_returns_the_run_with_the_best_settings(spec: dasmil.CohortSpec, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    found = dasmil.search(spec, "mean-pool", {"lr": [1e-7, 3e-2]}, out=tmp_path / "s", metric="loss", epochs=3)
    scores = {trial["settings"]["lr"]: trial["score"] for trial in found.rounds[0]["trials"]}
    best = min(scores, key=lambda lr: scores[lr])
    assert found.rounds[0]["chosen"] == {"lr": best}
    assert found.run.config["training"]["lr"] == best
    assert found.run.path == tmp_path / "s" / "best"


def test_the_record_of_a_study_gives_the_same_study(spec: dasmil.CohortSpec) -> None:
    data = StudyData(cohort=spec, folds=3, split_seed=4)
    again = StudyData.from_record(json.loads(json.dumps(data.as_record())))
    assert again == data
    assert [r.train.bag_ids for r in again.rounds()] == [r.train.bag_ids for r in data.rounds()]  # type: ignore[attr-defined]


def test_text_paths_are_paths() -> None:
    assert CohortSpec(bags="a", labels="b.csv") == CohortSpec(bags=Path("a"), labels=Path("b.csv"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing to train on"),
        ({"data": "mnist"}, "unknown data set 'mnist'"),
        ({"data": "mnist-bags", "folds": 3}, "built-in data has fixed splits"),
        ({"data": "mnist-bags", "cohort": CohortSpec(bags=Path("x"))}, "--data and --bags were given"),
        ({"cohort": CohortSpec(bags=Path("x")), "folds": 3, "open_test": True}, "--test was given with --folds"),
        ({"features": Path("x")}, "--features is for CAMELYON16"),
    ],
)
def test_sources_that_contradict_themselves_are_refused(given: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        StudyData(**given)
