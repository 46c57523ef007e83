"""Covariates beside a trained run: regressions on what is known of patients, alone and together with the model.

Everything is fitted on bags that the scored ones are not among. Together with the model means: with what the model of
another fold says of a bag that this fold kept apart (pre-validation, Tibshirani and Efron, Statistical Applications in
Genetics and Molecular Biology 1, 2002), in units of its spread within the fold; so it needs folds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dasmil.baselines.covariates import CovariateTable, fit_classes, fit_cox_risk, fit_number, standardised
from dasmil.errors import DasmilError, InputError
from dasmil.runs import Run, write_covariates
from dasmil.stats import (
    FollowUp,
    ScoredSet,
    class_set,
    difference_of_sets,
    mean_over_sets,
    numeric_set,
    survival_set,
)
from dasmil.study.notes import Note, silent
from dasmil.study.spec import CohortSpec
from dasmil.tasks import concordance

if TYPE_CHECKING:
    from dasmil.data.cohort import Cohort
    from dasmil.study.rounds import Round

Array = NDArray[np.float64]
Cells = dict[str, str | None]
MOST_TYPES = 100


@dataclass(frozen=True, eq=False)
class ScoredBags:
    """Bags of a run with the truth [n] or [n, 2] (time, event), and what each seed says of them."""

    bag_ids: list[str]
    patients: list[str]
    truth: Array
    said: list[Array]


@dataclass(frozen=True)
class CovariateOutcome:
    """What is asked of bags: how truth and predictions are read from a run, fitted and scored."""

    metric: str
    read: Callable[[Run, str], ScoredBags]
    fit: Callable[[Array, Array], Callable[[Array], Array]]
    scored: Callable[[ScoredBags, Sequence[Array]], ScoredSet]
    column: Callable[[Array], Array] = lambda said: said[:, None]
    """What a model says as columns [n, k] on a scale without ends."""


def add_covariates(out: Path, rounds: Sequence[Round], folders: Sequence[Path], note: Note = silent) -> None:
    """Fit and score the regressions of a run whose cohort names covariates, and store them beside it.

    Where they cannot be made (a column that is empty, several targets) this is said and the run goes without.
    """
    spec = CohortSpec.from_record(rounds[0].data.get("cohort", {}))
    if spec.covariates:
        _store(out, spec, [Run.read(folder) for folder in folders], lambda: _all_bags(rounds), note)


def covariates_again(path: Path, note: Note = silent) -> None:
    """The same for a plain run whose test set was opened after training: the regressions are scored there then."""
    from dasmil.study.reading import run_cohort

    run = Run.read(path)
    spec = CohortSpec.from_record(run.origin.get("cohort", {}))
    if spec.covariates:
        _store(path, spec, [run], lambda: run_cohort(run.origin), note)


def _store(out: Path, spec: CohortSpec, runs: Sequence[Run], bags: Callable[[], Cohort], note: Note) -> None:
    try:
        record = compare_covariates(spec, runs, bags(), note)
    except DasmilError as error:
        note(f"No covariates beside the model: {error}")
        return
    write_covariates(out, record)


def compare_covariates(spec: CohortSpec, runs: Sequence[Run], cohort: Cohort, note: Note = silent) -> dict[str, Any]:
    """Scores of covariates, of composition where features are cell types, and of both with the model, with intervals.

    runs: the folds of a cross-validation, or one run; cohort: all their bags.
    """
    names = spec.covariates or ()
    cells = dict(zip(cohort.bag_ids, spec.further(names, "--covariates").of(cohort), strict=True))
    for name in names:
        empty = sum(own[name] is None for own in cells.values())
        if empty:
            note(f"Covariate {name} is missing for {empty} of {len(cells)} bags, which count as average and are marked")
    split = next((name for name in runs[0].splits if name != "train"), None)
    if split is None:
        raise InputError("only training bags were scored")
    question = question_of(runs[0])
    composition = _composition(cohort)
    parts = [_Part(question, run, split, cells, composition) for run in runs]
    if len(parts) > 1:
        for k, part in enumerate(parts):
            part.others = [other for i, other in enumerate(parts) if i != k]
    titles = _titles(names, composition is not None, folds=len(parts) > 1)
    sets = {key: [part.score(key) for part in parts] for key in titles}
    model = [part.model for part in parts]
    rows = {key: _row(question.metric, key, title, sets, model) for key, title in titles.items()}
    whole = mean_over_sets(model)
    return {
        "covariates": list(names), "metric": question.metric, "split": split, "folds": len(parts),
        "bags": sum(len(part.test.bag_ids) for part in parts),
        "model": {"mean": whole["mean"][question.metric], "interval": whole["interval"][question.metric]},
        "rows": rows,
    }  # fmt: skip


def question_of(run: Run) -> CovariateOutcome:
    """How this run's bags are asked, by its task."""
    if run.task is None:
        return _classes(run.classes)
    if run.task.kind == "survival":
        return _follow_up()
    if run.task.kind == "regression":
        return _number()
    if run.task.alone is None:
        raise InputError("covariates stand beside one target; this run has several")
    return _order()


