"""Figures of several runs with intervals, for any task: what is scored together sees the same draws of patients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import InputError
from dasmil.stats.metrics import RESAMPLES
from dasmil.stats.ranking import divide
from dasmil.stats.resample import interval, resampled
from dasmil.stats.sets import ScoredSet
from dasmil.stats.small import FEWEST, NARROW, honest_interval

Array = NDArray[np.float64]


def summarise_set(scored: ScoredSet, *, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """Scores of runs on the same bags: per_seed, mean, std, interval of the mean, and ensemble with its interval.

    Of fewer than four patients in a stratum (say, events) and where all draws agree there is no interval (NaN ends).
    """
    once = np.ones((1, len(scored.strata)))
    per_run = [{name: float(v[0]) for name, v in run(once).items()} for run in scored.runs]
    values = {name: np.array([run[name] for run in per_run]) for name in _shared(per_run)}
    draws = _drawn(scored, resamples, seed)
    mean = {name: float(v.mean()) for name, v in values.items()}
    found: dict[str, Any] = {
        "n": len(scored.strata),
        "patients": len(scored.strata) if scored.patients is None else len(set(scored.patients)),
        "fewest": scored.fewest,
        "per_seed": per_run,
        "mean": mean,
        "std": {name: float(v.std(ddof=1)) if len(v) > 1 else 0.0 for name, v in values.items()},
        "interval": {name: _stated(name, mean[name], np.mean(d, axis=0), [scored]) for name, d in draws.items()},
    }
    if scored.ensemble is not None:
        alone = replace(scored, runs=[scored.ensemble])
        exact = {name: float(v[0]) for name, v in scored.ensemble(once).items()}
        drawn = _drawn(alone, resamples, seed)
        found["ensemble"] = {
            **exact,
            "interval": {name: _stated(name, exact[name], d[0], [scored]) for name, d in drawn.items()},
        }
    return found


def mean_over_sets(
    sets: Sequence[ScoredSet], *, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Of the folds of a cross-validation: mean of every metric over runs and folds, and its interval.

    Patients are resampled within their fold. A metric leaves out folds that do not have it (NaN: no event, say), and
    of a draw those that it leaves without it.
    """
    exact = [{k: float(v[0]) for k, v in _mean_of_runs(s, np.ones((1, len(s.strata)))).items()} for s in sets]
    drawn = [_drawn(s, resamples, seed + k) for k, s in enumerate(sets)]
    names = list(dict.fromkeys(name for fold in exact for name in fold))
    mean: dict[str, Any] = {}
    spans: dict[str, Any] = {}
    for name in names:
        known = [k for k, fold in enumerate(exact) if math.isfinite(fold.get(name, math.nan))]
        mean[name] = float(np.mean([exact[k][name] for k in known])) if known else math.nan
        rows = [np.mean(drawn[k][name], axis=0) for k in known]
        spans[name] = (
            _stated(name, mean[name], _mean_over_folds(rows), [sets[k] for k in known])
            if known
            else [math.nan, math.nan]
        )
    return {"mean": mean, "interval": spans}


def difference_of_sets(
    pairs: Sequence[tuple[ScoredSet, ScoredSet]], metric: str, *, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Any]:
    """Mean over folds of the first side's score minus the second's, both on the same draws of the same bags.

    One pair is a plain set of bags. Folds in which either side lacks the metric are left out.
    """
    exact, draws, used = [], [], []
    for k, (first, second) in enumerate(pairs):
        if not np.array_equal(first.strata, second.strata):
            raise InputError("the two sides were scored on other bags: compare like with like")
        once = np.ones((1, len(first.strata)))
        gap = float(_mean_of_runs(first, once)[metric][0] - _mean_of_runs(second, once)[metric][0])
        if math.isfinite(gap):
            exact.append(gap)
            used.append(replace(first, classes=None))
            a, b = (np.mean(_drawn(side, resamples, seed + k)[metric], axis=0) for side in (first, second))
            draws.append(a - b)
    if not exact:
        return {"metric": metric, "difference": math.nan, "interval": [math.nan, math.nan]}
    return {
        "metric": metric,
        "difference": float(np.mean(exact)),
        "interval": _stated(metric, float(np.mean(exact)), np.mean(draws, axis=0), used),
    }


def summarise_targets(
    targets: Mapping[str, tuple[ScoredSet, NDArray[np.int64]]],
    patients: Sequence[str],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Several targets of the same bags: ``targets`` by name as ``summarise_set``, and ``macro``, the mean over targets.

    Every target comes with the rows of the bags (of ``patients``) that have it. The macro mean of a metric is over the
    targets that have the metric (AUROC of classes, R2 of numbers). Its interval draws the patients once for all
    targets; a target that a draw leaves without a class does not count in that draw.
    """
    whole = np.zeros(len(patients), np.int64)
    weights = np.concatenate([np.ones((1, len(patients))), *resampled(whole, patients, resamples, seed)])
    scores = [_mean_of_runs(scored, weights[:, rows]) for scored, rows in targets.values()]
    macro: dict[str, Any] = {}
    for name in dict.fromkeys(name for found in scores for name in found):
        table = np.stack([found[name] for found in scores if name in found])
        known = np.isfinite(table)
        mean = divide(np.where(known, table, 0).sum(0), known.sum(0).astype(np.float64))
        span = _bootstrap(mean[1:], min(scored.fewest for scored, _ in targets.values()))
        macro[name] = {"mean": float(mean[0]), "interval": span, "targets": len(table)}
    single = {name: summarise_set(scored, resamples=resamples, seed=seed) for name, (scored, _) in targets.items()}
    return {"targets": single, "macro": macro}


def _mean_of_runs(scored: ScoredSet, weights: Array) -> dict[str, Array]:
    each = [run(weights) for run in scored.runs]
    return {name: np.mean([found[name] for found in each], axis=0) for name in _shared(each)}


def _shared(each: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics that all have: folds may have bins of time of their own, and figures at their ends."""
    return [name for name in each[0] if all(name in found for found in each)]


def _mean_over_folds(rows: Sequence[Array]) -> Array:
    """Of draws of every fold; a fold that a draw leaves without a figure does not count in that draw."""
    table = np.stack(rows)
    known = np.isfinite(table)
    return divide(np.where(known, table, 0).sum(0), known.sum(0).astype(np.float64))


def _drawn(scored: ScoredSet, resamples: int, seed: int) -> dict[str, list[Array]]:
    """Per metric the scores of every run in every resample."""
    parts: list[list[dict[str, Array]]] = [[] for _ in scored.runs]
    for weights in resampled(scored.strata, scored.patients, resamples, seed):
        for found, run in zip(parts, scored.runs, strict=True):
            found.append(run(weights))
    names = _shared([found[0] for found in parts])
    return {name: [np.concatenate([chunk[name] for chunk in found]) for found in parts] for name in names}


def _stated(metric: str, value: float, draws: Array, sets: Sequence[ScoredSet]) -> list[float]:
    """The interval to state: of classes as everywhere (stats/small.py), else the middle of the draws, or none."""
    counts = [s.classes for s in sets if s.classes is not None]
    if counts:
        return honest_interval(metric, value, interval(draws), counts)
    return _bootstrap(draws, sum(s.fewest_of(metric) for s in sets))


def _bootstrap(draws: Array, fewest: int) -> list[float]:
    low, high = interval(draws)
    return [low, high] if fewest >= FEWEST and high - low > NARROW else [math.nan, math.nan]
