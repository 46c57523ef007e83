"""A fair comparison: models on the same splits with the same choice of settings, paired differences, who uses space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasmil.errors import InputError, unknown_name
from dasmil.files import finite, write_json, write_text
from dasmil.models import MODELS
from dasmil.report.compared import (
    answer,
    cautions,
    csv_table,
    latex_table,
    markdown_table,
    non_inferior,
    write_compared,
)
from dasmil.runs import Run, fold_folders, is_begun
from dasmil.stats.compared import Compared, ModelScore, ScoredPart, SpaceScore, compare_scores, paired_gap
from dasmil.study.data import StudyData
from dasmil.study.notes import Note, silent
from dasmil.study.progress import Watch, unseen
from dasmil.study.scored import metric_of, scored_again, scored_parts
from dasmil.study.search import search_study
from dasmil.study.settings import gather_settings
from dasmil.study.spec import CohortSpec
from dasmil.study.training import train_study
from dasmil.study.trials import TrialSetup

if TYPE_CHECKING:
    from dasmil.engine import EngineOptions

DEFAULT_MODELS = ("das-mil", "sa", "ab-mil", "clam-sb", "mean-pool")
GRID: Mapping[str, Sequence[Any]] = {"lr": (2e-4, 1e-3, 5e-3)}
"""Among these every fold of every model chooses: the learning rates of CLAM's recipe, of the paper, and of das-mil."""
RECORD, PAGE = "comparison.json", "report.html"
SEED = 0


@dataclass(frozen=True)
class Comparison:
    """What came out: sentence (the answer), compared (scores and differences), runs by name, folder of the files.

    chosen: of each model the settings that its folds chose; empty where none were chosen. cautions: sentences about
    runs that did not fit or use no distance, and about settings that differ.
    """

    sentence: str
    compared: Compared
    runs: Mapping[str, Run]
    folder: Path
    chosen: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    cautions: Sequence[str] = ()

    @property
    def report(self) -> Path:
        return self.folder / PAGE

    def table(self, kind: str = "markdown") -> str:
        """The table of the paper: "markdown", "latex" or "csv"."""
        makers = {"markdown": markdown_table, "latex": latex_table, "csv": csv_table}
        if kind not in makers:
            raise unknown_name("kind of table", kind, makers)
        return makers[kind](self.compared)


def compare(
    data: CohortSpec | Sequence[str | Path],
    models: Sequence[str] = DEFAULT_MODELS,
    *,
    out: str | Path,
    folds: int = 5,
    seeds: int = 1,
    split_seed: int = 0,
    recipe: str | None = None,
    grid: Mapping[str, Sequence[Any]] | None = GRID,
    space_test: bool = False,
    margin: float | None = None,
    engine: EngineOptions | None = None,
    note: Note = silent,
    watch: Watch = unseen,
    **settings: Any,
) -> Comparison:
    """Compare models on a cohort, or runs that are there, as `dasmil compare` does.

    Example: ``found = dasmil.compare(dasmil.CohortSpec(bags="features", labels="labels.csv"), out="runs/compared")``

    data: a cohort, on which each of ``models`` is cross-validated on the same folds below ``out`` (what is finished
    there is not trained again), or folders of runs on the same bags. grid: the values of settings among which each fold
    of each model chooses by the loss on its validation bags, so that all have the same number of trials; None, or a
    setting that is given: the same for all. space_test: score every model again with shuffled coordinates and with
    shuffled rows. margin: also say which models are at most so much worse than the best (non-inferiority). settings: of
    training, for all models alike.
    """
    folder = Path(out)
    if not isinstance(data, CohortSpec):
        return compare_runs([Run.read(path) for path in data], folder, space_test=space_test, margin=margin, note=note)
    if len(set(models)) < max(2, len(models)):
        raise InputError(f"models are {', '.join(models)}: expected two or more different ones")
    source = StudyData(cohort=data, folds=folds, split_seed=split_seed, recipe=recipe)
    for name in models:
        if name not in MODELS:
            raise unknown_name("model", name, MODELS)
    open_settings = {name: list(values) for name, values in (grid or {}).items() if name not in settings}
    runs, chosen = [], {}
    for name in models:
        note(f"{name}:")
        given = gather_settings(name, recipe, None, settings, {}, source.preset)
        if open_settings:
            question = TrialSetup(name, 1, "loss", given.training, given.options, given.preset)
            found = search_study(
                source, question, open_settings, folder / name, seeds, engine, note, watch, baselines=False
            )
            runs.append(found.run)
            chosen[name] = [part["chosen"] for part in found.rounds]
            continue
        resume = is_begun(folder / name) or bool(fold_folders(folder / name))
        run = train_study(
            source, name, folder / name, given, seeds=seeds, baselines=False, engine=engine, resume=resume, note=note,
            watch=watch,
        )  # fmt: skip
        runs.append(run)
    return compare_runs(runs, folder, space_test=space_test, margin=margin, chosen=chosen, note=note)


