"""Maps of a few bags with the run: the surest right and wrong predictions of each class, explained after training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from dasmil.attribution import Account
from dasmil.attribution.ground import layout_of
from dasmil.runs import MapFacts, Predictions, Run, StoredMap, speaker_for, speakers, write_maps

if TYPE_CHECKING:
    from dasmil.study.rounds import Round
    from dasmil.types import Bag

EACH = 2
"""So many right and so many wrong predictions, of different true classes."""


def add_maps(out: Path, rounds: Sequence[Round]) -> None:
    """Explain the chosen bags of a run on the user's own bags, and store what the report draws.

    Only of models with an exact account, which takes as long as a forward pass.
    """
    run = Run.read(out)
    if run.task is not None or any("name" in part.data or "set" in part.data for part in rounds):
        return  # built-in data have pictures of their own
    found = run.ensemble(run.splits[0])
    if found is None:
        return
    models, maps = speakers(out), []
    for k in surest(found):
        speaker = speaker_for(models, found.bag_ids[k])
        bag = _bag(rounds, found.bag_ids[k])
        if bag is None or speaker.seed is None:
            continue
        account = Account(speaker.seed.model(), bag)
        if account.structure is None and not account.members:
            return  # gradients along a path would take hundreds of passes
        layout = layout_of(bag)
        facts = MapFacts(
            bag.bag_id, words(run, found, k), speaker.describe(bag.bag_id), bag.unit, layout.side, layout.field,
            layout.mpp,
        )  # fmt: skip
        values = account.explain(top=0, attention=False).contributions
        maps.append(StoredMap(facts, torch.from_numpy(layout.centres), values.detach().cpu()))
    if maps:
        write_maps(out, maps)


def surest(found: Predictions) -> list[int]:
    """Numbers of bags: for right, then for wrong predictions, the surest of each true class, the surest classes."""
    sure = sureness(found)
    right = found.predictions == found.labels
    chosen: list[int] = []
    for among in (right, ~right & (found.labels >= 0)):
        best = [
            int(places[sure[places].argmax()])
            for label in np.unique(found.labels[among])
            for places in [np.flatnonzero(among & (found.labels == label))]
        ]
        chosen += sorted(best, key=lambda k: (-sure[k], k))[:EACH]
    return chosen


def sureness(found: Predictions) -> np.ndarray:
    """The probability [bags] of the class that is predicted, as far as the probabilities say."""
    p = found.probabilities
    return p.max(axis=1) if p.ndim > 1 else np.maximum(p, 1 - p)


def words(run: Run, found: Predictions, k: int) -> str:
    """ "slide7: tumour, predicted normal (0.83), wrong"."""
    said, known = run.class_names[int(found.predictions[k])], int(found.labels[k])
    truth = "unknown" if known < 0 else run.class_names[known]
    verdict = "" if known < 0 else ", right" if found.predictions[k] == known else ", wrong"
    return f"{found.bag_ids[k]}: {truth}, predicted {said} ({sureness(found)[k]:.2f}){verdict}"


def _bag(rounds: Sequence[Round], bag_id: str) -> Bag | None:
    """A bag of the rounds by its name; None for one that none of them holds."""
    for part in rounds:
        for bags in (*part.tests.values(), part.val or (), part.train):
            names = getattr(bags, "bag_ids", None) or [bag.bag_id for bag in bags]
            if bag_id in names:
                return bags[list(names).index(bag_id)]
    return None