class _Part:
    """A fold (or the only run): bags to fit on, bags to score, and their numbers by name."""

    def __init__(
        self,
        question: CovariateOutcome,
        run: Run,
        split: str,
        cells: Mapping[str, Cells],
        composition: dict[str, Array] | None,
    ) -> None:
        self.question, self.cells, self.composition = question, cells, composition
        self.test = question.read(run, split)
        known = [name for name in ("train", "val") if name != split and name in run.splits]
        fitted = [question.read(run, name) for name in known]
        self.fit_ids = [bag_id for part in fitted for bag_id in part.bag_ids]
        self.fit_truth = np.concatenate([part.truth for part in fitted])
        self.model = question.scored(self.test, self.test.said)
        self.others: list[_Part] = []

    def score(self, key: str) -> ScoredSet:
        """The regression on these blocks of numbers, scored on the bags that were kept apart."""
        blocks = key.split("+")
        if "model" not in blocks:
            fit_ids, truth = self.fit_ids, self.fit_truth
            found = [self._block(block, fit_ids, self.test.bag_ids) for block in blocks]
        else:
            fit_ids = [bag_id for other in self.others for bag_id in other.test.bag_ids]
            truth = np.concatenate([other.test.truth for other in self.others])
            found = [self._block(block, fit_ids, self.test.bag_ids) for block in blocks if block != "model"]
            found.append((np.concatenate([other.risk for other in self.others]), self.risk))
        x, other = standardised(*(np.concatenate([pair[side] for pair in found], axis=1) for side in (0, 1)))
        return self.question.scored(self.test, [self.question.fit(x, truth)(other)])

    @property
    def risk(self) -> Array:
        """What the seeds say of the bags that were kept apart, mean [n, 1] in units of its spread."""
        mean = np.mean([self.question.column(said) for said in self.test.said], axis=0)
        return (mean - mean.mean(0)) / np.maximum(mean.std(0), 1e-9)

    def _block(self, name: str, fit_ids: Sequence[str], test_ids: Sequence[str]) -> tuple[Array, Array]:
        if name == "composition":
            assert self.composition is not None
            own = self.composition
            return np.stack([own[i] for i in fit_ids]), np.stack([own[i] for i in test_ids])
        columns = [
            {name: [self.cells[bag_id][name] for bag_id in ids] for name in self.cells[fit_ids[0]]}
            for ids in (fit_ids, test_ids)
        ]
        table = CovariateTable.fitted(columns[0])
        return table.numbers_of(columns[0]), table.numbers_of(columns[1])


def _titles(names: Sequence[str], composition: bool, *, folds: bool) -> dict[str, tuple[str, str]]:
    """The regressions by their blocks of numbers, each with its title and what it sees."""
    known = ", ".join(names)
    found = {"covariates": ("Covariates", known)}
    if composition:
        found["composition"] = ("Composition", "the share of every cell type")
        found["covariates+composition"] = ("Covariates and composition", f"{known}, shares of cell types")
    if folds:
        found["covariates+model"] = ("Covariates and the model", f"{known}, what the model says of bags it left out")
        if composition:
            sees = f"{known}, shares of cell types, what the model says of bags it left out"
            found["covariates+composition+model"] = ("Covariates, composition and the model", sees)
    return found


