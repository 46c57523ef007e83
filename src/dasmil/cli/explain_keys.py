"""`dasmil explain --key-instances`: do the scores of runs find the instances that made a bag positive?"""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dasmil.errors import InputError

if TYPE_CHECKING:
    from dasmil.attribution.key_table import KeyRow
    from dasmil.cli.explain_questions import LabelledBags


def keys(named: Sequence[Path], source: LabelledBags, gradient_bags: int, output: Path | None, json: bool) -> int:
    """Score every run named, or below a folder named; a run whose figures the output holds is not done again."""
    from dasmil.attribution.key_table import read_rows, write_markdown, write_rows
    from dasmil.cli.explain_questions import print_table

    runs = [run for path in named for run in _runs_below(path)]
    table = None if output is None else output / "key-instances.csv"
    stored = [] if table is None else read_rows(table)
    rows: list[KeyRow] = []
    for number, run in enumerate(runs):
        rows += _score(run, source, gradient_bags, stored, f"{number + 1} of {len(runs)}")
        if table is not None:  # after each run, so that a stopped command goes on where it was
            digests = {row.digest for row in rows}
            write_rows(table, [*rows, *(row for row in stored if row.digest not in digests)])
    if table is not None:
        write_rows(table, rows)
        write_markdown(table.with_name("key-instances-all.md"), rows)
    if json:
        print(json_module.dumps([asdict(row) for row in rows], indent=2))
        return 0
    cells = [
        (r.data, r.model, r.score, f"{r.auroc_mean:.3f}", f"{r.auroc_low:.3f} to {r.auroc_high:.3f}", f"{r.bags:,}",
         f"{r.seeds} ({r.fitted})", r.training)
        for r in rows
    ]  # fmt: skip
    header = ("data", "model", "score", "AUROC", "95 % interval", "bags", "seeds (fitted)", "training")
    print_table(header, cells, left=3)
    if table is not None:
        print(table)
        print(table.with_name("key-instances-all.md"))
    return 0


def _runs_below(path: Path) -> list[Path]:
    """A run (or model file) itself, or the finished runs below a folder of runs; unfinished ones are named and left."""
    from dasmil.runs import is_begun, runs_below, seed_models

    if not path.is_dir() or is_begun(path) or seed_models(path):
        return [path]
    done, begun = runs_below(path)
    if not done and not begun:
        raise InputError(f"{path} holds no run: expected a run directory of dasmil train, or a folder of such")
    for run in begun:
        print(f"Left out, not finished: {run}", file=sys.stderr)
    if not done:
        raise InputError(f"{path} holds {len(begun)} runs, but none is finished yet")
    return done


def _score(run: Path, source: LabelledBags, gradient_bags: int, stored: list[KeyRow], number: str) -> list[KeyRow]:
    from dasmil.attribution.key_instances import key_scores
    from dasmil.attribution.key_table import KeyRow, digest_of
    from dasmil.cli.explain_questions import models_of, status
    from dasmil.runs import model_files

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
    print(f"{number}: {run}", file=sys.stderr, flush=True)
    with status(f"scoring {run.name}"):
        found = key_scores(name, models, list(source.load(run)), gradient_bags=gradient_bags)
    return [KeyRow.of(data, row, fitted, training, digest) for row in found]


def _check_known(run: Path, source: LabelledBags) -> None:
    """Refuse a cohort without key instances before its locked test set is opened and counted."""
    import h5py

    from dasmil.cli.explain_questions import run_data
    from dasmil.data.store import open_h5

    cohort = run_data(run).get("cohort")
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
    from dasmil.runs import Run, is_begun

    if not is_begun(run):
        return seeds, ""
    stored = Run.read(run)
    training = stored.config["training"]
    words = [f"{training['epochs']} epochs"]
    words += [str(training["schedule"])] if training.get("schedule", "constant") != "constant" else []
    words += ["augmented"] if training.get("augment") not in (None, "none") else []
    words += [f"feature dropout {training['feature_dropout']:g}"] if training.get("feature_dropout") else []
    return sum(not seed.stuck for seed in stored.all_seeds), ", ".join(words)
