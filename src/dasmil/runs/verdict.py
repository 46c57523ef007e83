"""What a run has shown, in words: one judgement for report, terminal, predictions, explanations and viewer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dasmil.runs.baselines import read_baselines
from dasmil.runs.predictions import Predictions
from dasmil.runs.run import Run
from dasmil.runs.schema import BaselineScores, Scores
from dasmil.stats import smallest_auroc
from dasmil.vocabulary import model_title, task_metric, task_metric_of

FITTED_AUROC = 0.9
"""A training AUROC from which on bags count as learned, overfitted if nothing holds on others."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """Is the model better than chance on bags that it was not trained on, and does a baseline do as well?

    All by the main metric of the task. split: the bags that are judged, None where only training bags were scored.
    """

    run: Run
    split: str | None
    baselines: dict[str, BaselineScores]

    @property
    def metric(self) -> str:
        """The figure that is judged: AUROC, C-index, R2, weighted kappa."""
        return self.run.asked.main

    @property
    def title(self) -> str:
        """What it is called."""
        return task_metric(self.metric)

    @property
    def label(self) -> str:
        """The same within a sentence."""
        return task_metric_of(self.metric).label

    @cached_property
    def told(self) -> bool:
        """Whether that figure on these bags is better than chance."""
        return self.split is not None and self._told(self.run.summary["splits"][self.split])

    @cached_property
    def smallest(self) -> float | None:
        """The smallest AUROC that these bags show to be better than chance (two classes); None where there is none."""
        if self.split is None or self.run.task is not None:
            return None
        return smallest_auroc(_patients_by_class(self.run, self.split))

    @property
    def too_few(self) -> bool:
        """Whether no AUROC on these bags, not even a perfect one, would be better than chance (two classes)."""
        two = self.run.task is None and self.run.classes == 2
        return self.split is not None and two and self.smallest is None

    @property
    def overfits(self) -> bool:
        """Whether it knows its training bags and nothing of others."""
        train = self.run.summary["splits"].get("train")
        if self.told or self.too_few or train is None or all(seed.stuck for seed in self.run.all_seeds):
            return False
        return self.run.task is None and (train["mean"].get("auroc") or 0.0) >= FITTED_AUROC

    @property
    def text(self) -> str:
        """The judgement in one or two sentences."""
        name = model_title(self.run.model)
        if self.split is None:
            return f"{name} was scored on its training bags alone: nothing shows that it holds on others."
        scored = self.run.summary["splits"][self.split]
        value, ends = self._figure(scored)
        if value is None:
            return f"The {self.split} bags give no {self.label}: nothing shows that {name} holds on them."
        figure = f"{self.label} {value:.3f} on {self.split}{_interval(ends)}"
        if self.told:
            return f"{name} is better than chance: {figure}, {_bags(scored)}."
        if self.too_few:
            return f"Too few bags to show that anything is better than chance: {figure} ({_bags(scored)})."
        learned = " It fits its training bags, so it overfits." if self.overfits else ""
        size = _bags(scored) + ("" if self.smallest is None else f", which tell one from {self.smallest:.2f} on")
        return f"No signal detected: {name} is no better than chance, {figure} ({size}).{learned}"

    @property
    def best(self) -> str | None:
        """The baseline with the highest figure on the judged bags."""
        known = {
            name: value
            for name, rule in self.baselines.items()
            if self.split in rule["splits"] and (value := self._figure(rule["splits"][self.split])[0]) is not None
        }
        return max(known, key=lambda name: known[name]) if known else None

    def baseline_told(self, name: str) -> bool:
        """Whether a baseline is better than chance on the judged bags."""
        return self.split is not None and self._told(self.baselines[name]["splits"][self.split])

    @property
    def outdone(self) -> bool:
        """Whether a baseline that is better than chance has a higher figure than the model on the same bags."""
        if self.split is None or self.best is None or not self.baseline_told(self.best):
            return False
        return self.gap(self.best)[0] < -1e-9

    def gap(self, name: str) -> tuple[float, float, float]:
        """The figure of the model minus that of a baseline, and the ends of its 95 % interval; NaN where unknown."""
        found = self.baselines[name]["against"].get(self.split or "")
        values = [found["difference"], *found["interval"]] if found else [None] * 3
        low, middle, high = (math.nan if v is None else float(v) for v in (values[1], values[0], values[2]))
        return middle, low, high

    @property
    def against_baselines(self) -> str:
        """How the model stands to the best baseline, in one sentence; empty without baselines."""
        if self.best is None or self.split is None:
            return ""
        rule, name = self.baselines[self.best], model_title(self.run.model)
        title = f"{rule['title'].lower()} baseline"
        own, its = (self._figure(part["splits"][self.split])[0] for part in (self.run.summary, rule))
        if own is None or its is None:
            return ""
        middle, low, high = self.gap(self.best)
        difference = f"difference {middle:+.3f}{_interval([low, high])}"
        values = f"{self.label} {its:.3f} against {own:.3f} on {self.split}"
        if not self.baseline_told(self.best):
            either = "" if self.told else " either"
            return f"No baseline is better than chance{either}; the best, the {title}, has {values}."
        if high < 0:
            return f"The {title} is better than {name}: {values}, {difference}."
        if self.outdone:
            return (
                f"The {title} is at least as good as {name}: {values}; these bags do not tell them apart, {difference}."
            )
        values = f"{self.label} {own:.3f} against {its:.3f} on {self.split}"
        if low > 0:
            return f"{name} is better than the best baseline, the {title}: {values}, {difference}."
        return f"{name} is not told apart from the best baseline, the {title}: {values}, {difference}."

    @property
    def first_sentence(self) -> str | None:
        """What a reader has to know first; None where the result speaks for itself."""
        if self.outdone:
            return self.against_baselines
        return None if self.told else self.text

    @property
    def caveat(self) -> str | None:
        """What everything that is said with this run's models has to carry along; None for a run without."""
        beaten = self.outdone and self.best is not None and self.gap(self.best)[2] < 0
        found = ([] if self.told else [self.text]) + ([self.against_baselines] if beaten else [])
        return " ".join(found) or None

    def as_json(self) -> dict[str, Any]:
        """Plain values for machines."""
        return {
            "told_from_chance": self.told, "split": self.split, "metric": self.metric, "text": self.text,
            "smallest_auroc_told": self.smallest if self.run.classes == 2 else None,
            "against_baselines": self.against_baselines, "outdone_by": self.best if self.outdone else None,
            "caveat": self.caveat,
        }  # fmt: skip

    def _told(self, scored: Scores) -> bool:
        value, ends = self._figure(scored)
        low = ends[0] if ends else None
        if value is None or low is None or not math.isfinite(low) or low <= task_metric_of(self.metric).chance:
            return False
        if self.run.task is not None or self.run.classes > 2:
            return True
        return self.smallest is not None and value >= self.smallest - 1e-9

    def _figure(self, scored: Scores) -> tuple[float | None, Sequence[Any] | None]:
        value = scored["mean"].get(self.metric)
        found = None if value is None or not math.isfinite(value) else float(value)
        return found, scored.get("interval", {}).get(self.metric)


