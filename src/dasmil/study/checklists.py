"""Reporting checklists of a run: what it knows of the items of TRIPOD+AI and CLAIM, and what only authors know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dasmil.models import MODELS
from dasmil.runs import Run, read_clinical, recalibration_of
from dasmil.vocabulary import METRICS, model_title, task_metric

TRIPOD, CLAIM = "TRIPOD-AI.md", "CLAIM.md"
Facts = Mapping[str, str]
Items = tuple[tuple[str, str, str], ...]
"""Items as (number, topic, name of the fact that fills it; empty where only authors know it)."""

TRIPOD_ITEMS: Items = (
    ("1", "Title", ""), ("2", "Abstract", ""), ("3a", "Healthcare context", ""), ("3b", "Target population", ""),
    ("3c", "Health inequalities", ""), ("4", "Objectives", ""), ("5a", "Sources of data", "source"),
    ("5b", "Dates of data", ""), ("6a", "Setting and centres", ""), ("6b", "Eligibility", ""), ("6c", "Treatments", ""),
    ("7", "Data preparation", "preparation"), ("8a", "Outcome, definition", "outcome"),
    ("8b", "Outcome, assessors", ""), ("8c", "Outcome, blinding", ""), ("9a", "Choice of predictors", "predictors"),
    ("9b", "Predictors, definition", "features"), ("9c", "Predictors, assessors", ""), ("10", "Sample size", "sizes"),
    ("11", "Missing data", "missing"), ("12a", "How data were used", "splits"),
    ("12b", "Handling of predictors", "features"), ("12c", "Type of model and its building", "model"),
    ("12d", "Heterogeneity between clusters", "subgroups"), ("12e", "Measures of performance", "measures"),
    ("12f", "Model updating", "recalibration"), ("12g", "How predictions are made", "prediction"),
    ("13", "Class imbalance", "classes"), ("14", "Fairness", "subgroups"), ("15", "Output of the model", "prediction"),
    ("16", "Differences of training and evaluation data", ""), ("17", "Ethical approval", ""), ("18a", "Funding", ""),
    ("18b", "Conflicts of interest", ""), ("18c", "Protocol", ""), ("18d", "Registration", ""),
    ("18e", "Data sharing", ""), ("18f", "Code sharing", "software"), ("19", "Patient and public involvement", ""),
    ("20a", "Flow of participants", "flow"), ("20b", "Characteristics of participants", ""),
    ("20c", "Development and evaluation data compared", ""), ("21", "Participants and events by analysis", "sizes"),
    ("22", "Full model", "model"), ("23a", "Performance with intervals", "performance"),
    ("23b", "Performance in clusters", "subgroups"), ("24", "Results of updating", "recalibration"),
    ("25", "Interpretation", ""), ("26", "Limitations", ""), ("27a", "Input of poor quality or missing", "missing"),
    ("27b", "Interaction with users", ""), ("27c", "Next steps", ""),
)  # fmt: skip
CLAIM_ITEMS: Items = tuple(("", topic, fact) for topic, fact in (
    ("Title names the method", ""), ("Abstract", ""), ("Clinical background and role", ""), ("Objectives", ""),
    ("Prospective or retrospective", ""), ("Study goal", ""), ("Data sources", "source"),
    ("Inclusion and exclusion criteria", ""), ("Preprocessing", "preparation"), ("Selection of data subsets", "limits"),
    ("De-identification", ""), ("Missing data", "missing"), ("Image acquisition", "preparation"),
    ("Reference standard, definition", "outcome"), ("Reference standard, rationale", ""),
    ("Reference standard, annotators", ""), ("Annotation of the test set", ""), ("Variability of readers", ""),
    ("Partitions", "splits"), ("Level at which partitions are disjoint", "disjoint"), ("Intended sample size", ""),
    ("Model, inputs and outputs", "model"), ("Software", "software"), ("Initial parameters", "training"),
    ("Training, hyper-parameters", "training"), ("Selection of the final model", "selection"),
    ("Ensembling", "prediction"), ("Measures of performance", "measures"),
    ("Uncertainty and significance", "uncertainty"), ("Robustness", "subgroups"), ("Explainability", "explanation"),
    ("Evaluation on internal data", "performance"), ("Testing on external data", ""), ("Trial registration", ""),
    ("Flow of cases", "flow"), ("Demographics by partition", ""), ("Performance on all partitions", "performance"),
    ("Performance with intervals", "performance"), ("Failure analysis", "failures"), ("Limitations", ""),
    ("Implications for practice", ""), ("Protocol", ""), ("Availability of software, model and data", "software"),
    ("Funding", ""),
))  # fmt: skip


def checklists(run: Run) -> dict[str, str]:
    """Both checklists as Markdown by file name; no path, no name of a bag or a patient is in them."""
    facts = {name: text for name, make in _FACTS.items() if (text := make(run))}
    return {
        TRIPOD: _page("TRIPOD+AI (2024)", TRIPOD_ITEMS, facts),
        CLAIM: _page("CLAIM (2024 update, topics in its order)", CLAIM_ITEMS, facts),
    }


def _page(title: str, items: Items, facts: Facts) -> str:
    known = [(number, topic, facts[fact]) for number, topic, fact in items if fact in facts]
    open_items = [f"{number} {topic}".strip() for number, topic, fact in items if fact not in facts]
    lines = [
        f"# {title}", "",
        "Filled from the run by dasmil. Check every entry against the checklist itself, whose wording is not repeated.",
        "", "## What the run knows", "", "| item | topic | from the run |", "|---|---|---|",
        *(f"| {number} | {topic} | {text} |" for number, topic, text in known),
        "", "## What only authors know", "", *(f"- [ ] {item}" for item in open_items), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _plain(text: object) -> str:
    from dasmil.study.card import plain

    return plain(str(text))


def _source(run: Run) -> str:
    return _plain(f"{run.data['slides']}." if "slides" in run.data else "")


def _outcome(run: Run) -> str:
    if run.task is not None:
        return _plain(f"{run.task.text}.")
    return _plain("Classes of the label table: " + ", ".join(f"{i} = {n}" for i, n in enumerate(run.class_names)) + ".")


def _features(run: Run) -> str:
    count = run.options.get("in_features")
    encoders = ", ".join(run.seen["encoder"]) if run.seen is not None else ""
    where = f" by {encoders}" if encoders else ""
    return _plain(
        f"{count} features of every instance{where}, whitened or standardised on training bags as the model states."
    )


def _preparation(run: Run) -> str:
    seen = run.seen
    stride = seen["stride_um"] if seen is not None else None
    parts = [f"Positions: {run.data['positions']}." if "positions" in run.data else "",
             f"Instances lie {stride:.0f} um apart (median)." if stride else ""]  # fmt: skip
    return _plain(" ".join(part for part in parts if part))


def _sizes(run: Run) -> str:
    def one(name: str, scored: Mapping[str, Any]) -> str:
        own = f"{name}: {scored['n']} bags"
        own += f" of {scored['patients']} patients" if "patients" in scored else ""
        for key, word in (("positives", "positive"), ("events", "with the event")):
            own += f", {scored[key]} {word}" if key in scored else ""
        return own

    return _plain("; ".join(one(name, scored) for name, scored in run.summary["splits"].items()) + ".")


def _missing(run: Run) -> str:
    count = (
        "No slide was left out"
        if not {"unmatched", "left_out"} & run.data.keys()
        else "Slides without a label or a readable file were left out"
    )
    return f"{count}; slides with missing features (NaN) are left out."


def _splits(run: Run) -> str:
    if run.folds:
        return f"Cross-validation with {len(run.folds)} folds; each fold is tested by models that have not seen it."
    how = "out-of-fold predictions of the training patients" if run.out_of_fold else "a validation set"
    return f"Training patients with {how}; test set: {_plain(run.data.get('test_set', 'none'))}."


def _disjoint(run: Run) -> str:
    cohort = run.origin.get("cohort", {})
    if not cohort:
        return ""
    return "Sites: no site is on two sides of a split." if cohort.get("site_column") else (
        "Patients: no patient is on two sides of a split."
    )  # fmt: skip


def _model(run: Run) -> str:
    paper = MODELS[run.model].paper if run.model in MODELS else "selected from a library of candidates"
    options = ", ".join(f"{k}={v}" for k, v in sorted(run.options.items()) if isinstance(v, int | float | str))
    return _plain(f"{model_title(run.model)} ({paper}); {options}.")


def _training(run: Run) -> str:
    settings = ", ".join(
        f"{k}={v}" for k, v in sorted(run.config["training"].items()) if isinstance(v, int | float | str)
    )
    return _plain(f"{len(run.all_seeds)} models from different random numbers or folds; {settings}.")


def _selection(run: Run) -> str:
    how = {"best-val": "the epoch with the best validation score", "last": "the last epoch",
           "out-of-fold": "the simplest candidate within one standard error of the best out-of-fold loss"}  # fmt: skip
    return f"{how.get(run.summary['selection'], run.summary['selection'])}; no test bag had a part in it."


def _prediction(run: Run) -> str:
    count = len(run.all_seeds)
    what = "probability" if run.task is None else "prediction"
    cut = f"; positive from a probability of {run.threshold:.3f} on" if run.task is None and run.classes == 2 else ""
    return f"The mean {what} of {count} model{'s' * (count > 1)}{cut}."


def _measures(run: Run) -> str:
    names = list(next(iter(run.summary["splits"].values()))["mean"])
    return _plain(", ".join(METRICS[n].title if n in METRICS else task_metric(n) for n in names) + ".")


def _performance(run: Run) -> str:
    name = "auroc" if run.task is None else run.task.main
    parts = []
    for split in run.splits:
        scored = run.summary["splits"][split]
        value, ends = scored["mean"].get(name), scored["interval"].get(name) or [None, None]
        if split != "train" and isinstance(value, int | float):
            known = all(isinstance(end, int | float) for end in ends)
            parts.append(f"{split} {value:.3f}" + (f" (95 % interval {ends[0]:.3f} to {ends[1]:.3f})" if known else ""))
    title = METRICS[name].title if name in METRICS else task_metric(name)
    return f"{title}: {'; '.join(parts)}. The report has all measures." if parts else ""


def _subgroups(run: Run) -> str:
    found = read_clinical(run.path).get("subgroups")
    if not found:
        return ""
    return _plain(f"Compared by {', '.join(t['column'] for t in found['tests'])}; the report has the table and tests.")


def _recalibration(run: Run) -> str:
    found = recalibration_of(run) if run.task is None else None
    return "" if found is None else (
        f"{found.method}, fitted on {len(found.fitted_on)} bags, each predicted by models that were not trained on it."
    )  # fmt: skip


def _classes(run: Run) -> str:
    if run.task is not None:
        return ""
    counts = run.summary["splits"].get("train", {}).get("classes") or {}
    shares = ", ".join(f"{n} of class {run.class_names[int(c)]}" for c, n in counts.items())
    balance = run.config["training"].get("balance")
    return _plain("; ".join(filter(None, [shares, f"loss balanced: {balance}" if balance is not None else ""])))


def _software(run: Run) -> str:
    names = ("dasmil", "python", "torch", "numpy", "scipy")
    return _plain(", ".join(f"{name} {run.versions[name]}" for name in names if name in run.versions) + ".")


def _limits(run: Run) -> str:
    most = run.origin.get("cohort", {}).get("max_instances")
    return f"At most {most} instances of a bag, drawn at random." if most else "All instances of every bag."


_FACTS: Mapping[str, Callable[[Run], str]] = {
    "source": _source, "flow": _source, "outcome": _outcome, "features": _features, "preparation": _preparation,
    "predictors": lambda run: "Features of instances" + " and their positions." * ("positions" in run.data),
    "sizes": _sizes, "missing": _missing, "splits": _splits, "disjoint": _disjoint, "model": _model,
    "training": _training, "selection": _selection, "prediction": _prediction, "measures": _measures,
    "performance": _performance, "subgroups": _subgroups, "recalibration": _recalibration, "classes": _classes,
    "software": _software, "limits": _limits,
    "uncertainty": lambda run: "95 % intervals from resamples of patients; few patients have score intervals.",
    "explanation": lambda run: "`dasmil explain`: contributions of instances that add up to the logit, where the model "
    "has them exactly.",
    "failures": lambda run: "The report lists every bag with its prediction; wrong ones can be filtered.",
}  # fmt: skip
