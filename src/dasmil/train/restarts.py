"""Training of many runs: attempts from competing starts, and further attempts of runs that did not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dasmil.models.base import MILModel
from dasmil.train.checkpoint import Checkpoint, Store, Together
from dasmil.train.competition import Competition
from dasmil.train.epochs import Attempt
from dasmil.train.material import Material
from dasmil.train.replicas import Replicas
from dasmil.train.state import FinishedAttempt, Progress, RunSpec, RunState


class Training:
    """Trains every run of ``specs``, and those that did not fit again from another start. It never sees a test bag.

    An attempt of a run begins with several starts; a competition says which of them goes on alone.
    """

    def __init__(
        self,
        material: Material,
        specs: list[RunSpec],
        *,
        store: Store | None = None,
        on_epoch: Callable[[Progress], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.material, self.specs, self.store, self.on_epoch = material, specs, store, on_epoch
        self.factory, self.config, self.device = material.factory, material.config, material.device
        self.competition = Competition(material)
        self.note = note or (lambda text: None)
        self.attempts: list[list[FinishedAttempt]] = [[] for _ in specs]  # per run
        self.kept: dict[int, Tensor] = {}  # per run the weights of the best attempt so far

    def run(self) -> list[tuple[MILModel, list[FinishedAttempt]]]:
        """Train to the end, from where the store left off; per run its model and its attempts, the chosen one first."""
        rows, number = list(range(len(self.specs))), 0
        saved = Checkpoint.load(self.store) if self.store else None
        if saved:
            rows, number = self._restore(saved)
        going_on = saved.together if saved else None
        owners = saved.rows if saved else []
        while rows:
            attempt = self._attempt(rows, number) if going_on is None else self._again(owners, going_on)
            self._train(attempt, number)
            going_on = None
            number += 1
            rows = [row for row in rows if self._try_again(row, number)]
            self._save(number, rows, None)
        return [self._result(row) for row in range(len(self.specs))]

    def _result(self, row: int) -> tuple[MILModel, list[FinishedAttempt]]:
        finished = self.attempts[row]
        chosen = min(finished, key=_loss_of)
        replicas = Replicas([self.factory.make(self.specs[row].seed, chosen.start)], self.device)
        model = replicas.export(0, self.kept[row]).eval()
        return model, [chosen, *(f for f in finished if f is not chosen)]

    def _attempt(self, rows: list[int], number: int) -> Attempt:
        """A new attempt of these runs, with all its starts."""
        numbers = self.factory.numbers(number)
        attempt = self._made([row for row in rows for _ in numbers], [start for _ in rows for start in numbers])
        if attempt.why_not_stacked and number == 0:
            what = f"{len(attempt.owners)} {'starts' if len(numbers) > 1 else 'runs'}"
            self.note(f"The {what} take each step one after the other ({attempt.why_not_stacked}).")
        return attempt

    def _again(self, owners: list[int], saved: Together) -> Attempt:
        """The attempt that a checkpoint holds."""
        attempt = self._made(owners, saved.starts)
        attempt.restore(saved)
        return attempt

    def _made(self, owners: list[int], starts: list[int]) -> Attempt:
        specs = [self._spec(row, start) for row, start in zip(owners, starts, strict=True)]
        models = [self.factory.make(spec.seed, start) for spec, start in zip(specs, starts, strict=True)]
        return Attempt(owners, starts, specs, models, self.material, self.competition)

    def _spec(self, row: int, start: int) -> RunSpec:
        """What a start trains with: starts that compete differ in their learning rate as well."""
        spec = self.specs[row]
        return replace(spec, lr=spec.lr * self.factory.start(start).rate)

    def _train(self, attempt: Attempt, number: int) -> None:
        """All epochs that an attempt has left, with the choice among its starts on the way."""

        def after_epoch(seconds: float) -> None:
            trained = len(attempt.owners)
            self.competition.choose(attempt)
            self._save(number, attempt.owners, attempt)
            if self.on_epoch:
                self.on_epoch(self._progress(attempt, number, seconds, trained))

        if attempt.epoch == 0:
            self.competition.begin(attempt)
        attempt.run(after_epoch)
        self.competition.choose(attempt, last=True)
        self._finish(attempt, number)

    def _progress(self, attempt: Attempt, number: int, seconds: float, trained: int) -> Progress:
        """trained: how many replicas the epoch trained in these seconds."""
        return Progress(
            number, attempt.epoch, self.config.epochs,
            seeds=[spec.seed for spec in attempt.specs],
            rows=[state.history[-1] for state in attempt.states],
            seconds=seconds,
            seconds_left=seconds * self.competition.epochs_left(attempt) / trained,
            starts=max(attempt.owners.count(row) for row in attempt.owners),
        )  # fmt: skip

    def _finish(self, attempt: Attempt, number: int) -> None:
        """Judge the runs by the loss that they reached on the training bags, and keep their weights if they beat
        earlier attempts.

        A validation set may keep an early epoch of a run that fitted later: that is no reason to start again.
        """
        limit = self.material.loss.fitted_below(self.config.stuck_above)
        kept_losses, last_losses = attempt.train_losses()
        for run, row in enumerate(attempt.owners):
            state, start, loss = attempt.states[run], attempt.starts[run], kept_losses[run]
            reached = last_losses[run] if np.isfinite(last_losses[run]) else loss
            found = self.competition.found(state)
            fitted, weights = reached <= limit or found, attempt.weights[run]
            reason = "" if fitted else self._reason(state, reached, limit)
            if not np.isfinite(loss):
                loss, fitted = float("inf"), False
                reason = "training diverged (its loss is no finite number): the untrained weights are kept"
                weights = Replicas([self.factory.make(self.specs[row].seed, start)], self.device).flat.detach()[0]
            finished = FinishedAttempt(
                number, loss, fitted, reason, attempt.kept_epoch(run), state.history,
                dict(attempt.replicas.models[run].config), start=start, rivals=state.rivals, held_out=state.judged,
            )  # fmt: skip
            if all(_loss_of(finished) < _loss_of(earlier) for earlier in self.attempts[row]):
                self.kept[row] = weights.clone()
            self.attempts[row].append(finished)

    def _reason(self, state: RunState, loss: float, limit: float) -> str:
        """Why a run counts as one that did not fit."""
        if state.stop_below is not None or state.stopped_epoch == 0:
            known = state.judged[self.material.loss.rank]
            rank = {"auroc": "AUROC"}.get(self.material.loss.rank, self.material.loss.rank)
            return (
                f"nothing found: {rank} {known:.2f} on {state.judged['bags']:g} held-out "
                "training bags, which the best of as many blind guesses has as well"
            )
        guess = self.material.loss.constant_guess
        return (
            f"training loss {loss:.3f} at the end, above {limit:.3f} ({limit / guess:g} of the "
            f"{guess:.3f} of a constant guess)"
        )

    def _try_again(self, row: int, number: int) -> bool:
        if number > self.config.restarts or self.attempts[row][-1].fitted or not self.competition.may_try_again:
            return False
        # A model without learned distances that does not fit usually cannot: another start would only cost time.
        return bool(self.factory.make(self.specs[row].seed, 0).distance_parameters())

    def _save(self, number: int, rows: list[int], attempt: Attempt | None) -> None:
        """Keep the state after an epoch, or between two attempts (attempt None)."""
        if self.store is not None:
            together = attempt.saved() if attempt else None
            Checkpoint(number, rows, self.attempts, self.kept, together).save(self.store)

    def _restore(self, saved: Checkpoint) -> tuple[list[int], int]:
        """The runs that are in training, and the number of their attempt."""
        if saved.threads != torch.get_num_threads():
            self.note(
                f"The saved epochs used {saved.threads} threads, now {torch.get_num_threads()}: "
                "results may differ in the last digits."
            )
        self.attempts = saved.finished
        self.kept = {row: weights.to(self.device) for row, weights in saved.kept.items()}
        return list(dict.fromkeys(saved.rows)), saved.attempt


def _loss_of(finished: FinishedAttempt) -> float:
    """What attempts are compared by: the loss on held-out bags where there are some, else on the training bags."""
    return finished.held_out.get("loss", finished.train_loss)
