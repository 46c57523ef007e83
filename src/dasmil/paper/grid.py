"""The paper's hyper-parameter search, with the choice made on validation bags, and what choosing on test bags claims.

Departs from the paper: its authors chose by the accuracy on the test set. Here every setting is scored on the clean
validation bags, the choice is made by them, and the test set is looked at only to say what it would have chosen.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.engine import Unit
from dasmil.errors import DataError, InputError
from dasmil.files import differences, finite, read_json, write_json
from dasmil.models import MODELS, resolve_options
from dasmil.paper.cells import MODEL_ORDER, QUICK_EPOCHS, held_out
from dasmil.paper.stored import StoredPredictions, made_with, read_arrays, write_predictions
from dasmil.stats.pairs import PairScores, scores
from dasmil.train.recipes import load_recipe

LEARNING_RATES = (1e-2, 1e-3, 1e-4)
WEIGHT_DECAYS = (0.1, 0.01, 0.001)
HIDDEN = (10, 15, 20)
POOLING = ("mean", "max", "sum")
FORMAT, FORMAT_VERSION = "dasmil-grid-unit", 1
DATASET = "mnist-collage"
"""The data set whose best settings the paper prints."""


@dataclass(frozen=True)
class GridSetting:
    """One point of the grid and its balanced accuracy on the three sets."""

    lr: float
    weight_decay: float
    hidden: int | None
    pooling: str | None
    validation: float
    validation_auroc: float
    test: float
    test_large: float

    def text(self) -> str:
        parts = [f"lr {self.lr:g}", f"weight decay {self.weight_decay:g}"]
        parts += [f"hidden {self.hidden}"] if self.hidden else []
        return ", ".join(parts + ([self.pooling] if self.pooling else []))


def grid_plans(models: Sequence[str] | None, protocol: str, *, dataset: str, quick: bool) -> list[dict[str, Any]]:
    """One plan for each size and pooling of each model; learning rates and weight decays of a plan train together."""
    wanted = models or (("das-mil",) if quick else [m for m in MODEL_ORDER if m not in ("mean-pool", "gated-ab-mil")])
    plans = []
    for model in wanted:
        recipe = load_recipe("paper", model)
        known = MODELS[model].options()
        hidden: Sequence[int | None] = HIDDEN if "hidden" in known else (None,)
        pooling: Sequence[str | None] = POOLING if "pooling" in known else (None,)
        for size, kind in itertools.product(hidden[:1] if quick else hidden, pooling[1:2] if quick else pooling):
            own = {"hidden": size, "pooling": kind}
            training = {k: v for k, v in recipe.training.items() if k not in ("lr", "weight_decay")}
            plan = {
                "model": model,
                "dataset": dataset,
                "protocol": protocol,
                "preset": recipe.preset,
                "options": {**recipe.options, **{k: v for k, v in own.items() if v is not None}},
                "training": training | ({"epochs": QUICK_EPOCHS} if quick else {}),
                "lr": list(LEARNING_RATES),
                "weight_decay": list(WEIGHT_DECAYS),
                "seed": 0,
            }
            plans.append(plan)
    return plans


def grid_path(results: Path, plan: Mapping[str, Any]) -> Path:
    options = plan["options"]
    size = "".join(f".{options[name]}" for name in ("hidden", "pooling") if name in options)
    return results / "grid" / plan["protocol"] / f"{plan['model']}.{plan['dataset']}{size}.json"


def grid_files(results: Path) -> list[Path]:
    """The manifests of finished parts of the grid."""
    return sorted((results / "grid").glob("*/*.json"))


def grid_units(plans: Sequence[dict[str, Any]], results: Path) -> list[Unit]:
    """The work of these plans; a part that was made with other settings is an error."""
    units = []
    for plan in plans:
        path = grid_path(results, plan)
        if path.exists():
            changes = differences(_read(path)["plan"], finite(plan))
            if changes:
                raise InputError(
                    f"{path} was made with other settings ({'; '.join(changes[:4])}): choose another folder with "
                    "--results, or remove that file to train this part again"
                )
        key = f"grid/{plan['protocol']}/{path.stem}"
        units.append(Unit(key, "dasmil.paper.grid:run_grid_unit", {"plan": plan, "result": str(path)}, str(path)))
    return units


def run_grid_unit(plan: dict[str, Any], result: str) -> None:
    """Train all learning rates and weight decays of one size and pooling at once, and store what they predict."""
    import torch

    from dasmil.data import load_dataset
    from dasmil.train.evaluate import model_logits
    from dasmil.train.feed import Feed
    from dasmil.train.fit import fit
    from dasmil.train.state import RunSpec

    begun = time.process_time()
    specs = [RunSpec(plan["seed"], lr, wd) for lr, wd in itertools.product(plan["lr"], plan["weight_decay"])]
    train = load_dataset(plan["dataset"], protocol=plan["protocol"], split="train")
    runs = fit(
        plan["model"],
        train,
        runs=specs,
        preset=plan["preset"],
        model_options=plan["options"],
        progress=False,
        **plan["training"],
    )
    labels, logits = {}, {}
    for name, bags in held_out(plan["dataset"], plan["protocol"]).items():
        feed = Feed(bags, torch.device("cpu"), memory_gb=1.0, name=name)
        # A run that diverged (large learning rates may) predicts nothing: it counts as always negative.
        found = np.nan_to_num(model_logits([run.model for run in runs], feed), nan=-1.0, posinf=6e4, neginf=-6e4)
        labels[name], logits[name] = feed.facts.labels.astype(np.uint8), np.clip(found, -6e4, 6e4).astype(np.float16)
    large = np.packbits(logits.pop("test-large") >= 0, axis=1)
    bags_large = labels.pop("test-large")
    path = Path(result)
    write_predictions(path.with_suffix(".npz"), StoredPredictions(labels, logits), positive_large=large)
    arrays = read_arrays(path.with_suffix(".npz"))
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "plan": plan,
        "settings": [vars(s) for s in _settings(plan, arrays, bags_large)],
        "versions": made_with(),
        "cpu_seconds": time.process_time() - begun,
    }
    write_json(path, manifest)


def _settings(
    plan: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], labels_large: NDArray[Any]
) -> list[GridSetting]:
    options = plan["options"]
    settings = []
    large = np.unpackbits(arrays["positive_large"], axis=1, count=len(labels_large))
    for row, (lr, decay) in enumerate(itertools.product(plan["lr"], plan["weight_decay"])):
        scored = {
            name: scores(arrays[f"labels.{name}"], arrays[f"logits.{name}"][row : row + 1])
            for name in ("validation", "test")
        }
        right = PairScores.of(labels_large, np.where(large[row], 1.0, -1.0)).right
        values = {name: scored[name]["balanced_accuracy"]["mean"] for name in scored}
        settings.append(
            GridSetting(
                lr, decay, options.get("hidden"), options.get("pooling"),
                values["validation"], scored["validation"]["auroc"]["mean"], values["test"],
                float(np.mean([right[labels_large == c].mean() for c in (0, 1)])),
            )
        )  # fmt: skip
    return settings


def check_grid_unit(path: Path, labels_of: Callable[[dict[str, Any]], Mapping[str, NDArray[Any]]]) -> list[str]:
    """What is wrong with a stored part of the grid."""
    manifest = _read(path)
    arrays = read_arrays(path.with_suffix(".npz"))
    labels = labels_of(manifest["plan"])
    wrong = [
        f"the stored labels of {name} are not those of the bags"
        for name in ("validation", "test")
        if not np.array_equal(arrays[f"labels.{name}"], labels[name])
    ]
    again = [vars(s) for s in _settings(manifest["plan"], arrays, labels["test-large"])]
    for stored, new in zip(manifest["settings"], again, strict=True):
        wrong += [
            f"{name}: stored {stored[name]}, recomputed {value}"
            for name, value in new.items()
            if (abs(stored[name] - value) > 1e-9 if isinstance(value, float) else stored[name] != value)
        ]
    return wrong


def _read(path: Path) -> dict[str, Any]:
    manifest = read_json(path)
    if manifest.get("format") != FORMAT or manifest.get("format_version") != FORMAT_VERSION:
        raise DataError(f"{path} is not a part of dasmil reproduce grid, version {FORMAT_VERSION}: remove it")
    return manifest


@dataclass(frozen=True)
class Choice:
    """What the grid of one model says."""

    model: str
    dataset: str
    parts: int
    parts_planned: int
    by_validation: GridSetting
    by_test: GridSetting
    paper: str
    """The paper's best setting, in the words of GridSetting.text."""
    as_paper: GridSetting | None
    """What that setting has; None if it is not a finished point of the grid."""

    @property
    def complete(self) -> bool:
        return self.parts == self.parts_planned


