"""Training as units of work: a fold of cross-validation, trials of a search."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasmil.study.data import StudyData
from dasmil.study.progress import Log, Watch, unseen

if TYPE_CHECKING:
    from dasmil.engine import EngineOptions, Unit
    from dasmil.study.rounds import Round
    from dasmil.study.settings import Settings
    from dasmil.study.trials import Journal, TrialSetup


@functools.lru_cache(maxsize=1)
def _rounds(record: str) -> list[Round]:
    """In a worker: the bags of all folds, found once."""
    return StudyData.from_record(json.loads(record)).rounds()


def train_on_engine(
    rounds: Mapping[int, tuple[Path, Settings]],
    splits: Sequence[Round],
    source: dict[str, Any],
    model: str,
    out: Path,
    *,
    seeds: int,
    engine: EngineOptions,
    watch: Watch = unseen,
) -> None:
    """Train folds (number -> folder and settings) on an engine; those that are finished are not handed out again."""
    from dasmil.engine import run_units

    units = [
        _round_unit(source, number, splits[number], model, chosen, seeds, folder, out)
        for number, (folder, chosen) in rounds.items()
    ]
    with watch("") as watcher:
        failed = run_units(units, out, engine, watcher.units).failed
    _all_done(failed, len(units), "folds")


def _round_unit(
    source: dict[str, Any],
    number: int,
    splits: Round,
    model: str,
    chosen: Settings,
    seeds: int,
    folder: Path,
    out: Path,
) -> Unit:
    from dasmil.engine import Unit
    from dasmil.runs import is_finished

    arguments = round_arguments(source, number, model, chosen, seeds, folder)
    done = out / "logs" / f"{folder.name}-{made_with(arguments, splits)[:12]}.done"
    if not is_finished(folder):
        done.unlink(missing_ok=True)
    return Unit(folder.name, "dasmil.study.units:train_round", {**arguments, "done": str(done)}, str(done))


def round_arguments(
    source: dict[str, Any], number: int, model: str, chosen: Settings, seeds: int, folder: Path
) -> dict[str, Any]:
    """What `train_round` needs to train one fold, as plain values."""
    return {
        "source": source, "number": number, "model": model, "training": chosen.training, "options": chosen.options,
        "preset": chosen.preset, "seeds": seeds, "folder": str(folder),
    }  # fmt: skip


def made_with(arguments: Mapping[str, Any], splits: Round) -> str:
    """A mark of the settings and bags of a fold, wherever it lies; its summary alone does not tell them."""
    from dasmil.files import json_hash
    from dasmil.study.trials import bags_state

    state = [bags_state(bags) for bags in (splits.train, splits.val or [], *splits.tests.values())]
    return json_hash({**{name: v for name, v in arguments.items() if name != "folder"}, "state": state})


def train_round(
    source: dict[str, Any],
    number: int,
    model: str,
    training: dict[str, Any],
    options: dict[str, Any],
    preset: str | None,
    seeds: int,
    folder: str,
    done: str,
) -> None:
    """In a worker: train one fold, going on with what is there, and leave the mark `done`."""
    from dasmil.files import write_text
    from dasmil.train.fit import fit

    splits = _rounds(json.dumps(source))[number]
    log = Log()
    fit(
        model, splits.train, splits.val, seeds=seeds, model_options=options, preset=preset, out=folder, resume=True,
        tests=splits.tests, data=splits.data, on_epoch=log.epoch, note=log.note, **training,
    )  # fmt: skip
    write_text(Path(done), "")


def train_grid(
    journals: Sequence[Journal],
    grid: Mapping[str, Sequence[Any]],
    question: TrialSetup,
    source: dict[str, Any],
    out: Path,
    *,
    engine: EngineOptions,
    watch: Watch = unseen,
) -> None:
    """Train every trial that the journals (one per fold) lack, all folds at once, and note them there.

    Workers leave result files; only this process writes the journals, so they stay whole on any disk.
    """
    from dasmil.engine import Unit, run_units
    from dasmil.files import json_hash
    from dasmil.study.trials import Trial

    work: list[tuple[Journal, Unit]] = []
    for number, journal in enumerate(journals):
        for together in journal.waiting(grid):
            key = f"fold-{number}-trials-{json_hash({'study': journal.name, 'trials': together})[:12]}"
            result = str(out / "trials" / f"{key}.json")
            arguments = {
                "source": source, "number": number, "question": vars(question), "together": together,
                "result": result, "apart": False,
            }  # fmt: skip
            unit = Unit(key, "dasmil.study.units:search_trials", arguments, result, lean={"apart": True})
            work.append((journal, unit))
    if not work:
        return
    with watch("") as watcher:
        failed = run_units([unit for _, unit in work], out, engine, watcher.units).failed
    for journal, unit in work:
        file = Path(unit.result)
        if file.exists():
            journal.note([Trial(**trial) for trial in json.loads(file.read_text(encoding="utf-8"))])
            file.unlink()
    with contextlib.suppress(OSError):  # another search still has results there
        (out / "trials").rmdir()
    _all_done(failed, len(work), "parts of the search")


def search_trials(
    source: dict[str, Any],
    number: int,
    question: dict[str, Any],
    together: list[dict[str, Any]],
    result: str,
    apart: bool,
) -> None:
    """In a worker: train and score a few trials; `apart`, one after the other, which needs less memory."""
    from dasmil.files import write_text
    from dasmil.study.trials import TrialSetup, train_trials

    print("\n".join(map(json.dumps, together)))
    splits = _rounds(json.dumps(source))[number]
    parts = [[one] for one in together] if apart else [together]
    trials = [t for part in parts for t in train_trials(TrialSetup(**question), splits.train, splits.val or [], part)]
    write_text(Path(result), json.dumps([vars(trial) for trial in trials]))


def _all_done(failed: Mapping[str, str], total: int, what: str) -> None:
    from dasmil.errors import DasmilError

    if failed:
        reasons = "; ".join(f"{key}: {reason}" for key, reason in list(failed.items())[:2])
        raise DasmilError(f"{len(failed)} of {total} {what} failed, for example {reasons}. What is finished is kept")
