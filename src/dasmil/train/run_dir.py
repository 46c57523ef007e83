"""The run directory: every file that training leaves behind, written whole or not at all."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dasmil import __version__, files
from dasmil.errors import DataError, InputError
from dasmil.files import finite, json_hash, replacing, write_csv, write_json
from dasmil.train.config import differences

FORMAT = "dasmil-run"
FORMAT_VERSION = 1
CHECKPOINT_FORMAT = "dasmil-checkpoint"


def read_json(path: Path) -> Any:
    """The content of a JSON file of a run."""
    return files.read_json(path, "a run directory written by dasmil train")


class RunDirectory:
    """A folder that belongs to one run configuration; see docs/training.md for its files."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.hash = json_hash(config)
        self.resumed = False

    @classmethod
    def open(cls, path: str | Path, config: dict[str, Any], data: dict[str, Any], *, resume: bool) -> RunDirectory:
        """Begin a run in a new folder, or go on with the one that is there (``resume``; if none is there, begin)."""
        path = Path(path)
        check_kind(path)
        run = cls(path, {"format": FORMAT, "format_version": FORMAT_VERSION, **finite(config)})
        known = path / "config.json"
        run.resumed = known.exists()
        if run.resumed:
            found = read_json(known)
            changes = differences(found, run.config)
            if not resume:
                kind = "this run" if not changes else "another run"
                advice = "continue it with --resume, or choose" if not changes else "choose"
                raise InputError(f"{path} already holds {kind} ({_title(found)}): {advice} another folder with --out")
            if changes:
                shown = "; ".join(changes[:5]) + ("; ..." if len(changes) > 5 else "")
                raise InputError(
                    f"{path} holds another run ({_title(found)}), which cannot be resumed with other settings "
                    f"({shown}): use the same settings or another folder"
                )
            before = read_json(path / "data.json")
            if before.get("fingerprint") != data["fingerprint"]:
                raise InputError(
                    f"{path} was trained on other bags (fingerprint {str(before.get('fingerprint'))[:12]}, now "
                    f"{data['fingerprint'][:12]}): give it the same data to resume, or another folder"
                )
        else:
            if path.exists() and not path.is_dir():
                raise InputError(f"{path} is a file, expected a folder for the run")
            write_json(path / "data.json", data)
        write_json(path / "versions.json", versions())
        write_json(known, run.config)
        return run

    # --- checkpoint (the Store of the training loop) ---

    def save(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Keep the state of training in one file; checkpoint.json repeats the few facts a reader may want."""
        header = {
            "format": CHECKPOINT_FORMAT,
            "config_hash": self.hash,
            "model": str(self.config["model"]["name"]),
            "state": json.dumps(state),
        }
        with replacing(self.path / "checkpoint.safetensors") as temporary:
            save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, temporary, header)
        for seed, rows in self._histories(state).items():
            self.write_history(seed, rows)
        facts = {
            "config_hash": self.hash,
            "model": header["model"],
            "attempt": state["attempt"],
            "epoch": state["epoch"],
            "epochs": self.config["training"]["epochs"],
            "done": not state["rows"],
            "dasmil_version": __version__,
        }
        write_json(self.path / "checkpoint.json", facts)

    def _histories(self, state: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
        seeds = self.config["seeds"]
        found: dict[int, list[dict[str, Any]]] = {}
        for row, s in zip(state["rows"], state["states"]):
            if s["history"]:
                found.setdefault(seeds[row], s["history"])  # the first start, until one is chosen
        return found

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The saved state, or None before the end of the first epoch."""
        file = self.path / "checkpoint.safetensors"
        if not file.exists():
            return None
        try:
            with safe_open(file, framework="pt") as reader:
                header = reader.metadata() or {}
                tensors = {key: reader.get_tensor(key) for key in reader.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise DataError(f"{file} is not a readable checkpoint ({error}): delete it to start again") from error
        if header.get("format") != CHECKPOINT_FORMAT:
            raise DataError(f"{file} is not a checkpoint of dasmil: delete it to start again")
        if header.get("config_hash") != self.hash:
            raise DataError(
                f"{file} is the checkpoint of another run (model {header.get('model')}), expected "
                f"{_title(self.config)}: put the right one back, or delete it to start again"
            )
        return tensors, json.loads(header["state"])

    # --- results of one seed ---

    def seed_path(self, seed: int) -> Path:
        return self.path / f"seed-{seed}"

    def write_history(self, seed: int, rows: list[dict[str, Any]]) -> None:
        """metrics.csv, one row an epoch."""
        write_csv(self.seed_path(seed) / "metrics.csv", rows, _history_columns(rows))


def check_kind(path: Path, folds: int | None = None) -> None:
    """Refuse a folder whose run is of another kind: a plain run (no ``folds``), or one of so many folds."""
    begun, advice = _fold_folders(path), "choose another folder with --out"
    if folds is None:
        found = f"a cross-validation with {begun[0].name}" if begun else None
    elif (path / "config.json").exists():
        found = f"{_title(read_json(path / 'config.json'))}, without folds"
    else:
        known = read_json(begun[0] / "config.json").get("data", {}).get("folds", folds) if begun else folds
        found = f"a cross-validation of {known} folds, not {folds}" if known != folds else None
        advice = f"give --folds {known}, or {advice}"
    if found:
        raise InputError(f"{path} already holds another run ({found}): {advice}")


def _fold_folders(path: Path) -> list[Path]:
    folders = [file.parent for file in path.glob("fold-*/config.json")]
    return sorted(folders, key=lambda folder: int(folder.name.removeprefix("fold-")))


def _history_columns(rows: list[dict[str, Any]]) -> list[str]:
    first = ["epoch", "lr", "train_loss", "train_balanced_accuracy", "val_loss", "val_auroc", "val_balanced_accuracy"]
    first.append("seconds")
    return first + [name for name in rows[0] if name not in first]


def _title(config: Mapping[str, Any]) -> str:
    data = config.get("data", {})
    name = data.get("name") or data.get("bags") or "own bags"
    model = config.get("model", {}).get("name", "unknown model")
    return f"{model} on {name}, seeds {', '.join(map(str, config.get('seeds', [])))}"


def versions() -> dict[str, str]:
    """Versions of what computes the numbers."""
    from importlib.metadata import version

    packages = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "nystrom-attention")
    return {
        "dasmil": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version(name) for name in packages},
    }


