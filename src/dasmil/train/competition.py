"""The choice among starts: which compete, which bags judge them, which is kept, and how long it then trains on.

Training itself asks only `Competition`: before the first epoch (`begin`), after each (`note`, then `choose`), at the
end of an attempt (`choose` for the last time, `found`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from dasmil.models import MODELS
from dasmil.train.factory import ON_ALL
from dasmil.train.held_out import FEWEST, SHARE, Judge
from dasmil.train.starts import Kind, Start, bag_means, length_starts, mean_start, question_of, simple_starts
from dasmil.train.state import CHANCE

if TYPE_CHECKING:
    from dasmil.candidates.whitening import Directions
    from dasmil.models.base import MILModel
    from dasmil.train.epochs import Attempt
    from dasmil.train.feed import Feed
    from dasmil.train.job import Job
    from dasmil.train.material import Material
    from dasmil.train.state import Row, RunState

START_RATES = (1.0, 2.0)
"""Learning rates of the starts of one length, in units of the run's, where features are not whitened."""
CLEARLY = 0.3  # a start whose held-out loss is below this share of a constant guess is taken at once
SPREAD = 1.0  # of the loss of a bag about its mean, in units of a constant guess
SURELY = 3.0
"""Standard errors by which the best of hundreds of epochs of other starts has to beat a rule that leads."""
STILL_BETTER = 0.8
"""Of a noisy target: a start whose best epoch was in the last part of the choice trains on to the end."""


def line_up(job: Job, train: Feed, directions: Directions | None) -> tuple[list[Start], Judge | None]:
    """The starts of a first attempt, the simplest first, and the training bags that judge them.

    With whitened directions also what simple rules find. A rule that leads goes alone where it clearly holds on
    training bags that did not choose it, or where the bags that judge are too few to show that another is better.
    Of times and numbers the regression on mean features comes first where none leads, and goes alone without a judge.
    """
    judge = Judge.of(train) if job.competes and job.config.held_out else None
    lengths = _lengths(job)
    if directions is None or not _takes_simple(job):
        return lengths, judge
    if not job.competes:
        return ([_mean_alone(train)] if job.position == "none" else lengths), None
    if not job.config.held_out:
        return lengths, None
    found = simple_starts(train, judge.learn if judge else train, directions, job.config.simple_starts)
    able = _begins(job, directions)
    leader = found.leader(able)
    if leader is not None and leader.evidence is not None:
        margin = 1.0 if judge is None else found.floor + _margin(judge) * SURELY
        if leader.evidence.loss < max(CLEARLY, margin) or not _competes(leader, job):
            return [leader], None
    usual = job.outline.task is not None and "mean" in able
    if judge is None:
        return [found.on_all["mean"]] if usual else lengths, None
    first = found.on_learn["mean" if leader is None else leader.kind][:1] if usual or leader is not None else []
    pairs = [start for kind in ("near", "within") if kind in able for start in found.on_learn[kind]]
    pairs = [start for start in pairs if start not in first and _competes(start, job)]
    return [*first, *pairs[: job.config.simple_starts], *lengths], judge


def _mean_alone(train: Feed) -> Start:
    asked = question_of(train.facts)
    assert asked is not None
    return replace(mean_start(bag_means(train), asked, train.facts.patients), evidence=None)


def _begins(job: Job, directions: Directions) -> set[str]:
    """The kinds of simple starts that the model can begin with."""
    sizes = {"in_features": len(directions), "encoder_features": len(directions)}
    some = torch.ones(len(directions))

    def model(kind: Kind) -> MILModel:
        more = Start(kind).options if job.shaped_by_rule else {}
        with torch.random.fork_rng(devices=[]):
            return MODELS[job.model](**{**job.options, **sizes, **more})

    can: dict[Kind, bool] = {
        "mean": model("mean").begin_mean(some),
        "share": model("share").begin_share(some, 0.1),
        "near": model("near").begin_near(some, 2 * some, 1.0, 10.0),
        "within": model("within").begin_within(some, 2 * some, 1.0, 10.0, 0.1),
    }
    begun = [Start(kind) for kind, able in can.items() if able]
    if job.shaped_by_rule:
        return {*(start.kind for start in begun), *(["count"] if can["within"] else [])}
    summed = job.has({"pooling": "sum"})  # what all instances say alike would be summed up
    return {start.kind for start in begun if _competes(start, job) and not (summed and start.kind in ("mean", "share"))}


