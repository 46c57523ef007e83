"""Numbers and facts of a run in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dasmil.runs import Run, Seed
from dasmil.stats import FEWEST
from dasmil.vocabulary import model_title as display_name  # noqa: F401


def decimal(value: Any, places: int = 3) -> str:
    """A number with fixed decimals, or a dash where there is none."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return "–"
    return f"{value:.{places}f}"


def plural(n: int, noun: str) -> str:
    """ "1 bag", "2,000 bags"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def class_name(number: int, names: Sequence[str] = ()) -> str:
    """The name of a class, or its number where classes have no names."""
    return names[number] if number < len(names) else str(number)


def bags_text(n: int, patients: int | None = None) -> str:
    """ "40 bags of 20 patients"; without the patients where every bag has its own, or they are not known."""
    return plural(n, "bag") + (f" of {plural(patients, 'patient')}" if patients is not None and patients < n else "")


def scored_bags(scored: Mapping[str, Any]) -> str:
    """The bags of a scored split: "40 bags of 20 patients"."""
    return bags_text(scored["n"], scored.get("patients"))


def set_bags(run: Run, split: str) -> str:
    """The bags of a split; of the training and validation bags of folds how many each fold has: "60 bags a fold"."""
    sizes = [part.summary["splits"].get(split, {}).get("n", 0) for part in run.folds]
    if not sizes or split not in ("train", "val"):
        said = scored_bags(run.summary["splits"][split])
        return f"out of fold, {said}" if split == "val" and run.out_of_fold else said
    low, high = min(sizes), max(sizes)
    how = "out of fold, " if split == "val" and run.out_of_fold else ""
    return f"{how}{low:,} bags a fold" if low == high else f"{how}{low:,} to {high:,} bags a fold"


def positive_bags(scored: Mapping[str, Any]) -> str:
    """ ", 8 of them positive"; beside patients, who could be meant by "them", ", 8 of the bags positive"."""
    them = "the bags" if scored.get("patients", scored["n"]) < scored["n"] else "them"
    return f", {scored['positives']:,} of {them} positive"


def resampled_text(splits: Mapping[str, Mapping[str, Any]]) -> str:
    """What the intervals of these splits resample: "patients" where one has several bags, else "bags"."""
    several = any(scored.get("patients", scored["n"]) < scored["n"] for scored in splits.values())
    shared = [name for name, scored in splits.items() if scored.get("shared_by_folds")]
    none = f"; none of {' and '.join(shared)}, which the folds share" if shared else ""
    return ("patients" if several else "bags") + none


def too_few_text(splits: Mapping[str, Mapping[str, Any]]) -> str:
    """A sentence about sets with so few bags of a class that they say nothing about others; empty without."""
    found = [name for name, scored in splits.items() if scored.get("fewest", FEWEST) < FEWEST]
    if not found:
        return ""
    several = any(splits[name].get("patients", 0) < splits[name]["n"] for name in found)
    what = "patients" if several else "bags"
    return (
        f"Fewer than {FEWEST} {what} of a class in {' and '.join(found)}: nothing can be said from them, not even "
        "after a perfect score, so there is no interval."
    )


def interval_text(interval: Sequence[Any] | None) -> str:
    """ "0.95-0.98", or empty."""
    return f"{decimal(interval[0])}–{decimal(interval[1])}" if interval and None not in interval else ""


def seeds_text(run: Run) -> str:
    """ "5 seeds", and how many folds."""
    if run.folds:
        return f"{len(run.folds)} folds, {plural(len(run.folds[0].seeds), 'seed')} each"
    return plural(len(run.seeds), "seed")


def seed_name(seed: Seed, run: Run) -> str:
    return f"{seed.path.parent.name} seed {seed.number}" if run.folds else f"seed {seed.number}"


def stuck_notice(run: Run) -> str | None:
    """A sentence about runs that did not fit, or None."""
    stuck = [seed for seed in run.all_seeds if seed.stuck]
    if not stuck:
        return None
    if len(stuck) == len(run.all_seeds):
        return "no run fitted the training bags: the training loss stayed high with every seed."
    names = ", ".join(seed_name(seed, run) for seed in stuck)
    return (
        f"{len(stuck)} of {plural(len(run.all_seeds), 'run')} did not fit the training bags ({names}): "
        "the training loss stayed high. They are counted in every figure and drawn dashed."
    )


def seed_names(seeds: Sequence[int | str]) -> str:
    """Seeds of a summary: "seed 0, seed 2", or "fold 1 seed 0" as a cross-validation writes them."""
    return ", ".join(f"seed {name}" if isinstance(name, int) else name for name in seeds)


def chance_notice(run: Run) -> str | None:
    """A sentence about runs that fitted their training bags and are no better than chance on others, or None."""
    found = run.summary.get("chance_seeds")
    if not found:
        return None
    return (
        f"{len(found)} of {plural(len(run.all_seeds), 'run')} fitted the training bags, but their AUROC on the "
        f"validation bags is no better than chance ({seed_names(found)}): the model overfits, "
        "or there are too few validation bags to say."
    )


def protocol_text(run: Run) -> list[str]:
    """How training went and which weights are reported, in words."""
    training = run.config["training"]
    kept = "the best validation epoch" if run.summary.get("selection") == "best-val" else "the last epoch"
    bags = int(training.get("accumulate", 1))
    rate, decay = (training.get(name, math.nan) for name in ("lr", "weight_decay"))
    sentences = [
        f"{plural(bags, 'bag')} per step; {training.get('optimizer', 'adamw')}, learning rate {rate:g}, "
        f"weight decay {decay:g}, schedule {training.get('schedule', 'constant')}. "
        f"The weights of {kept} are reported; nothing was chosen on test bags."
    ]
    if run.config["data"].get("protocol") == "published":
        sentences.append(
            "The published split leaks: every positive test bag repeats the layout of a training bag. "
            "Use it only to compare with the paper."
        )
    return sentences