def compare_runs(
    runs: Sequence[Run],
    out: Path,
    *,
    space_test: bool = False,
    margin: float | None = None,
    chosen: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    note: Note = silent,
) -> Comparison:
    """Compare runs that scored the same bags, and write the page, the tables and the record to a folder."""
    named = _names(runs)
    split = next((s for s in runs[0].splits if s != "train" and all(s in run.splits for run in runs)), None)
    if split is None:
        raise InputError("the runs have no set of bags that all have scored: open their test sets with dasmil evaluate")
    scored = {name: scored_parts(run, split) for name, run in named.items()}
    metric = _metric(named)
    found = compare_scores(scored, metric=metric, seed=SEED)
    found = replace(found, models=[_as_reported(m, named[m.name], split, metric) for m in found.models])
    if space_test:
        found = replace(found, space=[_space(name, run, scored[name], split, note) for name, run in named.items()])
    sentence = " ".join([answer(found), *(non_inferior(found, margin) if margin is not None else [])])
    comparison = Comparison(sentence, found, named, out, chosen or {}, cautions(named, chosen or {}))
    _write(comparison, split)
    return comparison


def _as_reported(scored: ModelScore, run: Run, split: str, metric: str) -> ModelScore:
    """The same score with the interval that the run's own report states; NaN ends where it states none."""
    ends = run.summary["splits"][split]["interval"].get(metric) or (None, None)
    low, high = (math.nan if end is None else float(end) for end in ends)
    return replace(scored, low=low, high=high)


def _names(runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by the name of their model, where two have the same also by that of their folder."""
    models = [run.model for run in runs]
    names = [m if models.count(m) == 1 else f"{m} ({run.path.name})" for m, run in zip(models, runs, strict=True)]
    if len(set(names)) < len(names):
        raise InputError(f"two of the runs are the same: {', '.join(str(run.path) for run in runs)}")
    return dict(zip(names, runs, strict=True))


def _metric(runs: Mapping[str, Run]) -> str:
    """The metric of the task, which all runs share."""
    found = {name: run.asked.kind for name, run in runs.items()}
    if len(set(found.values())) > 1:
        each = ", ".join(f"{name}: {kind}" for name, kind in found.items())
        raise InputError(f"the runs have different tasks ({each}): compare runs of one task")
    return metric_of(next(iter(runs.values())))


def _space(name: str, run: Run, before: Sequence[ScoredPart], split: str, note: Note) -> SpaceScore:
    """Score a run's bags again, with positions dealt out anew and with the instances in another order."""
    note(f"{name}: shuffled coordinates and rows")
    sets = [part.tests[split] for part in _rounds(run)]
    gaps = {}
    for kind in ("coords", "rows"):
        after = [
            scored_again(part, bags, kind, known, SEED)
            for part, bags, known in zip(run.parts, sets, before, strict=True)
        ]
        gaps[kind] = paired_gap(name, before, after, seed=SEED)
    return SpaceScore(name, gaps["coords"], gaps["rows"])


def _rounds(run: Run) -> Sequence[Any]:
    origin = run.origin
    if "cohort" not in origin or not run.folds:
        raise InputError(
            f"{run.path} cannot be scored again: --space-test needs cross-validations (--folds) of one's own bags"
        )
    cohort = CohortSpec.from_record(origin["cohort"])
    return StudyData(cohort=cohort, folds=len(run.folds), split_seed=origin.get("split_seed", 0)).rounds()


def _write(comparison: Comparison, split: str) -> None:
    out = comparison.folder
    out.mkdir(parents=True, exist_ok=True)
    record = {"sentence": comparison.sentence, "cautions": list(comparison.cautions), "split": split}
    record |= finite(asdict(comparison.compared))
    record["runs"] = {name: str(run.path) for name, run in comparison.runs.items()}
    record["chosen"] = dict(comparison.chosen)
    write_json(out / RECORD, record)
    for kind, suffix in (("markdown", "md"), ("latex", "tex"), ("csv", "csv")):
        write_text(out / f"table.{suffix}", comparison.table(kind))
    write_compared(
        comparison.compared, comparison.sentence, comparison.runs, split, out / PAGE, chosen=comparison.chosen,
        cautions=comparison.cautions,
    )  # fmt: skip
