"""The words for scores and metrics, once: terminal, report, viewer, CSV files and docs all say the same."""

from __future__ import annotations

from dataclasses import dataclass

from dasmil.errors import unknown_name


@dataclass(frozen=True)
class Score:
    """A number that an explanation gives to every instance.

    title: as a heading; hint: what it is, in half a sentence; signed: whether its zero has two sides (for and against
    the class), which decides the colours, whatever the values of a bag are.
    """

    name: str
    title: str
    hint: str
    signed: bool = False

    @property
    def label(self) -> str:
        """The title within a sentence or beside an axis."""
        return self.title[0].lower() + self.title[1:]


@dataclass(frozen=True)
class Metric:
    """A figure of merit; short: for narrow columns of a terminal."""

    name: str
    title: str
    short: str
    higher_is_better: bool = True

    @property
    def label(self) -> str:
        """The title within a sentence; abbreviations keep their capitals."""
        return self.title if self.title[:2].isupper() else self.title[0].lower() + self.title[1:]


UNIT_SYMBOL = {"um": "µm", "px": "px"}
"""Units of length as they are written."""

SCORES: dict[str, Score] = {  # in the order of menus and tables
    score.name: score
    for score in (
        Score("contribution", "Contribution to the logit", "what it gave; of a pair, each end has half", True),
        Score("pairs", "Share in the deciding pairs", "the contribution without sign: for or against"),
        Score("support", "Support for the class", "the contribution of pairs that speak for the class only"),
        Score("distance", "Contribution of distance", "the part of the contribution that came from distance", True),
        Score("taken", "Taken by deciding rows", "all of a pair's part, put on the instance that was looked at", True),
        Score("attention", "Attention received", "from all instances, mean"),
        Score("winner-attention", "Attention of deciding rows", "received from the rows that decided, mean"),
    )
}

METRICS: dict[str, Metric] = {  # in the order of tables
    metric.name: metric
    for metric in (
        Metric("balanced_accuracy", "Balanced accuracy", "balanced acc."),
        Metric("auroc", "AUROC", "AUROC"),
        Metric("average_precision", "Average precision", "avg. precision"),
        Metric("f1", "F1", "F1"),
        Metric("sensitivity", "Sensitivity", "sensitivity"),
        Metric("specificity", "Specificity", "specificity"),
        Metric("brier", "Brier score", "Brier", higher_is_better=False),
        Metric("calibration_error", "Calibration error", "calibration err.", higher_is_better=False),
    )
}


def score(name: str) -> Score:
    """The words for one score."""
    if name not in SCORES:
        raise unknown_name("score", name, SCORES)
    return SCORES[name]


@dataclass(frozen=True)
class Meaning:
    """What an output of a model says, as accounts of it are told.

    what: the quantity that contributions sum to, within a sentence; raises, lowers: what parts above and below zero do;
    unit: of the quantity; scale, shift: an output x stands for shift + scale x in that unit; probability: what the
    logistic function of the output is called, where it is one.
    """

    what: str = "the logit"
    raises: str = "for the class"
    lowers: str = "against the class"
    unit: str = ""
    scale: float = 1.0
    shift: float = 0.0
    probability: str = ""

    @property
    def quantity(self) -> str:
        """With its unit: "contacts (cells)"."""
        return f"{self.what} ({self.unit})" if self.unit else self.what

    def score(self, name: str) -> Score:
        """The words for one score of an account of this output."""
        known = score(name)
        if self == A_CLASS:
            return known
        title = known.title.replace("the logit", self.quantity).replace("Support for the class", f"What {self.raises}")
        hint = known.hint.replace("speak for the class", "add to it")
        hint += f"; orange {self.raises}, blue {self.lowers}" if known.signed else ""
        return Score(known.name, title, hint, known.signed)


A_CLASS = Meaning()
"""Of classification: the logit of a class."""


def model_title(model: str) -> str:
    """The name of a model as a reader knows it."""
    return {"das-mil": "DAS-MIL", "sa": "Self-attention"}.get(model, model)


def speaker_text(title: str, used: str | None) -> str:
    """Who speaks, and what the bag was to it; used: the name of its set, None where nobody knows."""
    if used is None:
        return title
    words = "it was trained on this bag" if used == "train" else f"this bag was in its {used} set"
    return f"{title}; {words}" if title else words[0].upper() + words[1:]


TASK_METRICS = {
    "c_index": "C-index (Harrell)", "uno": "C-index (Uno)", "brier": "Brier score over time",
    "brier_km": "the same of Kaplan-Meier", "r2": "R²", "mae": "Mean absolute error", "rmse": "Root mean square error",
    "pearson": "Pearson's r", "spearman": "Spearman's rho", "macro": "Mean of the targets",
    "concordance": "Concordance", **{name: METRICS[name].title for name in ("auroc", "balanced_accuracy")},
}  # fmt: skip
"""Titles of the figures of tasks that are no single class."""
METRIC_WORDS = {"auroc": METRICS["auroc"].title, "c_index": "C-index", "r2": TASK_METRICS["r2"], "macro": "mean score"}
"""The metric by which models of a task are compared, within a sentence."""
CHANCE = {"c_index": 0.5, "auroc": 0.5, "r2": 0.0, "macro": 0.5}
"""What a guess that ignores the bag reaches."""


def task_metric(name: str, unit: str = "") -> str:
    """The title of a figure: "AUROC at 365 days", "er: AUROC", "Mean absolute error (um)"."""
    if name.startswith("auroc_"):
        return f"AUROC at {name.removeprefix('auroc_')}{' ' * bool(unit)}{unit}"
    target, dot, own = name.rpartition(".")
    if dot:
        return f"{target}: {task_metric(own)}"
    title = TASK_METRICS.get(name, name)
    return f"{title} ({unit})" if unit and name in ("mae", "rmse") else title
