"""What a run whose task is no class has shown, in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dasmil.runs.run import Run
from dasmil.vocabulary import model_title, task_metric, task_metric_of


@dataclass(frozen=True, eq=False)
class TaskVerdict:
    """Is the model told from a guess that ignores the bag, on bags that it was not trained on?

    split: the bags that are judged, None where only training bags were scored.
    """

    run: Run
    split: str | None

    @property
    def metric(self) -> str:
        """The figure that is judged."""
        assert self.run.task is not None
        return self.run.task.main

    @property
    def figure(self) -> tuple[float | None, float | None, float | None]:
        """Its mean and the ends of its interval; None where it does not exist."""
        if self.split is None:
            return None, None, None
        scored = self.run.summary["splits"][self.split]
        ends = scored["interval"].get(self.metric) or [None, None]
        known = [v if v is not None and math.isfinite(v) else None for v in (scored["mean"].get(self.metric), *ends)]
        return known[0], known[1], known[2]

    @property
    def told(self) -> bool:
        """Whether the lower end of the interval is above what a guess reaches."""
        _, low, _ = self.figure
        return low is not None and low > task_metric_of(self.metric).chance

    @property
    def text(self) -> str:
        """The judgement in one sentence."""
        name = model_title(self.run.model)
        value, low, high = self.figure
        if self.split is None:
            return f"{name} was scored on its training bags alone: nothing shows that it holds on others."
        title = task_metric(self.metric)
        if value is None:
            return f"The {self.split} bags give no {title}: nothing shows that {name} holds on them."
        between = "" if low is None or high is None else f" (95 % interval {low:.3f} to {high:.3f})"
        n = self.run.summary["splits"][self.split]["n"]
        figure = f"{title} {value:.3f} on {self.split}{between}, {n:,} bags"
        if self.told:
            return f"{name} is better than chance: {figure}."
        return f"No signal detected: {name} is no better than chance, {figure}."

    @property
    def caveat(self) -> str | None:
        """What everything that is said with this run's models has to carry along."""
        return None if self.told else self.text

    def as_json(self) -> dict[str, Any]:
        """Plain values for machines."""
        return {"told_from_chance": self.told, "split": self.split, "metric": self.metric, "text": self.text}


def task_verdict(run: Run) -> TaskVerdict:
    """What a run has shown on the most telling bags that it was not trained on."""
    held_out = [name for name in run.splits if name != "train"]
    return TaskVerdict(run, held_out[0] if held_out else None)