def verdict(run: Run) -> Verdict:
    """What a run has shown on the most telling bags that it was not trained on."""
    held_out = [name for name in run.splits if name != "train"]
    return Verdict(run, held_out[0] if held_out else None, read_baselines(run.path))


def verdict_of(path: Path) -> Verdict | None:
    """The verdict on the run that a folder or a model file belongs to; None for a lone file."""
    folder = path if path.is_dir() else path.resolve().parent.parent
    for candidate in (folder, folder.parent):
        try:
            run = Run.read(candidate)
            found = verdict(run)
            assert found.text  # read what it needs now
        except (OSError, ValueError):
            continue
        return found
    return None


def _patients_by_class(run: Run, split: str) -> list[tuple[int, int]]:
    """Positive and negative patients of the split, of every fold that scored it."""
    return [_by_class(seeds[0]) for part in run.parts if (seeds := part.per_seed(split))]


def _by_class(found: Predictions) -> tuple[int, int]:
    positive = {patient for patient, label in zip(found.patients, found.labels, strict=True) if label == 1}
    others = {patient for patient, label in zip(found.patients, found.labels, strict=True) if label == 0}
    return len(positive), len(others - positive)


def _interval(ends: Sequence[Any] | None) -> str:
    if not ends or None in ends or not all(map(math.isfinite, ends)) or ends[0] == ends[1]:
        return ""  # of two perfect scores no resample differs, which is no certainty
    return f" (95 % interval {ends[0]:.3f} to {ends[1]:.3f})"


def _bags(scored: Scores) -> str:
    n, patients = scored["n"], scored.get("patients", scored["n"])
    return f"{n:,} bag{'' if n == 1 else 's'}" + (f" of {patients:,} patients" if patients < n else "")
