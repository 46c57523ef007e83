"""Do the scores of runs find the instances that made a bag positive? One row a run and score, kept in a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import h5py

from dasmil.attribution.key_instances import key_scores
from dasmil.attribution.key_table import KeyRow, digest_of, read_rows, write_markdown, write_rows
from dasmil.data.store import open_h5
from dasmil.errors import InputError
from dasmil.runs import Run, is_begun, model_files, runs_below, seed_models
from dasmil.study.lookup import models_of, run_origin
from dasmil.study.notes import Note, silent
from dasmil.study.questions import LabelledBags

Watch = Callable[[str], AbstractContextManager[object]]
"""Made with what is being done, and entered while it is."""


def key_instances(
    runs: Sequence[str | Path],
    source: LabelledBags | None = None,
    *,
    gradient_bags: int = 0,
    table: Path | None = None,
    note: Note = silent,
    watch: Watch = nullcontext,
) -> list[KeyRow]:
    """AUROC of the instance scores of runs against known key instances, as `dasmil explain --key-instances`.

    Example: ``dasmil.key_instances(["runs/mine"])[0].auroc_mean``

    runs: run directories, or folders of such. source: the bags; by default those that a run kept apart, or the clean
    built-in ones it was trained on. gradient_bags: score integrated gradients too, on this many bags (slow). table: a
    CSV that keeps the rows (with a Markdown table beside it); a run whose figures it holds is not done again.
    """
    source = source or LabelledBags(note=note)
    found = [run for path in runs for run in _runs_below(Path(path), note)]
    stored = [] if table is None else read_rows(table)
    rows: list[KeyRow] = []
    for number, run in enumerate(found):
        rows += _score(run, source, gradient_bags, stored, f"{number + 1} of {len(found)}", note, watch)
        if table is not None:  # after each run, so that a stopped command goes on where it was
            digests = {row.digest for row in rows}
            write_rows(table, [*rows, *(row for row in stored if row.digest not in digests)])
    if table is not None:
        write_rows(table, rows)
        write_markdown(markdown_beside(table), rows)
    return rows


def markdown_beside(table: Path) -> Path:
    """The file of the same rows for people to read."""
    return table.with_name(f"{table.stem}-all.md")


def _runs_below(path: Path, note: Note) -> list[Path]:
    """A run (or model file) itself, or the finished runs below a folder of runs; unfinished ones are named and left."""
    if not path.is_dir() or is_begun(path) or seed_models(path):
        return [path]
    done, begun = runs_below(path)
    if not done and not begun:
        raise InputError(f"{path} holds no run: expected a run directory of dasmil train, or a folder of such")
    for run in begun:
        note(f"Left out, not finished: {run}")
    if not done:
        raise InputError(f"{path} holds {len(begun)} runs, but none is finished yet")
    return done


def _score(
    run: Path,
    source: LabelledBags,
    gradient_bags: int,
    stored: list[KeyRow],
    number: str,
    note: Note,
    watch: Watch,
) -> list[KeyRow]:
    data = source.describe(run)
    files = sorted(model_files(run))
    digest = digest_of(files, data, source.limit, gradient_bags, *source.state(run))
    models = models_of(run)
    embeddings = models[0].config.get("embeddings")
    name = models[0].name + (f" ({embeddings or 'no embeddings'})" if embeddings not in (None, "kqv") else "")
    fitted, training = _notes(run, len(models))
    known = [row for row in stored if row.digest == digest]
    if known:
        return [replace(row, model=name, fitted=fitted, training=training) for row in known]
    _check_known(run, source)
    note(f"{number}: {run}")
    with watch(f"scoring {run.name}"):
        found = key_scores(name, models, list(source.load(run)), gradient_bags=gradient_bags)
    return [KeyRow.of(data, row, fitted, training, digest) for row in found]


def _check_known(run: Path, source: LabelledBags) -> None:
    """Refuse a cohort without key instances before its locked test set is opened and counted."""
    cohort = run_origin(run).get("cohort")
    if cohort is None or source.given.bags is not None or source.data is not None:
        return
    for file in sorted(Path(cohort["bags"]).rglob("*.h5")):
        with open_h5(file) as found:
            if isinstance(found.get("key_instances"), h5py.Dataset):
                return
    raise InputError(
        f"no bag file below {cohort['bags']} says which instances are key (a dataset 'key_instances'), so nothing can "
        "be compared; the test set stays locked. Built-in data sets know: give --data mnist-collage"
    )


def _notes(run: Path, seeds: int) -> tuple[int, str]:
    """How many seeds fitted their training bags, and how they were trained; all and nothing for a model file."""
    if not is_begun(run):
        return seeds, ""
    stored = Run.read(run)
    training = stored.config["training"]
    words = [f"{training['epochs']} epochs"]
    words += [str(training["schedule"])] if training.get("schedule", "constant") != "constant" else []
    words += ["augmented"] if training.get("augment") not in (None, "none") else []
    words += [f"feature dropout {training['feature_dropout']:g}"] if training.get("feature_dropout") else []
    return sum(not seed.stuck for seed in stored.all_seeds), ", ".join(words)
