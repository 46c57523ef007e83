"""Search chooses by validation bags alone, once for every fold, and does not repeat finished trials."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dasmil
import dasmil.study.trials as search_module
from dasmil.cli import app
from dasmil.data.cohort import load_cohort
from dasmil.data.labels import LabelRow
from dasmil.data.scale import Scale, Scales
from dasmil.errors import InputError
from dasmil.runs import Run
from dasmil.study.search import _remove_earlier
from dasmil.study.trials import Trial, TrialSetup, bags_state, check_search, parse_grid, search_trials, train_trials
from dasmil.train import TrainedRun
from dasmil.train.fit import fit_job
from dasmil.types import Bag

pytest.importorskip("optuna")


def bags(name: str, n: int, seed: int) -> list[Bag]:
    """Class = sign of the first feature's mean: easy for a model that trains at all."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i in range(n):
        features = torch.randn(5, 3, generator=generator)
        features[:, 0] += 2 * (i % 2) - 1
        found.append(Bag(features, torch.rand(5, 2, generator=generator), "um", f"{name}-{i}", label=i % 2))
    return found


def test_best_setting_wins_and_finished_trials_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = search_module.fit_job

    def counting(*arguments: object, **settings: object) -> object:
        calls.append([(spec.lr, spec.weight_decay) for spec in arguments[3]])  # type: ignore[attr-defined]
        return original(*arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(search_module, "fit_job", counting)
    grid = {"lr": [1e-7, 3e-2], "dropout": [0.1, 0.2]}
    question, journal = TrialSetup("sa", metric="loss", settings={"epochs": 6}), tmp_path / "journal"
    train, val = bags("train", 20, 0), bags("val", 12, 1)
    trials = search_trials(question, train, val, grid, journal=journal)
    assert trials[0].settings["lr"] == 3e-2
    assert {trial.settings["lr"] for trial in trials[2:]} == {1e-7}
    assert calls == [[(1e-7, 0.01), (3e-2, 0.01)]] * 2  # learning rates together, dropout apart
    again = search_trials(question, train, val, grid, journal=journal)
    assert again == trials
    assert len(calls) == 2
    search_trials(question, train, val, {**grid, "dropout": [0.1, 0.2, 0.3]}, journal=journal)
    assert len(calls) == 3  # only the new value
    search_trials(question, train, val[:10], grid, journal=journal)
    assert len(calls) == 5  # other bags: old scores do not count
    flipped = [replace(bag, label=1 - (bag.label or 0)) for bag in train]
    search_trials(question, flipped, val, grid, journal=journal)
    assert len(calls) == 7  # the same names, other labels
    moved = [*val[:-1], replace(val[-1], features=val[-1].features + 1)]
    search_trials(question, train, moved, grid, journal=journal)
    assert len(calls) == 9  # the same names, other features


def test_a_trial_is_scored_at_the_epoch_that_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[TrainedRun] = []

    def remembering(*arguments: object, **settings: object) -> list[TrainedRun]:
        runs.extend(fit_job(*arguments, **settings))  # type: ignore[arg-type]
        return runs

    monkeypatch.setattr(search_module, "fit_job", remembering)
    torch.manual_seed(0)
    noise = [replace(bag, features=torch.randn(5, 3)) for bag in bags("noise", 32, 0)]
    settings = {"epochs": 30, "selection": "best-val", "monitor": "loss"}
    question = TrialSetup("mean-pool", metric="loss", settings=settings)
    trials = train_trials(question, noise[:12], noise[12:], [{"lr": 0.5}, {"lr": 0.1}])
    for run, trial in zip(runs, trials, strict=True):
        losses = [row["val_loss"] for row in run.history]
        assert min(losses) < losses[-1] - 0.01  # noise is learned by heart: the last epoch is not the kept one
        assert -trial.score == min(losses)


def test_state_of_files_changes_with_what_is_read_from_them(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bags"
    shutil.copytree(made / "bags", folder)
    labels = [LabelRow(path.stem, str(i % 2)) for i, path in enumerate(sorted(folder.iterdir()))]
    states = [bags_state(load_cohort(folder, labels)), bags_state(load_cohort(folder, labels))]
    assert states[0] == states[1]
    assert json.loads(json.dumps(states[0])) == states[0]
    other = [LabelRow(row.slide, str(i // 2 % 2)) for i, row in enumerate(labels)]
    states = [
        states[0],
        bags_state(load_cohort(folder, other)),
        bags_state(load_cohort(folder, labels, max_instances=20)),
        bags_state(load_cohort(folder, labels, scales=Scales(Scale(mpp=0.5)))),
        bags_state(load_cohort(folder, labels, scales=Scales(table={labels[0].slide: Scale(mpp=0.5)}))),
        bags_state(load_cohort(folder, labels)[1:]),
    ]
    os.utime(folder / f"{labels[0].slide}.h5", (1, 1))
    states.append(bags_state(load_cohort(folder, labels)))
    assert len({json.dumps(state) for state in states}) == 7
    assert bags_state([]) is None


def test_nested_command(made: Path, tmp_path: Path) -> None:
    arguments = [
        "search", "--bags", made / "bags", "--labels", made / "labels.csv", "--model", "mean-pool", "--folds", 3,
        "--grid", "lr=1e-2,1e-3", "--epochs", 1, "--seeds", 2, "--out", tmp_path / "s",
    ]  # fmt: skip
    app([str(a) for a in arguments], exit_on_error=False, result_action="return_value")
    record = json.loads((tmp_path / "s" / "search.json").read_text())
    assert len(record["rounds"]) == 3
    for k, round_ in enumerate(record["rounds"]):
        assert round_["trials"][0]["settings"] == round_["chosen"]
        assert round_["score"] == max(trial["score"] for trial in round_["trials"])
        config = json.loads((tmp_path / "s" / f"fold-{k}" / "config.json").read_text())
        assert config["training"]["lr"] == round_["chosen"]["lr"]
    assert json.loads((tmp_path / "s" / "summary.json").read_text())["splits"]["test"]["n"] == 30
    arguments[arguments.index("--folds") : arguments.index("--grid")] = []  # the same folder, no longer nested
    app([str(a) for a in arguments], exit_on_error=False, result_action="return_value")
    left = {path.name for path in (tmp_path / "s").iterdir()}
    assert left & {"best", "search.json", "summary.json", "report.html", "fold-0"} == {"best", "search.json"}
    assert Run.read(tmp_path / "s" / "best").seeds.keys() == {0, 1}


def test_another_winner_replaces_the_earlier_one(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "s"

    def searched(grid: str) -> tuple[dict[str, Any], str]:
        arguments = [
            "search", "--bags", made / "bags", "--labels", made / "labels.csv", "--model", "max-pool", "--metric",
            "loss", "--grid", grid, "--epochs", 2, "--seeds", 1, "--out", out,
        ]  # fmt: skip
        app([str(a) for a in arguments], exit_on_error=False, result_action="return_value")
        return json.loads((out / "best" / "config.json").read_text())["training"], capsys.readouterr().err

    assert searched("lr=1e-9")[0]["lr"] == 1e-9
    (out / "best" / "mine.txt").touch()
    training, said = searched("lr=1e-9")
    assert "Replaced" not in said
    assert (out / "best" / "mine.txt").exists()  # the same winner: its run stays
    training, said = searched("lr=1e-9,1e-1")
    record = json.loads((out / "search.json").read_text())
    assert record["rounds"][0]["chosen"] == {"lr": 0.1}
    losses = [trial["score"] for trial in record["rounds"][0]["trials"]]
    assert 0 < record["rounds"][0]["score"] == losses[0] < losses[1]  # losses as they are, the smallest first
    assert training["lr"] == 0.1
    assert said.count(f"Replaced: {out / 'best'}") == 1
    assert not (out / "best" / "mine.txt").exists()
    (out / "search.json").unlink()
    with pytest.raises(InputError, match="best holds a run that no search made"):
        searched("lr=1e-2")


def test_folds_of_an_earlier_search_go_where_they_differ_or_are_too_many(tmp_path: Path) -> None:
    for name in ("fold-0", "fold-1", "fold-2", "best"):
        (tmp_path / name).mkdir()
    for name in ("summary.json", "report.html"):
        (tmp_path / name).touch()
    rounds = [{"made_with": mark} for mark in "abc"]
    (tmp_path / "search.json").write_text(json.dumps({"rounds": rounds}))
    _remove_earlier(tmp_path, {"fold-0": "a", "fold-1": "b", "fold-2": "c"}, print)
    assert len(list(tmp_path.iterdir())) == 7, "the same search: all stays"
    _remove_earlier(tmp_path, {"fold-0": "a", "fold-1": "z"}, print)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "fold-0", "search.json"]
    (tmp_path / "summary.json").touch()  # of a run beside `best/` that no search made
    (tmp_path / "search.json").write_text(json.dumps({"rounds": rounds[:1]}))
    _remove_earlier(tmp_path, {"best": "z"}, print)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fold-0", "search.json", "summary.json"]


def test_grid_names_are_checked() -> None:
    assert parse_grid(["lr=1e-2,1e-3", "pooling=max,mean"], "das-mil") == {
        "lr": [0.01, 0.001],
        "pooling": ["max", "mean"],
    }
    with pytest.raises(InputError, match="Did you mean 'hidden'"):
        parse_grid(["hiden=1"], "das-mil")
    for entry in ("lr", "lr=", "lr=1e-2,,1e-3", "lr=1e-2, "):
        with pytest.raises(InputError, match="expected name=value,value"):
            parse_grid([entry], "das-mil")
    with pytest.raises(InputError, match="given twice"):
        parse_grid(["lr=1", "lr=2"], "das-mil")
    with pytest.raises(InputError, match="--grid lr: a value is listed twice"):
        parse_grid(["lr=" + "1," * 4999 + "1"], "das-mil")
    with pytest.raises(InputError, match="nothing to search"):
        parse_grid([], "das-mil")


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"lr": [1e-2, "abc"]}, "training setting lr: .*found 'abc'"),
        ({"lr": [1e-2, -1]}, "training setting lr: Input should be greater than 0"),
        ({"warmup_epochs": [0, 5]}, "warmup_epochs is 5.0, expected less than epochs"),
        ({"lr": [1e-2], "pooling": ["max", "foo"]}, "pooling is 'foo', expected one of max"),
        ({"hidden": [8, "abc"]}, "hidden is 'abc', expected a whole number"),
        ({"n_classes": [2, 3]}, "n_classes is 3, but the training labels have 2 classes"),
    ],
)
def test_bad_values_are_refused_before_anything_is_trained(
    grid: dict[str, list[Any]], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "fit_job", lambda *_, **__: pytest.fail("trained"))
    train, val = bags("train", 6, 0), bags("val", 4, 1)
    with pytest.raises(InputError, match=message):
        search_trials(TrialSetup("das-mil", settings={"epochs": 2}), train, val, grid, journal=tmp_path / "journal")
    check_search(TrialSetup("das-mil"), train, val, {"lr": [1e-2, 1e-3], "pooling": ["max", "mean"]})


def test_validation_bags_of_one_class_compare_by_loss_alone() -> None:
    train, val = bags("train", 6, 0), bags("val", 6, 1)[::2]
    for metric in ("auroc", "balanced_accuracy"):
        with pytest.raises(InputError, match=r"have none of class 1.*use --metric loss"):
            check_search(TrialSetup("mean-pool", metric=metric), train, val, {"lr": [1e-2]})
    check_search(TrialSetup("mean-pool", metric="loss"), train, val, {"lr": [1e-2]})


def test_a_trial_that_diverged_is_null_in_the_printed_json(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = search_module.train_trials

    def diverging(*arguments: Any) -> list[Trial]:
        return [replace(t, score=float("-inf")) if t.settings["lr"] == 1.0 else t for t in original(*arguments)]

    monkeypatch.setattr(search_module, "train_trials", diverging)
    arguments = [
        "search", "--bags", made / "bags", "--labels", made / "labels.csv", "--model", "mean-pool",
        "--grid", "lr=1.0,1e-3", "--epochs", 1, "--seeds", 1, "--out", tmp_path / "s", "--json",
    ]  # fmt: skip
    app([str(a) for a in arguments], exit_on_error=False, result_action="return_value")
    printed = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert [trial["settings"]["lr"] for trial in printed["rounds"][0]["trials"]] == [1e-3, 1.0]
    assert printed["rounds"][0]["trials"][1]["score"] is None


def test_a_tie_is_said(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "search", "--bags", made / "bags", "--labels", made / "labels.csv", "--model", "mean-pool", "--grid",
        "lr=1e-12,1e-13,1e-14", "--epochs", 1, "--seeds", 1, "--out", tmp_path / "s",
    ]  # fmt: skip
    app([str(a) for a in arguments], exit_on_error=False, result_action="return_value")
    said = "3 of 3 settings tie in val auroc, so the validation bags did not choose between them: the first of the grid"
    assert f"{said} is taken (lr=1e-12; lr=1e-13; lr=1e-14)" in capsys.readouterr().err
    (found,) = json.loads((tmp_path / "s" / "search.json").read_text())["rounds"]
    assert found["chosen"] == {"lr": 1e-12}
    assert found["tied"] == [{"lr": 1e-12}, {"lr": 1e-13}, {"lr": 1e-14}]
    spec = dasmil.CohortSpec(bags=made / "bags", labels=made / "labels.csv")
    outcome = dasmil.search(spec, "mean-pool", {"lr": [1e-12, 1e-13]}, out=tmp_path / "p", epochs=1)
    first, second = str(outcome).splitlines()
    assert first == f"SearchOutcome({outcome.run!r})"
    assert second == f"chosen  lr=1e-12  score {found['score']:.4f}; 2 of 2 settings tie"
