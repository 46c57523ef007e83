"""Training of many runs: attempts, restarts of runs that did not fit, and the state that a checkpoint keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dasmil.models.base import MILModel
from dasmil.train.attempt import Attempt
from dasmil.train.config import TrainingConfig
from dasmil.train.factory import Factory
from dasmil.train.feed import Feed
from dasmil.train.held_out import Judge, chance_of
from dasmil.train.loss import BagLoss
from dasmil.train.replicas import Replicas
from dasmil.train.state import Finished, Progress, RunSpec, RunState, Store

__all__ = ["Finished", "Progress", "RunSpec", "Training"]

CHANCE = 0.05
CLEARLY = 0.3  # a start whose held-out loss is below this share of a constant guess is taken at once
SPREAD = 1.0  # of the loss of a bag about its mean, in units of a constant guess


class Training:
    """Trains every run of ``specs``, and those that did not fit again from another start. It never sees a test bag.

    factory: makes the models; an attempt of a run begins with several starts, and the best of them goes on alone.
    judge: training bags that say which is the best; None: the training loss says it.
    """

    def __init__(
        self,
        factory: Factory,
        specs: list[RunSpec],
        train: Feed,
        val: Feed | None,
        config: TrainingConfig,
        *,
        classes: int,
        device: torch.device,
        judge: Judge | None = None,
        store: Store | None = None,
        on_epoch: Callable[[Progress], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.factory, self.specs, self.train, self.val, self.config = factory, specs, train, val, config
        self.device, self.judge, self.store, self.on_epoch = device, judge, store, on_epoch
        self.note = note or (lambda text: None)
        self.loss = BagLoss.of(train.facts.labels, classes, config.balance_classes, device)
        self.attempts: list[list[Finished]] = [[] for _ in specs]  # per run
        self.kept: list[Tensor | None] = [None] * len(specs)  # weights of the best attempt so far

    def run(self) -> list[tuple[MILModel, list[Finished]]]:
        """Train to the end, from where the store left off; per run its model and its attempts, the chosen one first."""
        rows, number = list(range(len(self.specs))), 0
        saved = self.store.load() if self.store else None
        if saved:
            rows, number = self._restore(*saved)
        while rows:
            self._attempt(rows, number, saved)
            saved = None
            number += 1
            rows = [row for row in rows if self._try_again(row, number)]
            self._save(rows, number, None)
        results = []
        for spec, finished, weights in zip(self.specs, self.attempts, self.kept, strict=True):
            assert weights is not None
            chosen = min(finished, key=_loss_of)
            replicas = Replicas([self.factory.make(spec.seed, chosen.start)], self.device)
            model = replicas.export(0, weights).eval()
            results.append((model, [chosen, *(f for f in finished if f is not chosen)]))
        return results

    def _attempt(self, rows: list[int], number: int, saved: tuple[dict[str, Tensor], dict[str, Any]] | None) -> None:
        numbers = self.factory.numbers(number)
        owners = [row for row in rows for _ in numbers]
        starts = [start for _ in rows for start in numbers]
        if saved and "flat" in saved[0]:
            owners, starts = saved[1]["rows"], saved[1]["starts"]
        specs = [self._spec(row, start) for row, start in zip(owners, starts, strict=True)]
        models = [self.factory.make(spec.seed, start) for spec, start in zip(specs, starts, strict=True)]
        attempt = Attempt(
            owners, starts, specs, models, self.train, self.val, self.config, self.loss, self.device, self.judge
        )
        if attempt.why_not_stacked and number == 0:
            what = f"{len(owners)} {'starts' if len(numbers) > 1 else 'runs'}"
            self.note(f"The {what} take each step one after the other ({attempt.why_not_stacked}).")
        if saved and "flat" in saved[0]:
            attempt.restore(saved[0], saved[1]["epoch"], saved[1]["states"])

        def after_epoch(seconds: float) -> None:
            trained = len(attempt.owners)
            self._choose(attempt, last=attempt.epoch >= self.config.starts_share * self.config.epochs)
            self._save(attempt.owners, number, attempt)
            if self.on_epoch:
                left = seconds * self._epochs_left(attempt) / trained
                latest = [state.history[-1] for state in attempt.states]
                seeds = [spec.seed for spec in attempt.specs]
                several = max(attempt.owners.count(row) for row in attempt.owners)
                self.on_epoch(
                    Progress(number, attempt.epoch, self.config.epochs, seeds, latest, seconds, left, several)
                )

        if self.judge and attempt.epoch == 0:
            attempt.judge_untrained()
            self._choose(attempt, last=False)
        attempt.run(after_epoch)
        self._choose(attempt, last=True)
        self._finish(attempt, number)

    def _spec(self, row: int, start: int) -> RunSpec:
        """What a start trains with: starts that compete differ in their learning rate as well."""
        spec = self.specs[row]
        return replace(spec, lr=spec.lr * self.factory.start(start).rate)

    def _epochs_left(self, attempt: Attempt) -> float:
        """Epochs to come, summed over replicas, when all starts that are left train as long as they may."""
        epochs, runs = self.config.epochs, len(set(attempt.owners))
        choosing = 0
        if len(attempt.owners) > runs:
            choosing = max(0, math.ceil(self.config.starts_share * epochs) - attempt.epoch)
        return choosing * len(attempt.owners) + (epochs - attempt.epoch - choosing) * runs

    def _choose(self, attempt: Attempt, *, last: bool) -> None:
        """Keep the start of a run with the lowest loss, once it has clearly learned or time is up.

        The loss is that on the held-out bags: the lowest training loss belongs to who learns by heart. Without
        held-out bags (too few) it is the training loss.
        """
        until = (CLEARLY if self.judge else self.config.starts_until) * self.loss.constant_guess
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

    def _simplest(self, attempt: Attempt, mine: list[int]) -> int:
        """The simplest start whose held-out loss is within a standard error of the lowest: bags so few cannot tell
        these apart. Untrained starts that know something come first, then all at their best epoch, in their order.
        """
        assert self.judge is not None
        states = {r: attempt.states[r] for r in mine}
        error = SPREAD * self.loss.constant_guess / math.sqrt(len(self.judge.feed.facts.ids))
        enough = min(state.judged.get("loss", math.inf) for state in states.values()) + error
        for r in mine:
            simple = self.factory.start(attempt.starts[r]).kind != "length"
            if simple and states[r].untrained.get("loss", math.inf) <= enough:
                states[r].judged = states[r].untrained
                return r
        return next(r for r in mine if states[r].judged.get("loss", math.inf) <= enough)

    def _to_lowest(self, attempt: Attempt, best: int) -> None:
        """Go back to the epoch in which held-out bags were understood best: what came later was learned by heart.

        On all bags the run then goes on for as long again, or until its training loss is what it was there; a start
        that was best before its first step is made anew from all bags.
        """
        state = attempt.states[best]
        assert attempt.judged is not None
        if not state.judged:
            return
        attempt.replicas.flat.detach()[best] = attempt.judged[best]
        state.stop_below = state.judged["train_loss"]
        state.stop_at = attempt.epoch + int(state.judged["epoch"])
        if state.judged["epoch"] == 0:
            model = self.factory.make(attempt.specs[best].seed, attempt.starts[best], whole=True)
            attempt.judged[best] = Replicas([model], self.device).flat.detach()[0]
            state.stopped_epoch = 0

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
            state.judged = {**state.judged, "starts": len(mine), "bags": len(self.judge.feed.facts.ids)}

    def _finish(self, attempt: Attempt, number: int) -> None:
        """Judge the runs by their loss on the training bags, and keep their weights if they beat earlier attempts."""
        limit = self.config.stuck_above * self.loss.constant_guess
        for run, (row, loss) in enumerate(zip(attempt.owners, attempt.train_losses(), strict=True)):
            state = attempt.states[run]
            self._weigh_evidence(state)
            fitted, reason = loss <= limit or state.judged.get("chance", 1.0) < CHANCE, ""
            weights, start = attempt.weights[run], attempt.starts[run]
            if not np.isfinite(loss):
                loss, fitted = float("inf"), False
                reason = "training diverged (its loss is no finite number): the untrained weights are kept"
                weights = Replicas([self.factory.make(self.specs[row].seed, start)], self.device).flat.detach()[0]
            elif not fitted:
                reason = (
                    f"training loss {loss:.3f} at the end, above {limit:.3f} ({self.config.stuck_above:g} of the "
                    f"{self.loss.constant_guess:.3f} of a constant guess)"
                )
                if state.stop_below is not None:
                    reason = (
                        f"nothing found: AUROC {state.judged['auroc']:.2f} on {state.judged['bags']:g} held-out "
                        "training bags, which the best of as many blind guesses has as well"
                    )
            options = dict(attempt.replicas.models[run].config)
            kept = attempt.kept_epoch(run)
            finished = Finished(
                number,
                loss,
                fitted,
                reason,
                kept,
                state.history,
                options,
                start=start,
                rivals=state.rivals,
                held_out=state.judged,
            )
            if all(_loss_of(finished) < _loss_of(earlier) for earlier in self.attempts[row]):
                self.kept[row] = weights.clone()
            self.attempts[row].append(finished)

    def _weigh_evidence(self, state: RunState) -> None:
        """How often blind guesses, as many as starts and epochs were looked at, would do as well on held-out bags."""
        if self.judge and state.judged and len(self.loss.class_weights) == 2:
            tried = state.judged.get("starts", 1) * (state.judged["epoch"] + 1)
            state.judged["chance"] = chance_of(self.judge.feed.facts.labels, state.judged["auroc"], int(tried))

    def _try_again(self, row: int, number: int) -> bool:
        if number > self.config.restarts or self.attempts[row][-1].fitted or self.judge:
            return False  # held-out bags have heard more starts than they can tell apart
        # A model without learned distances that does not fit usually cannot: another start would only cost time.
        return bool(self.factory.make(self.specs[row].seed, 0).distance_parameters())

    def _save(self, rows: list[int], number: int, attempt: Attempt | None) -> None:
        """Keep the state after an epoch, or between two attempts (attempt None)."""
        if self.store is None:
            return
        tensors = {f"kept.{row}": weights for row, weights in enumerate(self.kept) if weights is not None}
        state: dict[str, Any] = {
            "attempt": number,
            "rows": rows,
            "starts": attempt.starts if attempt else [],
            "attempts": [[vars(f) for f in finished] for finished in self.attempts],
            "threads": torch.get_num_threads(),
            "epoch": attempt.epoch if attempt else 0,
            "states": [vars(s) for s in attempt.states] if attempt else [],
        }
        self.store.save({**tensors, **(attempt.tensors() if attempt else {})}, state)

    def _restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> tuple[list[int], int]:
        """The rows that are in training, and the number of their attempt."""
        if state["threads"] != torch.get_num_threads():
            self.note(
                f"The saved epochs used {state['threads']} threads, now {torch.get_num_threads()}: "
                "results may differ in the last digits."
            )
        self.attempts = [[Finished(**f) for f in finished] for finished in state["attempts"]]
        for row in range(len(self.specs)):
            if f"kept.{row}" in tensors:
                self.kept[row] = tensors[f"kept.{row}"].to(self.device)
        return list(dict.fromkeys(state["rows"])), int(state["attempt"])


def _loss_of(finished: Finished) -> float:
    """What attempts are compared by: the loss on held-out bags where there are some, else on the training bags."""
    return finished.held_out.get("loss", finished.train_loss)


def _latest(state: RunState, name: str) -> float:
    """The latest loss of that name; before the first epoch that of the untrained start on held-out bags."""
    value = state.history[-1][name] if state.history else state.judged["loss"]
    return value if math.isfinite(value) else math.inf
