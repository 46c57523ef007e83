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
    """A figure of merit; short: for narrow columns of a terminal and within a sentence.

    chance: what a guess that ignores the bag reaches; in_unit: whether it is in the unit of the target.
    """

    name: str
    title: str
    short: str
    higher_is_better: bool = True
    chance: float = 0.0
    in_unit: bool = False

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
        Metric("auroc", "AUROC", "AUROC", chance=0.5),
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


TASK_METRICS: dict[str, Metric] = {  # of tasks that are no single class
    metric.name: metric
    for metric in (
        Metric("c_index", "C-index (Harrell)", "C-index", chance=0.5),
        Metric("uno", "C-index (Uno)", "C-index (Uno)", chance=0.5),
        Metric("brier", "Brier score over time", "Brier", higher_is_better=False),
        Metric("brier_km", "the same of Kaplan-Meier", "Brier (KM)", higher_is_better=False),
        Metric("r2", "R²", "R²"),
        Metric("mae", "Mean absolute error", "MAE", higher_is_better=False, in_unit=True),
        Metric("rmse", "Root mean square error", "RMSE", higher_is_better=False, in_unit=True),
        Metric("pearson", "Pearson's r", "Pearson's r"),
        Metric("spearman", "Spearman's rho", "Spearman's rho"),
        Metric("kappa", "Quadratic weighted kappa", "weighted kappa"),
        Metric("grade_error", "Mean absolute error in grades", "grade error", higher_is_better=False),
        Metric("macro", "Mean of the targets", "mean score", chance=0.5),
        Metric("concordance", "Concordance", "concordance", chance=0.5),
        METRICS["auroc"],
        METRICS["balanced_accuracy"],
    )
}
ABOVE = "auroc_above_"
"""Begins the name of the AUROC of all grades above one."""


def task_metric_of(name: str) -> Metric:
    """The words for a metric of a task; one without words of its own is called by its name."""
    return TASK_METRICS.get(name) or Metric(name, name, name)


def task_metric(name: str, unit: str = "") -> str:
    """The title of a figure: "AUROC at 365 days", "er: AUROC", "Mean absolute error (um)"."""
    if name.startswith(ABOVE):
        return f"AUROC of grades above {name.removeprefix(ABOVE)}"
    if name.startswith("auroc_"):
        return f"AUROC at {name.removeprefix('auroc_')}{' ' * bool(unit)}{unit}"
    target, dot, own = name.rpartition(".")
    if dot:
        return f"{target}: {task_metric(own)}"
    metric = task_metric_of(name)
    return f"{metric.title} ({unit})" if unit and metric.in_unit else metric.title
