"""The run directory: its files, interruption at any moment, and folders that belong to something else."""

import csv
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toy
from safetensors.torch import load_file
from toy import toy_bags

import dasmil
from dasmil.cli.training_display import print_summary
from dasmil.errors import DataError, InputError, StorageError
from dasmil.files import finite, write_csv
from dasmil.report import write_report
from dasmil.runs import Run
from dasmil.stats import summarise
from dasmil.study.apply import evaluate_run, predict_run
from dasmil.study.folds import write_fold_summary

SETTINGS = {
    "epochs": 3, "seeds": 2, "restarts": 0, "simple_starts": 0, "model_options": {"hidden": 4}, "data": {"name": "toy"},
}  # fmt: skip

SCRIPT = """
import sys
import torch
torch.set_num_threads(1)
sys.path.insert(0, {folder!r})
from toy import toy_bags
import dasmil
dasmil.fit("das-mil", toy_bags(30), toy_bags(10, seed=5, prefix="val"), seeds=2, epochs=6, restarts=1, lr=1e-3,
           stuck_above=1e-6, selection="best-val", lookahead=4, out=sys.argv[1], resume=True,
           starts=3, simple_starts=0, starts_share=0.5, starts_until=1e-9,
           on_epoch=lambda p: print(p.attempt, p.epoch, flush=True))
print("done", flush=True)
"""


def train(out, **changes):
    return dasmil.fit("das-mil", toy_bags(12), toy_bags(8, seed=3, prefix="val"), out=out, **{**SETTINGS, **changes})


