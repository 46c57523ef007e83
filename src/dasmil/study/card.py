"""A model card, written from a run: what was trained on what, how well it does with intervals, and for what it is."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Any

from dasmil import __version__
from dasmil.models import MODELS
from dasmil.runs import Run, verdict
from dasmil.vocabulary import METRICS, model_title


def model_card(run: Run) -> str:
    """The card in Markdown with the header that model hubs read; no path, no name of a bag or a patient is in it."""
    name = model_title(run.model)
    header = {"library_name": "dasmil", "tags": ["multiple-instance-learning", run.model]}
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in header.items()), "---", ""]
    lines += [f"# {name}", "", verdict(run).text, ""]
    lines += ["## Model", "", *_model(run), ""]
    lines += ["## Data and splits", "", *_data(run), ""]
    lines += ["## Results", "", *_results(run), ""]
    lines += ["## Intended use", "", *_use(run), ""]
    lines += ["## How to use", "", *_how(run)]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Text of somebody else's table as Markdown shows it: no tag, no link, no table in it."""
    return re.sub(r"([\\`*_\[\]|#!~])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _model(run: Run) -> list[str]:
    models = len(run.models())
    given = ", ".join(f"{key}={json.dumps(value)}" for key, value in sorted(run.options.items()) if value is not None)
    origin = MODELS[run.model].paper if run.model in MODELS else "selected from a library of candidates"
    return [
        f"`{run.model}` ({origin}), {models} model{'s' * (models > 1)} of one training, whose "
        "probabilities are averaged.",
        "",
        f"Options: {given}. Trained with dasmil {run.versions.get('dasmil', __version__)}.",
    ]


def _data(run: Run) -> list[str]:
    data: Mapping[str, Any] = run.data
    found = [plain(f"{data['slides']}." if "slides" in data else f"Data set: {run.dataset}.")]
    if "positions" in data:
        found.append(plain(f"Positions: {data['positions']}."))
    if run.class_names:
        found.append(plain("Classes: " + ", ".join(f"{i} = {name}" for i, name in enumerate(run.class_names)) + "."))
    if run.folds:
        found.append(
            f"Cross-validation with {len(run.folds)} folds by patient: every test part was unseen by its fold."
        )
    rows = ["| set | bags | patients |", "|---|---|---|"]
    for name, scores in run.summary["splits"].items():
        rows.append(f"| {name} | {scores['n']} | {scores.get('patients', 'not known')} |")
    return [" ".join(found), "", *rows]


def _results(run: Run) -> list[str]:
    splits = run.summary["splits"]
    names = list(dict.fromkeys(name for scores in splits.values() for name in scores["mean"]))
    rows = ["Mean over the models, with 95 % intervals over patients. Training bags say nothing about others.", ""]
    rows += ["| figure | " + " | ".join(splits) + " |", "|---" * (len(splits) + 1) + "|"]
    for name in names:
        title = METRICS[name].title if name in METRICS else name
        rows.append(f"| {title} | " + " | ".join(_figure(scores, name) for scores in splits.values()) + " |")
    if run.decision is not None and run.classes == 2:
        rows += ["", f"Class 1 is given from a probability of {run.decision:.3f} on."]
    return rows


def _figure(scores: Mapping[str, Any], name: str) -> str:
    value, ends = scores["mean"].get(name), scores["interval"].get(name)
    if not isinstance(value, int | float):
        return "not known"
    if not ends or not all(isinstance(end, int | float) for end in ends):
        return f"{value:.3f} (no interval)"
    return f"{value:.3f} ({ends[0]:.3f} to {ends[1]:.3f})"


def _use(run: Run) -> list[str]:
    scale: Mapping[str, Any] = run.origin.get("scale") or {}
    sizes = "; ".join(f"{name} {', '.join(f'{v:g}' for v in values)}" for name, values in scale.items())
    alike = f" of the same scale ({sizes})" if sizes else ""
    return [
        f"Research on bags whose features come from the same encoder as those it was trained on{alike}. It was judged "
        "on the sets above and nowhere else: other laboratories, scanners and populations were not looked at.",
        "",
        "Not a medical device. Nothing here supports a decision about a patient.",
    ]


def _how(run: Run) -> list[str]:
    return [
        "```python",
        "import dasmil",
        "",
        'model = dasmil.from_pretrained("FOLDER")',
        "model.predict_proba(bags)    # dasmil.Bag; one row a bag, one column a class",
        "```",
    ]
