"""Curves in other tools, offline; wandb and mlflow are tested where they are installed."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dasmil.cli import app
from dasmil.data.store import write_bag
from dasmil.errors import InputError
from dasmil.train.loggers import make_logger
from dasmil.types import Bag


def trained(tmp_path: Path, log: str) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "f").mkdir()
    rows = ["slide,label,split"]
    for i in range(12):
        features = torch.from_numpy(rng.normal(size=(4, 3)).astype(np.float32)) + 2 * (i % 2)
        coords = torch.from_numpy(rng.uniform(0, 50, (4, 2)).astype(np.float32))
        write_bag(tmp_path / "f" / f"s{i:02d}.h5", Bag(features, coords, "um", "b"))
        rows.append(f"s{i:02d},{i % 2},{'train' if i < 8 else 'val'}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    line = ["train", "--bags", tmp_path / "f", "--labels", tmp_path / "labels.csv", "--model", "mean-pool"]
    line += ["--epochs", 2, "--seeds", 2, "--no-baselines", "--out", tmp_path / "run", "--log", log]
    app([str(part) for part in line], exit_on_error=False, result_action="return_value")
    return tmp_path / "run"


def last_loss(run: Path, seed: int) -> float:
    with (run / f"seed-{seed}" / "metrics.csv").open() as stream:
        return float(list(csv.DictReader(stream))[-1]["train_loss"])


def test_mlflow_files_hold_the_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="the extra mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = trained(tmp_path, "mlflow")
    client: Any = tracking.MlflowClient(tracking_uri=(run / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("dasmil")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["model"] == "mean-pool"
    for seed in (0, 1):
        assert found.data.metrics[f"seed-{seed}/train_loss"] == pytest.approx(last_loss(run, seed), rel=1e-5)


def test_wandb_offline_stays_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = trained(tmp_path, "wandb")
    (file,) = (run / "wandb").rglob("*.wandb")
    assert b"seed-1/train_loss" in file.read_bytes()


def test_other_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown logger 'neptune'"):
        make_logger("neptune", tmp_path, lambda seed: tmp_path, {})