def choices(results: Path, protocol: str) -> list[Choice]:
    """For every model with finished parts: the setting that validation chooses, and the one the test set would."""
    found: dict[tuple[str, str], list[GridSetting]] = {}
    parts: dict[tuple[str, str], int] = {}
    for path in grid_files(results):
        manifest = _read(path)
        plan = manifest["plan"]
        if plan["protocol"] != protocol:
            continue
        key = (plan["model"], plan["dataset"])
        found.setdefault(key, []).extend(GridSetting(**s) for s in manifest["settings"])
        parts[key] = parts.get(key, 0) + 1
    result = []
    for model, dataset in sorted(found, key=lambda key: (MODEL_ORDER.index(key[0]), key[1])):
        settings = found[model, dataset]
        planned = len(grid_plans([model], protocol, dataset=dataset, quick=False))
        paper = _paper_setting(model)
        result.append(
            Choice(
                model, dataset, parts[model, dataset], planned,
                max(settings, key=lambda s: (s.validation, s.validation_auroc)),
                max(settings, key=lambda s: (s.test, s.validation)), paper,
                next((s for s in settings if s.text() == paper), None),
            )
        )  # fmt: skip
    return result


def grid_claims(found: Sequence[Choice]) -> list[str]:
    """What the complete grids say together: how much a choice on the test set claims, and what each choice is worth."""
    whole = [choice for choice in found if choice.complete]
    if not whole:
        return []
    excess = [c.by_test.test - c.by_test.test_large for c in whole]
    gain = [c.by_validation.test_large - c.by_test.test_large for c in whole]
    lines = [
        f"{len(whole)} complete {'grid' if len(whole) == 1 else 'grids'}: what choosing on the test bags claims is on "
        f"average {np.mean(excess):+.3f} against the same setting on 2,000 clean bags ({min(excess):+.3f} to "
        f"{max(excess):+.3f}).",
        f"Settings chosen on the validation bags have on average {np.mean(gain):+.3f} on 2,000 clean bags against "
        f"those chosen on the test bags ({min(gain):+.3f} to {max(gain):+.3f}).",
    ]
    gain = [c.by_validation.test_large - c.as_paper.test_large for c in whole if c.as_paper is not None]
    if gain:
        lines.append(
            f"Against the paper's settings ({len(gain)} of {len(whole)} are points of the grid) they have on average "
            f"{np.mean(gain):+.3f} there ({min(gain):+.3f} to {max(gain):+.3f}); a choice among runs of one seed is "
            f"also a choice of lucky runs: the collage table has five seeds of the paper's settings."
        )
    return lines


def _paper_setting(model: str) -> str:
    recipe, known = load_recipe("paper", model), MODELS[model].options()
    options = {**known, **resolve_options(model, recipe.preset, **recipe.options)}
    hidden = options["hidden"] if "hidden" in known else None
    pooling = options["pooling"] if "pooling" in known else None
    rates = recipe.training["lr"], recipe.training["weight_decay"]
    return GridSetting(*rates, hidden, pooling, 0.0, 0.0, 0.0, 0.0).text()
