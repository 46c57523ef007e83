"""Run directories of survival and of several targets that are cut or edited: one clear message or a result; seeded."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from damaged_runs import ODD, damage
from toy import toy_bags

import dasmil
from dasmil.errors import DasmilError, DataError
from dasmil.report import write_report
from dasmil.runs import Run, verdict
from dasmil.study.task_apply import evaluate_task, predict_task
from dasmil.tasks import ClassTarget, NumberTarget, Task, multilabel, survival, task_from

TASKS = {
    "survival": survival(bins=3),
    "several": multilabel([ClassTarget("kind", ("far", "near")), NumberTarget("amount")]),
}


def bags(count: int, seed: int, prefix: str) -> list[dasmil.Bag]:
    draw = random.Random(seed)
    return [
        replace(bag, label=None, targets={
            "time": draw.uniform(1, 9), "event": float(i % 3 > 0), "kind": float(bag.label or 0),
            "amount": draw.gauss(3, 1),
        })
        for i, bag in enumerate(toy_bags(count, seed=seed, prefix=prefix))
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tasks")
    for name, task in TASKS.items():
        dasmil.fit(
            "das-mil", bags(10, 0, "train"), bags(8, 1, "val"), task=task, out=folder / name, epochs=2, seeds=2,
            restarts=0, starts=1, model_options={"hidden": 4}, data={"name": "toy"}, progress=False,
        )  # fmt: skip
    return {name: folder / name for name in TASKS}


def judged(path: Path) -> None:
    run = Run.read(path)
    for split in run.splits:
        run.answers(split)
    assert verdict(run).text if run.task is not None else run.summary


STEPS: dict[str, Callable[[Path], object]] = {
    "read": judged,
    "predict": lambda path: predict_task(Run.read(path), bags(4, 2, "x")),
    "evaluate": lambda path: evaluate_task(Run.read(path), {"x": bags(6, 2, "x")}),
    "report": write_report,
}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", TASKS)
def test_a_damaged_run_of_a_task_is_one_message_or_a_result(
    whole: dict[str, Path], tmp_path: Path, name: str, seed: int
) -> None:
    for case in range(8):
        draw = random.Random(f"{name}/{seed}/{case}")
        target = tmp_path / str(case)
        what = damage(whole[name], target, draw)
        step = draw.choice(("read", "predict", "evaluate", "report") if case < 2 else ("read", "predict", "evaluate"))
        try:
            STEPS[step](target)
        except DasmilError:
            pass
        except Exception as error:
            raise AssertionError(f"case {case}: {what}, {step}") from error
        shutil.rmtree(target)


@pytest.mark.parametrize("name", TASKS)
def test_what_a_run_noted_of_its_task_is_checked(name: str) -> None:
    """Every value of the record is another one in turn: a task that is whole, or one message."""
    record = TASKS[name].record()
    assert task_from(json.loads(json.dumps(record))) == TASKS[name]
    places = [(part, key) for part in (record, *record["targets"]) for key in part]
    for part, key in places:
        kept = part[key]
        for value in (*ODD, [float("nan")], [2.0, 1.0], ["a", "a"], [{"kind": "classes", "name": "a"}] * 2):
            part[key] = value
            with suppress(DataError):
                found = task_from(record)
                assert found is None or (isinstance(found, Task) and found.outputs > 0 and found.text)
        part[key] = kept


def test_predictions_must_answer_what_was_asked(whole: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole["survival"], run)
    table = run / "seed-1" / "predictions.csv"
    good = table.read_text()
    for text, message in (
        (good.replace("output_2", "other", 1), "it has 2 true values and 2 outputs, which is not what was asked"),
        (good.replace("val/1,", "val/9,"), "its bags of the split 'val' are not those of other seeds"),
        ("", "it lacks the columns bag_id and split"),
    ):
        assert text != good
        table.write_text(text)
        with pytest.raises(DataError, match=message):
            judged(run)
    config = json.loads((run / "config.json").read_text())
    config["training"]["lr"] = "1e-3"
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"lr: .*expected a number, found '1e-3'"):
        Run.read(run)