@dataclass(frozen=True)
class StoredRun:
    """A finished run directory, as evaluate and predict read it; folders: itself, or its folds."""

    path: Path
    config: dict[str, Any]
    folders: tuple[Path, ...]
    seeds: tuple[int, ...]

    @classmethod
    def read(cls, path: str | Path) -> StoredRun:
        """Check that this is a run directory with trained models."""
        path = Path(path)
        if not path.exists():
            raise InputError(f"{path} does not exist: expected a run directory written by dasmil train")
        folders = _fold_folders(path)
        if folders:
            known = path / "summary.json"  # written when all folds are finished
            expected = read_json(known).get("folds") if known.exists() else None
            if expected != len(folders):
                summary = f"its summary is of {expected}" if expected else "no summary of all"
                raise DataError(
                    f"{path} is a cross-validation that is not finished ({len(folders)} folds begun, {summary}): "
                    "finish it with the same dasmil train command and --resume"
                )
        folders = folders or [path]
        config = read_json(folders[0] / "config.json")
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise DataError(f"{folders[0] / 'config.json'} does not describe a run of dasmil train")
        run = cls(path, config, tuple(folders), tuple(config["seeds"]))
        missing = [file for file in run.model_files() if not file.exists()]
        if missing:
            raise DataError(f"{missing[0]} is missing: finish the run with dasmil train ... --resume")
        return run

    @property
    def classes(self) -> int:
        """How many classes its models tell apart."""
        return int(self.config["model"]["options"].get("n_classes") or 2)

    def model_files(self) -> list[Path]:
        """The weights of every seed of every fold."""
        return [folder / f"seed-{s}" / "model.safetensors" for folder in self.folders for s in self.seeds]
