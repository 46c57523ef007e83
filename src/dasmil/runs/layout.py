"""The files of a run directory by name; docs/training.md describes them. No other room knows these names."""

from __future__ import annotations

import re
from pathlib import Path

from dasmil.errors import InputError
from dasmil.models.storage import MODEL_FILE

CONFIG, DATA, SUMMARY, VERSIONS = "config.json", "data.json", "summary.json", "versions.json"
CHECKPOINT, CHECKPOINT_FACTS, REPORT = "checkpoint.safetensors", "checkpoint.json", "report.html"
HISTORY, PREDICTIONS, STATUS = "metrics.csv", "predictions.csv", "status.json"
ACCOUNTS = "accounts"
STUDY = "study.toml"
BASELINES = "baselines"
BAGS = "bags.json"
COVARIATES = "covariates.json"
LOCALISATION = "localisation.json"
RECALIBRATION = "recalibration.json"
CLINICAL = "clinical.json"
MAPS = "maps.safetensors"
DOMAIN = "features.safetensors"


def seed_folder(run: Path, seed: int) -> Path:
    """Where a seed of a run keeps its files."""
    return run / f"seed-{seed}"


def fold_folder(run: Path, fold: int) -> Path:
    """The run of one fold of a cross-validation."""
    return run / f"fold-{fold}"


def fold_folders(run: Path) -> list[Path]:
    """The folds of a cross-validation that were begun, in order; none of a plain run."""
    return [folder for folder in numbered(run, "fold") if is_begun(folder)]


def is_begun(run: Path) -> bool:
    """Whether a run (not a cross-validation) was begun in this folder."""
    return (run / CONFIG).is_file()


def is_finished(run: Path) -> bool:
    """Whether a run, or a cross-validation as a whole, has its summary."""
    return (run / SUMMARY).is_file()


def numbered(folder: Path, kind: str) -> list[Path]:
    """Folders kind-0, kind-1, ... by number."""
    found = [p for p in folder.glob(f"{kind}-*") if p.is_dir() and re.fullmatch(rf"{kind}-\d+", p.name)]
    return sorted(found, key=lambda p: int(p.name.rpartition("-")[2]))


def model_files(path: Path) -> list[Path]:
    """The weights of all seeds (and folds) that are there, in order: of a run, of a seed's folder, or a file itself."""
    if path.is_file():
        return [path]
    if (path / MODEL_FILE).is_file():
        return [path / MODEL_FILE]
    return [*seed_models(path), *(file for fold in numbered(path, "fold") for file in seed_models(fold))]


def seed_models(run: Path) -> list[Path]:
    """The weights of the seeds of a run itself, not of its folds."""
    return [folder / MODEL_FILE for folder in numbered(run, "seed") if (folder / MODEL_FILE).is_file()]


def find_model(path: Path, seed: int | None = None) -> Path:
    """The model file that a path means: itself, or the seed asked for of a run (else its first one)."""
    if not path.exists():
        raise InputError(f"{path} does not exist: expected a .safetensors file or a run directory")
    if seed is not None:
        file = seed_folder(path, seed) / MODEL_FILE
        if not file.is_file():
            known = ", ".join(p.parent.name.removeprefix("seed-") for p in seed_models(path))
            raise InputError(f"{path} has no seed {seed}: it has {known or 'none (folds are named as RUN/fold-0)'}")
        return file
    found = model_files(path)
    if not found:
        raise InputError(
            f"{path} holds no model: expected model.safetensors, seed-0/model.safetensors or fold-0/seed-0/..."
        )
    return found[0]


def runs_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """The runs in a folder of runs, however deep: those that are finished, and those that are not."""
    found = sorted(file.parent for file in folder.rglob(CONFIG))
    return [run for run in found if is_finished(run)], [run for run in found if not is_finished(run)]
