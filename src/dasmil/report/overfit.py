"""What the learning curves say about overfitting, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dasmil.report.words import plural, seed_name

if TYPE_CHECKING:
    from dasmil.runs import Run, Seed

RISE = 1.25
"""A validation loss that ends at this many times its lowest value has risen, where it also rose by LEAST."""
LEAST = 0.05
SHORTEST = 5  # epochs: fewer make no curve
TAIL = 10  # the end of a curve is the median of this part of its epochs, so that one epoch decides nothing


def overfit_notice(run: Run) -> str | None:
    """Models whose validation loss rose while their training loss went on falling; None where there are none."""
    risen = [(seed, found) for seed in run.all_seeds if (found := _risen(seed)) is not None]
    if not risen:
        return None
    names = ", ".join(seed_name(seed, run) for seed, _ in risen)
    epochs = sorted(epoch for _, (epoch, _, _) in risen)
    best, last = (float(np.mean([found[k] for _, found in risen])) for k in (1, 2))
    when = f"epoch {epochs[0]}" if epochs[0] == epochs[-1] else f"epochs {epochs[0]} to {epochs[-1]}"
    kept = run.summary.get("selection") == "best-val"
    what = (
        "the weights of the best validation epoch are reported"
        if kept
        else "the weights of the last epoch are reported; --selection best-val or fewer epochs avoid this"
    )
    return (
        f"Overfitting in {len(risen)} of {plural(len(run.all_seeds), 'model')} ({names}): the validation loss is "
        f"lowest at {when} ({best:.2f}) and ends at {last:.2f}, while the training loss falls on ({what})."
    )


def _risen(seed: Seed) -> tuple[int, float, float] | None:
    """The epoch with the lowest validation loss, this loss and the last one, where it rose in between."""
    history = seed.history
    if not {"epoch", "train_loss", "val_loss"} <= history.keys():
        return None
    known = np.isfinite(history["val_loss"]) & np.isfinite(history["train_loss"]) & (history["epoch"] > 0)
    epoch, train, val = (history[name][known] for name in ("epoch", "train_loss", "val_loss"))
    if len(val) < SHORTEST:
        return None
    place, tail = int(val.argmin()), max(1, len(val) // TAIL)
    best, last = float(val[place]), float(np.median(val[-tail:]))
    rose = last > RISE * best and last > best + LEAST and float(np.median(train[-tail:])) < train[place]
    return (int(epoch[place]), best, last) if rose else None
