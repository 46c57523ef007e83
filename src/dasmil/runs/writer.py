"""The writer of run directories: every file whole or not at all; an interrupted run can go on from its checkpoint."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from dasmil import __version__
from dasmil.errors import DataError, InputError, is_text
from dasmil.files import differences, finite, json_hash, need_readable, write_json, write_tensors, write_text
from dasmil.models.storage import MODEL_FILE
from dasmil.runs import layout
from dasmil.runs.predictions import stored_rows, write_history, write_predictions
from dasmil.runs.records import read_config, read_record, read_summary
from dasmil.runs.schema import (
    FORMAT,
    FORMAT_VERSION,
    CheckpointFacts,
    DataRecord,
    Scores,
    SeedStatus,
    SeenBags,
)

if TYPE_CHECKING:
    from dasmil.models.base import MILModel

CHECKPOINT_FORMAT = "dasmil-checkpoint"


class RunWriter:
    """A folder that belongs to one run configuration, while it is trained."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.hash = json_hash(config)
        self.resumed = False

    @classmethod
    def open(cls, path: str | Path, config: dict[str, Any], data: dict[str, Any], *, resume: bool) -> RunWriter:
        """Begin a run in a new folder, or go on with the one that is there (``resume``; if none is there, begin)."""
        path = Path(path)
        if not is_text(str(path)):
            raise InputError(f"{str(path)!r} holds bytes that are not UTF-8, which no file of a run can name")
        check_kind(path)
        run = cls(path, {"format": FORMAT, "format_version": FORMAT_VERSION, **finite(config)})
        run.resumed = layout.is_begun(path)
        if run.resumed:
            run._check_same(data, resume)
        else:
            if path.exists() and not path.is_dir():
                raise InputError(f"{path} is a file, expected a folder for the run")
            write_json(path / layout.DATA, data)
        write_json(path / layout.VERSIONS, versions())
        write_json(path / layout.CONFIG, run.config)
        return run

    def _check_same(self, data: dict[str, Any], resume: bool) -> None:
        found = read_config(self.path)
        changes = differences(found, self.config)
        if not resume:
            kind = "this run" if not changes else "another run"
            advice = "continue it with --resume, or choose" if not changes else "choose"
            raise InputError(f"{self.path} already holds {kind} ({_title(found)}): {advice} another folder with --out")
        if changes:
            shown = "; ".join(changes[:5]) + ("; ..." if len(changes) > 5 else "")
            raise InputError(
                f"{self.path} holds another run ({_title(found)}), which cannot be resumed with other settings "
                f"({shown}): use the same settings or another folder"
            )
        before = read_record(DataRecord, self.path, layout.DATA).get("fingerprint")
        if before != data["fingerprint"]:
            raise InputError(
                f"{self.path} was trained on other bags (fingerprint {str(before)[:12]}, now "
                f"{data['fingerprint'][:12]}): give it the same data to resume, or another folder"
            )

    # --- checkpoint (the Store of the training loop) ---

    def save(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Keep the state of training in one file; a small file beside it repeats the facts a reader may want."""
        header = {
            "format": CHECKPOINT_FORMAT,
            "config_hash": self.hash,
            "model": str(self.config["model"]["name"]),
            "state": json.dumps(state),
        }
        write_tensors(self.path / layout.CHECKPOINT, tensors, header)
        for seed, rows in self._histories(state).items():
            self.write_history(seed, rows)
        self._write_facts(state)

    def _write_facts(self, state: Mapping[str, Any]) -> None:
        facts = {
            "config_hash": self.hash,
            "model": str(self.config["model"]["name"]),
            "attempt": state["attempt"],
            "epoch": state["epoch"],
            "epochs": self.config["training"]["epochs"],
            "done": not state["rows"],
            "dasmil_version": __version__,
        }
        write_json(self.path / layout.CHECKPOINT_FACTS, facts)

    def _histories(self, state: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
        seeds = self.config["seeds"]
        found: dict[int, list[dict[str, Any]]] = {}
        for row, s in zip(state["rows"], state["states"]):
            if s["history"]:
                found.setdefault(seeds[row], s["history"])  # the first start, until one is chosen
        return found

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The saved state, or None before the end of the first epoch."""
        file = self.path / layout.CHECKPOINT
        if not file.exists():
            return None
        need_readable(file)
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
        state = json.loads(header["state"])
        self._write_facts(state)  # a kill may have come between the two files
        return tensors, state

    # --- results ---

    def seed_path(self, seed: int) -> Path:
        """The folder of a seed."""
        return layout.seed_folder(self.path, seed)

    def write_history(self, seed: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """The training curve, one row an epoch."""
        write_history(self.seed_path(seed) / layout.HISTORY, rows)

    def scored_before(self, *, but: Mapping[str, Any]) -> dict[str, Scores]:
        """Sets that a finished run which is resumed had scored since, other than these."""
        if not (self.resumed and layout.is_finished(self.path)):
            return {}
        return {name: scores for name, scores in read_summary(self.path)["splits"].items() if name not in but}

    def stored_model(self, seed: int) -> Path | None:
        """The weights of a seed of a finished run that is resumed."""
        file = self.seed_path(seed) / MODEL_FILE
        return file if self.resumed and layout.is_finished(self.path) and file.is_file() else None

    def write_seed(
        self,
        seed: int,
        model: MILModel,
        history: Sequence[Mapping[str, Any]],
        rows: Sequence[Mapping[str, Any]],
        status: SeedStatus,
        kept: Mapping[str, Any],
    ) -> None:
        """Weights, curve, one row a bag, and how the seed ended; rows of the splits in ``kept`` stay."""
        folder = self.seed_path(seed)
        model.save(folder / MODEL_FILE)
        self.write_history(seed, history)
        file = folder / layout.PREDICTIONS
        write_predictions(file, [*rows, *stored_rows(file, kept)])
        write_json(folder / layout.STATUS, status)

    def finish(self, summary: Mapping[str, Any], sets: Mapping[str, Mapping[str, Any]]) -> None:
        """Describe the sets that were scored, then write the summary: a run that has one is finished."""
        data = read_record(DataRecord, self.path, layout.DATA)
        write_json(self.path / layout.DATA, {**data, "splits": {**data.get("splits", {}), **sets}})
        write_json(self.path / layout.SUMMARY, summary)


def write_fold_summary_file(path: Path, summary: Mapping[str, Any]) -> None:
    """The summary over the folds of a cross-validation, which is finished with it."""
    write_json(path / layout.SUMMARY, summary)


def write_seen(path: Path, seen: SeenBags) -> None:
    """Keep what tells the bags of a run from others."""
    write_json(path / layout.BAGS, seen)


def forget_folds(path: Path) -> None:
    """Remove the summary over folds, and the page about it, when folds were replaced."""
    for name in (layout.SUMMARY, layout.REPORT, f"{layout.BASELINES}/scores.json"):
        (path / name).unlink(missing_ok=True)


def note_in_data(path: Path, **facts: Any) -> None:
    """Bring facts that became known after training into what a run, or each fold, notes about its data."""
    for folder in (path, *layout.fold_folders(path)):
        if (folder / layout.DATA).is_file():
            write_json(folder / layout.DATA, {**read_record(DataRecord, folder, layout.DATA), **facts})


def keep_study(path: Path, text: str) -> None:
    """The command that made a run directory, as the file that repeats it."""
    write_text(path / layout.STUDY, text)


def last_checkpoint(path: Path) -> tuple[Path, CheckpointFacts] | None:
    """The run (or fold) below a folder that was saved last, and how far it came."""
    files = list(path.rglob(layout.CHECKPOINT_FACTS))
    if not files:
        return None
    folder = max(files, key=lambda file: file.stat().st_mtime).parent
    return folder, read_record(CheckpointFacts, folder, layout.CHECKPOINT_FACTS)


def check_kind(path: Path, folds: int | None = None) -> None:
    """Refuse a folder whose run is of another kind: a plain run (no ``folds``), or one of so many folds."""
    begun, advice = layout.fold_folders(path), "choose another folder with --out"
    if folds is None:
        found = f"a cross-validation with {begun[0].name}" if begun else None
    elif layout.is_begun(path):
        found = f"{_title(read_config(path))}, without folds"
    else:
        known = read_config(begun[0])["data"].get("folds", folds) if begun else folds
        found = f"a cross-validation of {known} folds, not {folds}" if known != folds else None
        advice = f"give --folds {known}, or {advice}"
    if found:
        raise InputError(f"{path} already holds another run ({found}): {advice}")


def _title(config: Mapping[str, Any]) -> str:
    data = config.get("data", {})
    name = data.get("name") or data.get("bags") or "own bags"
    model = config.get("model", {}).get("name", "unknown model")
    return f"{model} on {name}, seeds {', '.join(map(str, config.get('seeds', [])))}"


def versions() -> dict[str, str]:
    """Versions of what computes the numbers."""
    from importlib.metadata import version

    packages = ("torch", "numpy", "scipy", "safetensors", "nystrom-attention")
    return {
        "dasmil": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version(name) for name in packages},
    }