def _competes(start: Start, job: Job) -> bool:
    """Whether starts of random weights can be trained beside it: all have the options of the job."""
    return job.has(start.options)


def most_starts(job: Job) -> int:
    """How many starts may compete, known before a bag is read; classes are taken as equally frequent."""
    judged = job.competes and job.config.held_out and job.outline.bags / job.outline.classes * SHARE >= FEWEST
    more = job.config.simple_starts + 1 if judged and job.whitens and _takes_simple(job) else 0  # one is the mean's
    return len(_lengths(job)) + more


def _lengths(job: Job) -> list[Start]:
    rates = START_RATES if job.competes and not job.whitens else (1.0,)
    return length_starts(job.config.starts if job.competes else 1, rates)


def _takes_simple(job: Job) -> bool:
    task = job.outline.task
    known = job.outline.classes == 2 if task is None else task["kind"] in ("survival", "regression")
    return known and job.config.simple_starts > 0


class Competition:
    """Chooses among the starts of every run that trains in an attempt.

    Held-out training bags judge: the lowest training loss belongs to who learns by heart. Without them (too few) it is
    the training loss.
    """

    def __init__(self, material: Material) -> None:
        self.judge, self.factory, self.device = material.judge, material.factory, material.device
        self.config, self.loss = material.config, material.loss

    @property
    def sets_aside(self) -> bool:
        """Whether it keeps weights of another epoch than the last beside those that train (``Attempt.judged``)."""
        return self.judge is not None or bool(self.config.enough)

    def bags(self, train: Feed, *, choosing: bool) -> Feed:
        """The bags that a step may see: while starts compete, those that do not judge them."""
        return self.judge.learn if self.judge and choosing else train

    def begin(self, attempt: Attempt) -> None:
        """What the held-out bags say before the first step: a start may know something already."""
        for state, number in zip(attempt.states, attempt.starts, strict=True):
            self._note_evidence(state, self.factory.start(number))
        if self.judge is None:
            return
        feeds = (self.judge.learn, self.judge.feed)
        learned, judged = (self.loss.of_set(attempt.scored(feed), feed.facts) for feed in feeds)
        aurocs = [attempt.metric(self.judge.feed, row, self.loss.rank) for row in attempt.scored(self.judge.feed)]
        for state, train_loss, loss, auroc in zip(attempt.states, learned, judged, aurocs, strict=True):
            state.untrained = {"epoch": 0, "loss": loss, self.loss.rank: auroc, "train_loss": train_loss}
            state.judged = state.untrained
        self.choose(attempt, last=False)

    def _note_evidence(self, state: RunState, start: Start) -> None:
        """What training bags that did not choose it say of a start from all training bags."""
        known = start.evidence
        if known is None:
            return
        guess = self.loss.constant_guess
        state.judged = {
            "epoch": 0, "loss": known.loss * guess, self.loss.rank: known.rank, "chance": known.chance,
            "bags": len(known.losses),
        }  # fmt: skip
        if start.rule is None:  # a regression has nothing left to train
            state.stopped_epoch = 0

    def note(self, attempt: Attempt, table: list[Row]) -> None:
        """Hear the rows of an epoch, before they are noted: add what held-out bags say, and end runs."""
        self._note_judged(attempt, table)
        self._end_early(attempt, table)

    def choose(self, attempt: Attempt, *, last: bool | None = None) -> None:
        """Keep the start of a run with the lowest loss, once it has clearly learned or time is up.

        last: whether time is up; None: when its share of the epochs is over.
        """
        if last is None:
            last = attempt.epoch >= self.config.starts_share * self.config.epochs
        until = (CLEARLY if self.judge else self.config.starts_until) * self.loss.constant_guess
        until = until if self.loss.exact else -math.inf  # what is left of a loss that stays high says nothing
        name = "held_out_loss" if self.judge else "train_loss"
        kept: list[int] = []
        for row in dict.fromkeys(attempt.owners):
            mine = [r for r, owner in enumerate(attempt.owners) if owner == row]
            if len(mine) == 1:
                kept += mine
                continue
            losses = {r: _latest(attempt.states[r], name) for r in mine}
            best = min(mine, key=losses.__getitem__)
            if losses[best] >= until and last and self.judge:
                best = self._simplest(attempt, mine)
                self._to_lowest(attempt, best)
            if last or losses[best] < until:
                self._note_rivals(attempt, best, mine, losses)
                mine = [best]
            kept += mine
        if len(kept) < len(attempt.owners):
            attempt.keep(kept)

    def epochs_left(self, attempt: Attempt) -> float:
        """Epochs to come, summed over replicas, when all starts that are left train as long as they may."""
        epochs, runs = self.config.epochs, len(set(attempt.owners))
        choosing = 0
        if len(attempt.owners) > runs:
            choosing = max(0, math.ceil(self.config.starts_share * epochs) - attempt.epoch)
        return choosing * len(attempt.owners) + (epochs - attempt.epoch - choosing) * runs

    def found(self, state: RunState) -> bool:
        """Whether held-out bags say that the chosen start found something that blind guesses would not.

        Notes how often guesses, as many as starts and epochs were looked at, would do as well (``chance``).
        """
        if self.judge and state.judged and "chance" not in state.judged:
            state.judged["chance"] = self._chance(state.judged, state.judged.get("starts", 1))
        return state.judged.get("chance", 1.0) < CHANCE

    @property
    def may_try_again(self) -> bool:
        """Whether a run may try further starts; held-out bags have heard more than they can tell apart already."""
        return self.judge is None and any(start.kind == "length" for start in self.factory.starts)

    def _simplest(self, attempt: Attempt, mine: list[int]) -> int:
        """The simplest start whose held-out loss is within a standard error of the lowest: bags so few cannot tell
        these apart. Untrained starts that know something come first, then all at their best epoch, in their order.
        """
        assert self.judge is not None
        if not self.loss.exact and self._nothing_told(attempt, mine):
            return mine[0]
        states = {r: attempt.states[r] for r in mine}
        error = _margin(self.judge) * self.loss.constant_guess if self.loss.exact else 0.0
        lowest = min(state.judged.get("loss", math.inf) for state in states.values())
        enough = lowest + error
        for r in mine:
            start = self.factory.start(attempt.starts[r])
            if start.leads and states[r].judged.get("loss", math.inf) <= lowest + SURELY * error:
                return r
            if start.kind != "length" and states[r].untrained.get("loss", math.inf) <= enough:
                states[r].judged = states[r].untrained
                return r
        return next(r for r in mine if states[r].judged.get("loss", math.inf) <= enough)

    def _nothing_told(self, attempt: Attempt, mine: list[int]) -> bool:
        """Of a noisy target: whether a regression on means or a rule that leads comes first, and held-out bags do not
        tell the best of all from blind guesses: a start of random weights would then be one of these.
        """
        first = self.factory.start(attempt.starts[mine[0]])
        best = min((attempt.states[r] for r in mine), key=lambda state: state.judged.get("loss", math.inf))
        return (first.leads or first.kind == "mean") and self._chance(best.judged, len(mine)) >= CHANCE

    def _chance(self, judged: Mapping[str, float], starts: float) -> float:
        assert self.judge is not None
        if self.loss.rank not in judged:
            return 1.0
        tried = int(starts * (judged["epoch"] + 1))
        return self.loss.chance(self.judge.feed.facts, judged[self.loss.rank], tried)

    def _to_lowest(self, attempt: Attempt, best: int) -> None:
        """Go back to the epoch in which held-out bags were understood best: what came later was learned by heart.

        On all bags the run then goes on for as long again, or until its training loss is what it was there. A rule that
        leads, and a regression on means, begin again with what all bags say of them, and so does, untrained, a start
        that was best before its first step.
        """
        state = attempt.states[best]
        assert attempt.judged is not None
        if not state.judged:
            return
        start, began = self.factory.start(attempt.starts[best]), state.judged["epoch"] == 0
        settled = start.on_all if start.leads or start.kind == "mean" else None
        if settled is not None or began:
            number = ON_ALL + attempt.starts[best]
            attempt.begin_again(best, number, self.factory.make(attempt.specs[best].seed, number))
        if settled is not None:
            self._note_evidence(state, settled)
            return
        state.stop_below = state.judged["train_loss"]
        state.stop_at = attempt.epoch + int(state.judged["epoch"])
        if began:
            state.stopped_epoch = 0
        else:
            attempt.replicas.flat.detach()[best] = attempt.judged[best]
        if not self.loss.exact and not began and state.judged["epoch"] >= STILL_BETTER * attempt.epoch:
            state.stop_below = state.stop_at = None  # held-out bags were still understood better and better

    def _note_rivals(self, attempt: Attempt, best: int, mine: list[int], losses: dict[int, float]) -> None:
        state = attempt.states[best]
        state.rivals = [
            {
                "start": attempt.starts[r], "epoch": attempt.epoch,
                "train_loss": attempt.states[r].judged["train_loss"] if self.judge else losses[r],
                "theta_init": attempt.replicas.models[r].config.get("theta_init"), "lr": attempt.specs[r].lr,
                "held_out": attempt.states[r].judged,
            }
            for r in mine if r != best
        ]  # fmt: skip
        if self.judge:
            state.judged = {"bags": len(self.judge.feed.facts.ids), **state.judged, "starts": len(mine)}

    def _note_judged(self, attempt: Attempt, table: list[Row]) -> None:
        """While starts compete: their loss on the bags that judge them, and the weights where it was lowest."""
        if self.judge is None or not attempt.choosing:
            return
        assert attempt.judged is not None
        feed, rank = self.judge.feed, self.loss.rank
        logits = attempt.scored(feed)
        losses = self.loss.of_set(logits, feed.facts)
        for run, (state, row) in enumerate(zip(attempt.states, table, strict=True)):
            row["held_out_loss"] = losses[run]
            row[f"held_out_{rank}"] = attempt.metric(feed, logits[run], rank)
            if np.isfinite(losses[run]) and losses[run] < state.judged.get("loss", math.inf):
                state.judged = {
                    "epoch": row["epoch"], "loss": losses[run], rank: row[f"held_out_{rank}"],
                    "train_loss": row["train_loss"],
                }  # fmt: skip
                attempt.judged[run] = attempt.replicas.flat.detach()[run]

    def _end_early(self, attempt: Attempt, table: list[Row]) -> None:
        """End runs that know their training bags, and those for which more would be learning by heart."""
        if attempt.judged is None or attempt.choosing or attempt.best is not None:
            return
        enough = self.config.enough * self.loss.constant_guess if self.loss.exact else -math.inf
        for run, (state, row) in enumerate(zip(attempt.states, table, strict=True)):
            if state.stopped_epoch is not None:
                continue
            latest = [past["train_loss"] for past in state.history[-2:]] + [row["train_loss"]]
            if state.stop_below is not None:
                ended = row["train_loss"] <= state.stop_below or row["epoch"] >= (state.stop_at or 0)
            else:
                ended = len(latest) == 3 and max(latest) < enough
            if ended:
                state.stopped_epoch = int(row["epoch"])
                attempt.judged[run] = attempt.replicas.flat.detach()[run]


def _margin(judge: Judge) -> float:
    """The standard error of a mean loss on the bags that judge, as a share of a constant guess."""
    return SPREAD / math.sqrt(len(judge.feed.facts.ids))


def _latest(state: RunState, name: str) -> float:
    """The latest loss of that name; before the first epoch that of the untrained start on held-out bags."""
    value = state.history[-1][name] if state.history else state.judged["loss"]
    return value if math.isfinite(value) else math.inf