def _row(
    metric: str, key: str, title: tuple[str, str], sets: Mapping[str, list[ScoredSet]], model: list[ScoredSet]
) -> dict[str, Any]:
    """Score and interval; of a regression without the model the model minus it, of one with it what the model adds."""
    whole = mean_over_sets(sets[key])
    row: dict[str, Any] = {
        "title": title[0], "sees": title[1], "mean": whole["mean"][metric], "interval": whole["interval"][metric],
    }  # fmt: skip
    base = key.removesuffix("+model")
    pairs = zip(model, sets[key], strict=True) if base == key else zip(sets[key], sets[base], strict=True)
    gap = difference_of_sets(list(pairs), metric)
    return row | {"model_minus" if base == key else "model_adds": [gap["difference"], *gap["interval"]]}


def _logits(probabilities: Array) -> Array:
    """Of two classes the logit of class 1, of more the log of every probability."""
    p = np.clip(probabilities, 1e-9, 1 - 1e-9)
    return np.log(p) if p.ndim > 1 else np.log(p / (1 - p))[:, None]


def _classes(classes: int) -> CovariateOutcome:
    def read(run: Run, split: str) -> ScoredBags:
        seeds = run.per_seed(split)
        first = seeds[0]
        return ScoredBags(first.bag_ids, first.patients, first.labels.astype(float), [s.probabilities for s in seeds])

    def scored(bags: ScoredBags, said: Sequence[Array]) -> ScoredSet:
        return class_set(bags.truth.astype(np.int64), list(said), [0.5] * len(said), bags.patients)

    return CovariateOutcome("auroc", read, lambda x, y: fit_classes(x, y.astype(np.int64), classes), scored, _logits)


def _follow_up() -> CovariateOutcome:
    def scored(bags: ScoredBags, said: Sequence[Array]) -> ScoredSet:
        follow = FollowUp(bags.truth[:, 0], bags.truth[:, 1] == 1)
        return survival_set(follow, said, bags.patients)

    def fit(x: Array, truth: Array) -> Callable[[Array], Array]:
        return fit_cox_risk(x, FollowUp(truth[:, 0], truth[:, 1] == 1))

    return CovariateOutcome("c_index", _read_answers, fit, scored)


def _number() -> CovariateOutcome:
    def scored(bags: ScoredBags, said: Sequence[Array]) -> ScoredSet:
        return numeric_set(bags.truth[:, 0], list(said), bags.patients)

    return CovariateOutcome("r2", _read_answers, lambda x, truth: fit_number(x, truth[:, 0]), scored)


def _order() -> CovariateOutcome:
    """Of other targets: linear regressions on the number of the value, scored by how they order bags."""

    def scored(bags: ScoredBags, said: Sequence[Array]) -> ScoredSet:
        y = bags.truth[:, 0]
        runs = [lambda w, p=p: {"concordance": concordance(y, p, w)} for p in said]
        return replace(numeric_set(y, list(said), bags.patients), runs=runs, ensemble=None)

    return CovariateOutcome("concordance", _read_answers, lambda x, truth: fit_number(x, truth[:, 0]), scored)


def _read_answers(run: Run, split: str) -> ScoredBags:
    seeds = run.answers(split)
    first = seeds[0]
    return ScoredBags(first.bag_ids, first.patients, first.values, [run.asked.answers(seed.outputs) for seed in seeds])


def _all_bags(rounds: Sequence[Round]) -> Cohort:
    """All bags of the rounds, each once."""
    from dasmil.data.cohort import Cohort

    found: dict[str, Any] = {}
    whole: Cohort | None = None
    for part in rounds:
        for bags in (part.train, part.val, *part.tests.values()):
            if isinstance(bags, Cohort):
                whole = whole or bags
                found |= {entry.bag_id: entry for entry in bags.entries}
    if whole is None:
        raise InputError("covariates are columns of a label table, and these bags have none")
    return whole.with_entries(list(found.values()))


def _composition(cohort: Cohort) -> dict[str, Array] | None:
    """The share of every feature by bag, where features are cell types: each 0 or 1. None where they are others."""
    found = {}
    for i in range(len(cohort)):
        bag = cohort[i]
        values = bag.features
        if values.ndim != 2 or values.shape[1] > MOST_TYPES or not ((values == 0) | (values == 1)).all():
            return None
        found[bag.bag_id] = values.double().mean(0).numpy()
    return found
