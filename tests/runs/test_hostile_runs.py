"""Run directories that are cut, edited, from elsewhere: one clear message or a result; seeded, a small set of many."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damaged_runs import damage
from toy import toy_bags

import dasmil
from dasmil.errors import DasmilError, DataError
from dasmil.report import write_report
from dasmil.runs import Run, speakers
from dasmil.study import shelf as shelves
from dasmil.study.apply import evaluate_run, predict_run
from dasmil.study.folds import write_fold_summary
from dasmil.study.shelf import run_shelf

SETTINGS = {
    "epochs": 2,
    "seeds": 2,
    "restarts": 0,
    "starts": 1,
    "model_options": {"hidden": 4},
    "data": {"name": "toy"},
}


def train(out: Path, **changes: object) -> None:
    bags = (toy_bags(8), toy_bags(6, seed=3, prefix="val"))
    dasmil.fit("das-mil", *bags, out=out, **{**SETTINGS, **changes})  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("whole")
    train(folder / "run", tests={"test": toy_bags(6, seed=4, prefix="test")})
    for fold in range(2):
        origin = {"name": "toy", "folds": 2, "fold": fold}
        train(folder / "folds" / f"fold-{fold}", tests={"test": toy_bags(6, seed=fold, prefix=f"t{fold}")}, data=origin)
    write_fold_summary(folder / "folds", 2)
    return {"run": folder / "run", "folds": folder / "folds"}


def read_all(path: Path) -> None:
    """All that the commands take from a run."""
    run = Run.read(path)
    _ = (run.data, run.versions, run.summary, run.threshold, run.thresholds, run.classes, run.class_names, run.dataset)
    for seed in run.all_seeds:
        _ = (seed.status, seed.history, seed.scored, seed.stuck, seed.distances)
    for split in run.splits:
        run.per_seed(split), run.decided(split), run.ensemble(split)


def use(path: Path, which: str) -> None:
    bags = toy_bags(6, seed=4, prefix="test")
    steps: dict[str, Callable[[], object]] = {
        "read": lambda: read_all(path),
        "predict": lambda: predict_run(Run.read(path), bags),
        "evaluate": lambda: evaluate_run(Run.read(path), {"test": bags}),
        "speakers": lambda: [s.describe("test/1") for s in speakers(path)],
        "view": lambda: run_shelf(path, (), None, None, None, lambda bag: None),
        "report": lambda: write_report(path),
        "resume": lambda: train(path, resume=True, tests={"test": bags}),
    }
    try:
        steps[which]()
    except DasmilError as error:
        text = str(error)
        assert text, "a message without words"
        assert "\n" not in text
        assert len(text) <= 2000


CHEAP = ("read", "predict", "evaluate", "speakers", "view")


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_run_is_one_clear_message_or_a_result(whole: dict[str, Path], tmp_path: Path, seed: int) -> None:
    for case in range(20):
        draw = random.Random(f"{seed}/{case}")
        kind = draw.choice(("run", "run", "folds"))
        what = damage(whole[kind], tmp_path / f"{case}", draw)
        for step in ("read", draw.choice(CHEAP[1:])):
            try:
                use(tmp_path / f"{case}", step)
            except Exception as error:
                raise AssertionError(f"case {case}: {what} of {kind}, {step}") from error
        shutil.rmtree(tmp_path / f"{case}")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("step", ["report", "resume"])
def test_a_damaged_run_is_reported_and_resumed_or_refused(
    whole: dict[str, Path], tmp_path: Path, step: str, seed: int
) -> None:
    draw = random.Random(f"{step}/{seed}")
    kind = "run" if step == "resume" else draw.choice(("run", "run", "folds"))
    what = damage(whole[kind], tmp_path / "x", draw)
    try:
        use(tmp_path / "x", step)
    except Exception as error:
        raise AssertionError(f"{what} of {kind}, {step}") from error
    assert not list((tmp_path / "x").rglob("*.tmp"))


def test_what_seeds_say_of_different_bags_is_not_put_together(whole: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(whole["run"], tmp_path / "run")
    table = tmp_path / "run" / "seed-1" / "predictions.csv"
    good = table.read_text()
    for text, message in (
        (good.replace("test/1,", "test/9,"), r"its bags of the split 'test' are not those of other seeds"),
        (good.rstrip("\n").rpartition("\n")[0] + "\n", r"its bags of the split 'test' are not those of other seeds"),
        (good.replace(",1,", ",1e400,", 1), "a value is not a number"),
    ):
        assert text != good
        table.write_text(text)
        with pytest.raises(DasmilError, match=message):
            read_all(tmp_path / "run")
    table.write_text(good.replace("split", "set", 1))
    with pytest.raises(DasmilError, match=r"it lacks the columns? split"):
        train(tmp_path / "run", resume=True)


def test_tables_that_a_spreadsheet_program_saved_say_the_same(whole: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(whole["run"], tmp_path / "run")
    seed = Run.read(tmp_path / "run").seeds[0]
    expected = seed.sets, list(seed.history)
    for table in (seed.predictions_file, seed.path / "metrics.csv"):
        table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    again = Run.read(tmp_path / "run").seeds[0]
    assert (again.sets, list(again.history)) == expected
    assert len(again.scored["test"].labels) == 6
    again.predictions_file.write_text(again.predictions_file.read_text().replace("bag_id", "name", 1))
    with pytest.raises(DataError, match="it has no columns 'bag_id' and 'split'"):
        _ = Run.read(tmp_path / "run").seeds[0].sets


def test_a_status_a_curve_and_predictions_that_do_not_fit_are_one_message(
    whole: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole["run"], run)
    seed = Run.read(run).seeds[0]
    status = json.loads((seed.path / "status.json").read_text())
    row = {"layer": {}, "head": 0, "unit": "um", "theta": 1.0, "beta": 1.0, "midpoint": 1.0, "width": 1.0}
    for change in ({"learned_distances": [row]}, {"attempts": [{"preferred_to": 3}]}):
        (seed.path / "status.json").write_text(json.dumps({**status, **change}))
        with pytest.raises(DataError, match=r"status\.json"):
            _ = Run.read(run).seeds[0].status
    curve = (seed.path / "metrics.csv").read_text().splitlines()[0]
    (seed.path / "metrics.csv").write_text(curve + "\n")
    with pytest.raises(DataError, match=r"metrics\.csv"):
        _ = Run.read(run).seeds[0].trained
    lines = seed.predictions_file.read_text().splitlines()
    seed.predictions_file.write_text("\n".join(line for line in lines if ",test," not in line) + "\n")
    with pytest.raises(DataError, match="seeds have predicted the split 'test'"):
        Run.read(run).decided("test")


def test_the_viewer_reads_every_run_once(whole: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(shelves, "speakers", lambda path: read.append(path) or speakers(path))
    shelf = run_shelf(whole["run"], [whole["folds"]], 1, None, None, lambda bag: None)
    assert read == [whole["run"], whole["folds"]]
    assert [voice.title for voice in shelf.voices][:2] == ["seed 0", "seed 1"]
    assert {entry.voice for entry in shelf.entries} == {1}
    with pytest.raises(DasmilError, match="has no seed 7: it has 0, 1"):
        run_shelf(whole["run"], (), 7, None, None, lambda bag: None)
