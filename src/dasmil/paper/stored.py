"""The small files of a cell: logits of every bag and seed (.npz), and the manifest with its summary (.json)."""

from __future__ import annotations

import platform
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.engine.units import code_digest
from dasmil.errors import DataError
from dasmil.files import read_json, replacing, write_json
from dasmil.runs import Run, Seed, versions
from dasmil.stats.pairs import scores

FORMAT, FORMAT_VERSION = "dasmil-cell", 1
SPLITS = ("train", "validation", "test", "test-large")
ROUNDING = 1e-6  # summaries are recomputed on other machines, with other numbers of threads


@dataclass(frozen=True)
class StoredPredictions:
    """Labels [n] and logits [seeds, n] of every set; logits are kept in half precision, and scored as kept."""

    labels: dict[str, NDArray[np.uint8]]
    logits: dict[str, NDArray[np.float16]]

    def summary(self) -> dict[str, Any]:
        """Scores of every set."""
        return {
            split: {"n": len(y), "positives": int((y == 1).sum()), **scores(y, self.logits[split])}
            for split, y in self.labels.items()
        }


def collect(run: Run) -> StoredPredictions:
    """The predictions of a finished run."""
    seeds = list(run.seeds.values())
    limit = float(np.finfo(np.float16).max)
    logits = {split: np.array([seed.predictions(split).logits for seed in seeds]) for split in seeds[0].scored}
    return StoredPredictions(
        {split: found.labels.astype(np.uint8) for split, found in seeds[0].scored.items()},
        {split: np.clip(values, -limit, limit).astype(np.float16) for split, values in logits.items()},
    )


def cell_path(results: Path, key: str) -> Path:
    """Where the manifest of a cell lives; its predictions stand beside it."""
    table, protocol, row, dataset = key.split("/")
    return results / table / protocol / f"{row}.{dataset}.json"


def write_predictions(path: Path, predictions: StoredPredictions, **more: NDArray[Any]) -> None:
    """One compressed file without pickled objects."""
    arrays: dict[str, Any] = {f"labels.{split}": y for split, y in predictions.labels.items()}
    arrays |= {f"logits.{split}": z for split, z in predictions.logits.items()}
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays, **more)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a stored file."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not readable ({error}): restore it, or remove its .json to train again") from error


def read_predictions(path: Path) -> StoredPredictions:
    """The predictions beside a cell's manifest."""
    arrays = read_arrays(path)
    parts: dict[str, dict[str, NDArray[Any]]] = {"labels": {}, "logits": {}}
    for name, array in arrays.items():
        kind, _, split = name.partition(".")
        if kind in parts:
            parts[kind][split] = array
    if set(parts["labels"]) != set(parts["logits"]) or not parts["labels"]:
        raise DataError(f"{path} has labels of {sorted(parts['labels'])} but logits of {sorted(parts['logits'])}")
    return StoredPredictions(parts["labels"], parts["logits"])


def write_cell(
    path: Path, plan: Mapping[str, Any], predictions: StoredPredictions, run: Run, *, cpu_seconds: float | None
) -> None:
    """Write predictions, then the manifest: a cell whose manifest exists is complete."""
    write_predictions(path.with_suffix(".npz"), predictions)
    # Without the names of the bags: the data set gives them again, in this order.
    sets = {
        name: {k: v for k, v in facts.items() if k != "bag_ids"} for name, facts in run.data.get("splits", {}).items()
    }
    seeds = [run.seeds[seed] for seed in plan["seeds"]]
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "plan": dict(plan),
        "summary": predictions.summary(),
        "stuck_seeds": [seed.number for seed in seeds if seed.stuck],
        "seeds": [
            {k: seed.status.get(k) for k in ("seed", "fitted", "reason", "train_loss", "restarts", "learned_distances")}
            | {"last_epoch": last_epoch(seed)}
            for seed in seeds
        ],
        "parameters": sum(p.numel() for p in seeds[0].model().parameters()),
        "config": run.config,
        "data": {**run.data, "splits": sets},
        "versions": made_with(),
        "wall_seconds": max(float(seed.history["seconds"].sum()) for seed in seeds),  # they train together
        "cpu_seconds": cpu_seconds,
    }
    write_json(path, manifest)


def last_epoch(seed: Seed) -> dict[str, float]:
    """Scores on the training bags as they were trained on in the last epoch, with dropout: what the paper prints."""
    return {name: float(seed.history[name][-1]) for name in ("train_loss", "train_balanced_accuracy")}


def made_with() -> dict[str, Any]:
    """Versions, kind of machine, digest of the package's sources, and the commit of the checkout."""
    kind = {"platform": f"{platform.system()} {platform.machine()}"}
    return {**versions(), **kind, "code": code_digest(), **commit()}


def commit() -> dict[str, Any]:
    """The commit of the source checkout and whether its package differs from it; nothing outside of a checkout."""
    root = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str | None:
        try:
            ended = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return None
        return ended.stdout.strip() if ended.returncode == 0 else None

    head = git("rev-parse", "HEAD")
    if head is None or git("ls-files", "--error-unmatch", "__init__.py") is None:
        return {"commit": None, "changed": None}
    return {"commit": head, "changed": bool(git("status", "--porcelain", "--", "."))}


def read_cell(path: Path) -> dict[str, Any] | None:
    """The manifest of a cell, or None if it has not been filled yet."""
    if not path.exists():
        return None
    manifest = read_json(path)
    if manifest.get("format") != FORMAT or manifest.get("format_version") != FORMAT_VERSION:
        raise DataError(f"{path} is not a cell of dasmil reproduce, version {FORMAT_VERSION}: remove it to train again")
    return manifest


def check_cell(path: Path, labels: Mapping[str, NDArray[Any]]) -> list[str]:
    """What is wrong with a stored cell: figures that its predictions do not give, labels that are not the bags'."""
    manifest = read_cell(path)
    if manifest is None:
        raise DataError(f"{path} does not exist")
    predictions = read_predictions(path.with_suffix(".npz"))
    wrong = [f"no predictions of the set {split}" for split in SPLITS if split not in predictions.labels]
    for split, found in predictions.labels.items():
        if not np.array_equal(found, labels[split]):
            wrong.append(f"the stored labels of {split} are not those of the bags")
        expected = (len(manifest["plan"]["seeds"]), len(found))
        if predictions.logits[split].shape != expected:
            wrong.append(f"logits of {split} have shape {predictions.logits[split].shape}, expected {expected}")
    if not wrong:
        again = predictions.summary()
        wrong += _differences(manifest["summary"], again, "")
    return wrong


def _differences(stored: Any, again: Any, where: str) -> list[str]:
    if isinstance(again, Mapping):
        keys = sorted({*again, *(stored if isinstance(stored, Mapping) else ())})
        get = stored.get if isinstance(stored, Mapping) else lambda _: None
        return [line for key in keys for line in _differences(get(key), again.get(key), f"{where} {key}".strip())]
    if isinstance(again, list) and isinstance(stored, list) and len(again) == len(stored):
        return [line for a, b in zip(stored, again) for line in _differences(a, b, where)]
    if isinstance(stored, (int, float)) and isinstance(again, (int, float)) and abs(stored - again) <= ROUNDING:
        return []
    return [f"{where}: stored {stored}, recomputed {again}"]
