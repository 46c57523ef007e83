"""The state of training that an interrupted run goes on from: plain values and tensors, checked when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from dasmil.errors import DataError
from dasmil.train.state import FinishedAttempt, RunState

VERSION = 2  # 1: runs that trained together drew their random numbers together


class Store(Protocol):
    """Where the state of training is kept after each epoch."""

    def save(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None: ...
    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None: ...


@dataclass
class Together:
    """Runs in the middle of an attempt: how far they are, and the tensors of their weights and optimiser."""

    starts: list[int]
    epoch: int
    states: list[RunState]
    tensors: dict[str, Tensor]


@dataclass
class Checkpoint:
    """After an epoch, or between two attempts (``together`` is None then).

    rows: the run of every replica in training (between attempts: the runs that try again; none: training is done).
    finished: the attempts of every run that have ended; kept: by run, the weights of the best of them.
    """

    attempt: int
    rows: list[int]
    finished: list[list[FinishedAttempt]]
    kept: dict[int, Tensor]
    together: Together | None
    threads: int = field(default_factory=torch.get_num_threads)

    def save(self, store: Store) -> None:
        """Write it; a store shows its readers ``attempt``, ``epoch``, ``rows`` and the histories in ``states``."""
        tensors = {f"kept.{row}": weights for row, weights in self.kept.items()}
        now = self.together
        state = {
            "version": VERSION,
            "attempt": self.attempt,
            "rows": self.rows,
            "attempts": [[vars(f) for f in finished] for finished in self.finished],
            "threads": self.threads,
            "starts": now.starts if now else [],
            "epoch": now.epoch if now else 0,
            "states": [vars(s) for s in now.states] if now else [],
        }
        store.save({**tensors, **(now.tensors if now else {})}, state)

    @staticmethod
    def load(store: Store) -> Checkpoint | None:
        """What the store holds, None before the end of a first epoch."""
        found = store.load()
        return None if found is None else _read(*found)


def _read(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Checkpoint:
    written = state.get("version", 1)
    if written != VERSION and state["rows"]:  # a finished run needs only its weights
        raise DataError(
            f"the checkpoint has version {written}, expected {VERSION}: another version of dasmil wrote it. Finish the "
            "run with that version, or delete the checkpoint to start again"
        )
    try:
        prefix = "kept."
        own = {name: value for name, value in tensors.items() if not name.startswith(prefix)}
        kept = {int(name.removeprefix(prefix)): value for name, value in tensors.items() if name.startswith(prefix)}
        together = None
        if "flat" in own:
            states = [RunState(**s) for s in state["states"]]
            together = Together(list(state["starts"]), int(state["epoch"]), states, own)
        finished = [[FinishedAttempt(**f) for f in attempts] for attempts in state["attempts"]]
        return Checkpoint(int(state["attempt"]), list(state["rows"]), finished, kept, together, int(state["threads"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"the checkpoint does not hold what training needs ({error}): delete it to start again"
        ) from error
