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
from dasmil.train.feed import Feed
from dasmil.train.loss import BagLoss
from dasmil.train.replicas import Replicas
from dasmil.train.state import Finished, Progress, RunSpec, Store

__all__ = ["START_RATES", "Finished", "Progress", "RunSpec", "Training", "start_rate"]

START_RATES = (1.0, 2.0)
"""Learning rates of the starts of one length, in units of the run's."""


def start_rate(start: int, starts: int) -> float:
    """Learning rate of a start in units of the run's: a faster one escapes from some plateaus only."""
    return START_RATES[start % len(START_RATES)] if starts > 1 else 1.0


class Training:
    """Trains every run of ``specs``, and those that did not fit again from another start. It never sees a test bag.

    make_model(seed, start) builds the model of a run; the same arguments give the same weights. starts: how many of
    them an attempt of a run begins with; the best by training loss goes on alone.
    """

    def __init__(
        self,
        make_model: Callable[[int, int], MILModel],
        specs: list[RunSpec],
        train: Feed,
        val: Feed | None,
        config: TrainingConfig,
        *,
        classes: int,
        device: torch.device,
        starts: int = 1,
        store: Store | None = None,
        on_epoch: Callable[[Progress], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.make_model, self.specs, self.train, self.val, self.config = make_model, specs, train, val, config
        self.device, self.starts, self.store, self.on_epoch = device, starts, store, on_epoch
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
            chosen = min(finished, key=lambda f: f.train_loss)
            replicas = Replicas([self.make_model(spec.seed, chosen.start)], self.device)
            model = replicas.export(0, weights).eval()
            results.append((model, [chosen, *(f for f in finished if f is not chosen)]))
        return results

    def _attempt(self, rows: list[int], number: int, saved: tuple[dict[str, Tensor], dict[str, Any]] | None) -> None:
        owners = [row for row in rows for _ in range(self.starts)]
        starts = [number * self.starts + k for _ in rows for k in range(self.starts)]
        if saved and "flat" in saved[0]:
            owners, starts = saved[1]["rows"], saved[1]["starts"]
        specs = [self._spec(row, start) for row, start in zip(owners, starts, strict=True)]
        models = [self.make_model(spec.seed, start) for spec, start in zip(specs, starts, strict=True)]
        attempt = Attempt(owners, starts, specs, models, self.train, self.val, self.config, self.loss, self.device)
        if attempt.why_not_stacked and number == 0:
            what = f"{len(owners)} {'starts' if self.starts > 1 else 'runs'}"
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

        attempt.run(after_epoch)
        self._choose(attempt, last=True)
        self._finish(attempt, number)

    def _spec(self, row: int, start: int) -> RunSpec:
        """What a start trains with: starts that compete differ in their learning rate as well."""
        spec = self.specs[row]
        return replace(spec, lr=spec.lr * start_rate(start, self.starts))

    def _epochs_left(self, attempt: Attempt) -> float:
        """Epochs to come, summed over replicas, when all starts that are left train as long as they may."""
        epochs, runs = self.config.epochs, len(set(attempt.owners))
        choosing = 0
        if len(attempt.owners) > runs:
            choosing = max(0, math.ceil(self.config.starts_share * epochs) - attempt.epoch)
        return choosing * len(attempt.owners) + (epochs - attempt.epoch - choosing) * runs

    def _choose(self, attempt: Attempt, *, last: bool) -> None:
        """Keep the start of a run with the lowest training loss, once it has clearly learned or time is up."""
        until = self.config.starts_until * self.loss.constant_guess
        kept: list[int] = []
        for row in dict.fromkeys(attempt.owners):
            mine = [r for r, owner in enumerate(attempt.owners) if owner == row]
            losses = {r: float(np.nan_to_num(attempt.states[r].history[-1]["train_loss"], nan=np.inf)) for r in mine}
            best = min(mine, key=losses.__getitem__)
            if len(mine) > 1 and (last or losses[best] < until):
                attempt.states[best].rivals = [
                    {
                        "start": attempt.starts[r], "epoch": attempt.epoch, "train_loss": losses[r],
                        "theta_init": attempt.replicas.models[r].config.get("theta_init"), "lr": attempt.specs[r].lr,
                    }
                    for r in mine if r != best
                ]  # fmt: skip
                mine = [best]
            kept += mine
        if len(kept) < len(attempt.owners):
            attempt.keep(kept)

    def _finish(self, attempt: Attempt, number: int) -> None:
        """Judge the runs by their loss on the training bags, and keep their weights if they beat earlier attempts."""
        limit = self.config.stuck_above * self.loss.constant_guess
        for run, (row, loss) in enumerate(zip(attempt.owners, attempt.train_losses(), strict=True)):
            fitted, reason = loss <= limit, ""
            weights, start = attempt.weights[run], attempt.starts[run]
            if not np.isfinite(loss):
                loss, fitted = float("inf"), False
                reason = "training diverged (its loss is no finite number): the untrained weights are kept"
                weights = Replicas([self.make_model(self.specs[row].seed, start)], self.device).flat.detach()[0]
            elif not fitted:
                reason = (
                    f"training loss {loss:.3f} at the end, above {limit:.3f} ({self.config.stuck_above:g} of the "
                    f"{self.loss.constant_guess:.3f} of a constant guess)"
                )
            state, options = attempt.states[run], dict(attempt.replicas.models[run].config)
            kept = attempt.kept_epoch(run)
            finished = Finished(
                number, loss, fitted, reason, kept, state.history, options, start=start, rivals=state.rivals
            )
            if all(loss < earlier.train_loss for earlier in self.attempts[row]):
                self.kept[row] = weights.clone()
            self.attempts[row].append(finished)

    def _try_again(self, row: int, number: int) -> bool:
        if number > self.config.restarts or self.attempts[row][-1].fitted:
            return False
        # A model without learned distances that does not fit usually cannot: another start would only cost time.
        return bool(self.make_model(self.specs[row].seed, number).distance_parameters())

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