def rows(file):
    with file.open(newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "toy"
    runs = train(out, tests={"test": toy_bags(10, seed=4, prefix="test")})
    return out, runs


def test_files_hold_what_the_runs_say(finished):
    out, runs = finished
    config = json.loads((out / "config.json").read_text())
    assert (config["format"], config["format_version"]) == ("dasmil-run", 1)
    assert config["model"]["name"] == "das-mil"
    assert config["model"]["options"]["hidden"] == 4
    assert config["training"]["epochs"] == 3
    assert config["seeds"] == [0, 1]
    summary = json.loads((out / "summary.json").read_text())
    threshold = summary["threshold"]["decision"]
    data = json.loads((out / "data.json").read_text())
    assert data["name"] == "toy"
    assert data["splits"]["train"]["n"] == 12
    assert data["splits"]["test"]["bag_ids"][3] == "test/3"
    assert data["splits"]["val"]["instances"]["min"] >= 5
    for k, run in enumerate(runs):
        folder = out / f"seed-{k}"
        model = dasmil.load_model(folder)
        for name, value in run.model.state_dict().items():
            assert torch.equal(model.state_dict()[name], value)
        history = rows(folder / "metrics.csv")
        assert [int(r["epoch"]) for r in history] == [1, 2, 3]
        assert float(history[-1]["train_loss"]) == run.history[-1]["train_loss"]
        assert float(history[-1]["midpoint_0"]) == run.history[-1]["midpoint_0"]
        status = json.loads((folder / "status.json").read_text())
        assert status["lr"] == run.lr
        assert (status["fitted"], status["train_loss"]) == (run.fitted, run.train_loss)
        predictions = rows(folder / "predictions.csv")
        assert [r["split"] for r in predictions] == ["train"] * 12 + ["val"] * 8 + ["test"] * 10
        found = np.array([float(r["probability"]) for r in predictions if r["split"] == "test"])
        np.testing.assert_allclose(found, run.predict(toy_bags(10, seed=4, prefix="test")), rtol=1e-5)
        assert [r["prediction"] for r in predictions[-10:]] == [str(int(p >= threshold)) for p in found]
    per_seed = [s["auroc"] for s in summary["splits"]["test"]["per_seed"]]
    assert summary["splits"]["test"]["mean"]["auroc"] == pytest.approx(np.mean(per_seed))
    assert summary["threshold"]["chosen_on"] == "val"
    assert summary["stuck_seeds"] == [run.seed for run in runs if not run.fitted]
    assert summary["selection"] == "last"
    assert not list(out.rglob("*.tmp"))


def test_kill_and_resume_gives_the_same_weights_bit_for_bit(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(SCRIPT.format(folder=str(Path(toy.__file__).parent)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(out):
        return subprocess.Popen(
            [sys.executable, str(script), str(out)], stdout=subprocess.PIPE, text=True, env=environment
        )

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait() == 0
    # Once within the first attempt, once within the restart of the runs that did not fit.
    for stop_at, wait in (("0 3", 0.02), ("1 2", 0.01)):
        process = start(killed)
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == stop_at:
                time.sleep(wait)  # somewhere within the next epoch
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
    assert not (killed / "summary.json").exists()
    assert start(killed).wait() == 0
    for seed in (0, 1):
        one = load_file(whole / f"seed-{seed}" / "model.safetensors")
        two = load_file(killed / f"seed-{seed}" / "model.safetensors")
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)
        first, second = (rows(run / f"seed-{seed}" / "metrics.csv") for run in (whole, killed))
        drop = [{k: v for k, v in r.items() if k != "seconds"} for r in first]
        assert drop == [{k: v for k, v in r.items() if k != "seconds"} for r in second]


def test_a_folder_with_another_run_is_not_touched(finished):
    out, _ = finished
    before = (out / "summary.json").read_text()
    with pytest.raises(
        InputError, match=r"already holds this run \(das-mil on toy, seeds 0, 1\): continue it with --resume"
    ):
        train(out)
    with pytest.raises(InputError, match=r"already holds another run .*: choose another folder"):
        train(out, epochs=4)
    with pytest.raises(InputError, match=r"other settings \(training.epochs: 3 -> 4; training.lr: 0.005 -> 0.01\)"):
        train(out, epochs=4, lr=1e-2, resume=True)
    same = {**SETTINGS, "model_options": json.loads((out / "config.json").read_text())["model"]["options"]}
    with pytest.raises(InputError, match="trained on other bags"):
        dasmil.fit("das-mil", toy_bags(14), toy_bags(8, seed=3, prefix="val"), out=out, resume=True, **same)
    assert (out / "summary.json").read_text() == before


def test_a_checkpoint_of_another_model_is_refused(finished, tmp_path):
    out, _ = finished
    other = tmp_path / "sa"
    dasmil.fit("sa", toy_bags(12), out=other, epochs=1)
    mixed = tmp_path / "mixed"
    shutil.copytree(out, mixed)
    shutil.copy(other / "checkpoint.safetensors", mixed / "checkpoint.safetensors")
    with pytest.raises(DataError, match=r"checkpoint of another run \(model sa\), expected das-mil on toy"):
        train(mixed, resume=True)
    (mixed / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(DataError, match="not a readable checkpoint"):
        train(mixed, resume=True)


def test_a_full_disk_stops_with_a_message_and_resume_finishes(tmp_path, monkeypatch):
    out, saves = tmp_path / "full", 0
    real = Path.write_bytes

    def fails_the_second_time(path, data):
        nonlocal saves
        checkpoint = ".checkpoint.safetensors." in path.name
        saves += checkpoint
        if checkpoint and saves == 2:
            real(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", fails_the_second_time)
    with pytest.raises(
        StorageError, match=r"the disk is full: .*checkpoint.safetensors could not be written.*--resume"
    ):
        train(out)
    assert not list(out.rglob("*.tmp"))
    assert json.loads((out / "checkpoint.json").read_text())["epoch"] == 1
    resumed = train(out, resume=True)
    fresh = train(tmp_path / "fresh")
    for a, b in zip(resumed, fresh, strict=True):
        for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True):
            assert torch.equal(p, q)


def test_predict_and_evaluate_use_the_mean_of_all_seeds(finished):
    out, runs = finished
    test = toy_bags(10, seed=4, prefix="test")
    stored = Run.read(out)
    predicted = predict_run(stored, test)
    mean = np.mean([run.predict(test) for run in runs], axis=0)
    assert [r["bag_id"] for r in predicted] == [b.bag_id for b in test]
    np.testing.assert_allclose([r["probability"] for r in predicted], mean, rtol=1e-6)
    assert [r["prediction"] for r in predicted] == [int(p >= stored.threshold) for p in mean]
    said = stored.ensemble("test")
    assert said is not None
    assert [r["prediction"] for r in predicted] == said.predictions.tolist()  # what the report says
    again = finite(evaluate_run(stored, {"test": test}))
    before = json.loads((out / "summary.json").read_text())
    for part in ("mean", "std", "interval"):
        for name, value in before["splits"]["test"][part].items():
            assert again["splits"]["test"][part][name] == pytest.approx(value), (part, name)
    other = toy_bags(2, prefix="px")
    wrong = [dasmil.Bag(b.features, b.coords, "px", b.bag_id) for b in other]
    with pytest.raises(InputError, match="coordinates are in 'px', but the run's model expects 'um'"):
        predict_run(stored, wrong)
    wide = [dasmil.Bag(torch.cat([b.features] * 2, 1), b.coords, "um", b.bag_id) for b in other]
    with pytest.raises(InputError, match=r"shape \(8,\) per instance"):
        predict_run(stored, wide)


def test_resuming_a_finished_run_keeps_what_was_scored_since(tmp_path):
    out = tmp_path / "run"
    train(out)
    evaluate_run(Run.read(out), {"test": toy_bags(10, seed=4, prefix="test")}, keep=True)
    files = [out / "summary.json", out / "data.json", *(out / f"seed-{k}" / "predictions.csv" for k in (0, 1))]
    before = [file.read_text() for file in files]
    assert [r["split"] for r in rows(files[-1])] == ["train"] * 12 + ["val"] * 8 + ["test"] * 10
    train(out, resume=True)
    assert [file.read_text() for file in files] == before


def test_what_is_no_run_is_said(tmp_path, finished):
    with pytest.raises(InputError, match="does not exist"):
        Run.read(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"config.json is missing"):
        Run.read(tmp_path)
    unfinished = tmp_path / "unfinished"
    shutil.copytree(finished[0], unfinished)
    (unfinished / "seed-1" / "model.safetensors").unlink()
    with pytest.raises(DataError, match="finish the run with dasmil train"):
        Run.read(unfinished)


def test_summary_over_folds(tmp_path, capsys):
    for k in range(3):
        dasmil.fit("max-pool", toy_bags(12, seed=k), toy_bags(8, seed=10 + k, prefix=f"val{k}"), epochs=2, seeds=2,
                   out=tmp_path / f"fold-{k}", model_options={"encoder": "linear-relu"},
                   tests={"test": toy_bags(10, seed=20 + k, prefix=f"test{k}")})  # fmt: skip
    summary = write_fold_summary(tmp_path, 3)
    folds = [json.loads((tmp_path / f"fold-{k}" / "summary.json").read_text()) for k in range(3)]
    values = [f["splits"]["test"]["mean"]["auroc"] for f in folds]
    assert summary["splits"]["test"]["mean"]["auroc"] == pytest.approx(np.mean(values))
    assert summary["splits"]["test"]["std"]["auroc"] == pytest.approx(np.std(values, ddof=1))
    low, high = summary["splits"]["test"]["interval"]["auroc"]
    assert low < np.mean(values) < high
    assert summary["splits"]["test"]["n"] == 30
    assert {name: split["shared_by_folds"] for name, split in summary["splits"].items()} == {
        "train": True, "val": False, "test": False,
    }  # fmt: skip
    shared = summary["splits"]["train"]  # the same twelve in each fold
    assert (shared["n"], shared["patients"], shared["positives"]) == (12, 12, folds[0]["splits"]["train"]["positives"])
    assert np.isnan(shared["interval"]["auroc"]).all(), "drawing them fold by fold would be too narrow"
    assert shared["mean"]["auroc"] == pytest.approx(np.mean([f["splits"]["train"]["mean"]["auroc"] for f in folds]))
    print_summary(json.loads((tmp_path / "summary.json").read_text()), 2)
    printed = capsys.readouterr().out
    assert "[95 % interval over bags; none of train, which the folds share]" in printed
    auroc = next(line for line in printed.splitlines() if line.startswith("AUROC"))
    assert auroc.count("±") == 3
    assert auroc.count("[") == 2
    assert sum(row["n"] for row in summary["splits"]["test"]["calibration"]) == 30
    stored = Run.read(tmp_path)
    assert len(stored.all_seeds) == 6
    assert len(predict_run(stored, toy_bags(4, prefix="new"))) == 4
    assert evaluate_run(stored, {"new": toy_bags(6, prefix="new")})["splits"]["new"]["n"] == 6
    shutil.rmtree(tmp_path / "fold-1")
    with pytest.raises(DataError, match=r"not finished \(2 folds begun, its summary is of 3\): finish it with"):
        Run.read(tmp_path)
    (tmp_path / "summary.json").unlink()
    with pytest.raises(DataError, match=r"not finished \(2 folds begun, no summary of all\)"):
        Run.read(tmp_path)


def test_a_run_that_learned_by_heart_is_named(tmp_path, capsys):
    def bags(count: int, prefix: str, tells: float) -> list[dasmil.Bag]:
        """Every bag is one point; its first feature tells the label, unless ``tells`` is 0."""
        rng = np.random.default_rng(len(prefix))
        features = rng.standard_normal((count, 1, 40)).astype(np.float32)
        features[1::2, 0, 0] += tells
        place = np.zeros((1, 2), np.float32)
        return [dasmil.Bag(features[i], place, "um", f"{prefix}/{i}", label=i % 2) for i in range(count)]

    for name, tells, expected in (("noise", 0.0, [0, 1]), ("signal", 9.0, [])):
        out = tmp_path / name
        settings = {"epochs": 60, "lr": 0.01, "seeds": 2, "out": out, "model_options": {"encoder": "linear-relu"}}
        runs = dasmil.fit("max-pool", bags(16, "train", tells), bags(30, "val", tells), **settings)
        assert all(run.fitted for run in runs)
        summary = json.loads((out / "summary.json").read_text())
        assert summary["chance_seeds"] == expected
        write_report(out)
        assert ("the model overfits" in (out / "report.html").read_text()) == bool(expected)
        print_summary(summary, 2)
        assert ("chance on the validation bags: seed 0, seed 1" in capsys.readouterr().out) == bool(expected)


def test_tensorboard_events_hold_the_curve(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runs = train(tmp_path / "events", tensorboard=True)
    events = EventAccumulator(str(tmp_path / "events" / "seed-1" / "tensorboard"))
    events.Reload()
    found = [e.value for e in events.Scalars("train_loss")]
    assert found == pytest.approx([r["train_loss"] for r in runs[1].history])


def of_patients(bags, slides):
    """The same bags, several in a row of one patient and of one class."""
    return [replace(bag, patient_id=f"patient {i // slides}", label=(i // slides) % 2) for i, bag in enumerate(bags)]


def test_intervals_are_over_patients_and_older_files_are_read(tmp_path, capsys):
    train, val, test = (of_patients(toy_bags(24, seed=s, prefix=f"{s}"), 3) for s in range(3))
    out = tmp_path / "fold-0"
    dasmil.fit("mean-pool", train, val, epochs=1, out=out, tests={"test": test})
    predicted = rows(out / "seed-0" / "predictions.csv")
    assert [r["patient_id"] for r in predicted] == [f"patient {i // 3}" for i in range(24)] * 3
    summary = json.loads((out / "summary.json").read_text())
    scored = summary["splits"]["test"]
    assert (scored["n"], scored["patients"]) == (24, 8)
    probability = [float(r["probability"]) for r in predicted if r["split"] == "test"]
    labels, patients = [b.label for b in test], [b.patient_id for b in test]
    threshold = [summary["threshold"]["decision"]]
    expected = summarise(labels, [probability], threshold, patients=patients)["interval"]
    assert scored["interval"]["auroc"] == pytest.approx(expected["auroc"])
    assert scored["fewest"] == 4
    assert scored["interval"]["brier"] == pytest.approx(expected["brier"])
    assert scored["interval"]["brier"] != pytest.approx(
        summarise(labels, [probability], threshold)["interval"]["brier"]
    )
    print_summary(summary, 3)
    assert "Sensitivity and specificity at the most probable class." in capsys.readouterr().out
    print_summary(summary, 2)
    printed = capsys.readouterr().out
    said = (
        f"Sensitivity and specificity at {threshold[0]:.3f}, the threshold that the run chose on the validation bags; "
        "balanced acc. and F1 at 0.5."
    )
    assert said in " ".join(printed.split())
    assert "test (24 bags of 8 patients)" in printed
    assert "[95 % interval over patients]" in printed
    whole = write_fold_summary(tmp_path, 1)["splits"]["test"]
    assert (whole["n"], whole["patients"]) == (24, 8)
    assert whole["interval"]["brier"] == pytest.approx(expected["brier"])

    older = [{name: value for name, value in row.items() if name != "patient_id"} for row in predicted]
    write_csv(out / "seed-0" / "predictions.csv", older)
    assert write_fold_summary(tmp_path, 1)["splits"]["test"]["patients"] == 24  # then a bag is its own patient
    again = evaluate_run(Run.read(out), {"test": test}, keep=True)["splits"]["test"]
    for name, interval in scored["interval"].items():
        assert finite(again["interval"][name]) == pytest.approx(interval), name
    mixed = rows(out / "seed-0" / "predictions.csv")
    assert [r["patient_id"] for r in mixed] == [""] * 48 + patients


def test_a_fold_with_one_class_takes_no_interval_away(tmp_path):
    for k in range(3):
        test = toy_bags(10, seed=20 + k, prefix=f"test{k}")
        test = test[1::2] if k == 2 else test  # positive bags only
        dasmil.fit("max-pool", toy_bags(12, seed=k), epochs=1, out=tmp_path / f"fold-{k}", tests={"test": test})
    three = write_fold_summary(tmp_path, 3)["splits"]["test"]
    two = write_fold_summary(tmp_path, 2)["splits"]["test"]
    for part in ("mean", "std", "interval"):
        assert three[part]["auroc"] == pytest.approx(two[part]["auroc"])
    assert np.isfinite(three["interval"]["auroc"]).all()
