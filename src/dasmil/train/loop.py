"""The training loop: one bag a step for every run, all runs at once. It never receives a test bag."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dasmil.errors import BackendError
from dasmil.models.base import MILModel
from dasmil.train.augment import jitter_digits
from dasmil.train.config import TrainingConfig
from dasmil.train.evaluate import bag_logits, mean_losses, probabilities
from dasmil.train.feed import Feed
from dasmil.train.loss import BagLoss
from dasmil.train.metrics import score
from dasmil.train.optim import Optimizer, clip_gradient, create_optimizer
from dasmil.train.replicas import Replicas
from dasmil.train.schedule import factor

Row = dict[str, float]


@dataclass(frozen=True)
class RunSpec:
    """What tells one run from the others that train with it."""

    seed: int
    lr: float
    weight_decay: float


@dataclass
class RunState:
    """What is known about one run so far; JSON-able but for the weights, which live in ``Training``."""

    history: list[Row] = field(default_factory=list)
    best_score: float | None = None
    best_epoch: int | None = None
    stopped_epoch: int | None = None


@dataclass
class Finished:
    """The outcome of one attempt of one run."""

    attempt: int
    train_loss: float
    fitted: bool
    reason: str
    epoch: int
    history: list[Row]
    options: dict[str, Any]


class Store(Protocol):
    """Where the state of training is kept after each epoch."""

    def save(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None: ...
    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None: ...


@dataclass(frozen=True)
class Progress:
    """What a listener hears after each epoch."""

    attempt: int
    epoch: int
    epochs: int
    seeds: list[int]
    rows: list[Row]
    seconds: float
    seconds_left: float


class Training:
    """Trains every run of ``specs``, and those that did not fit again from another start.

    make_model(seed, attempt) builds the model of a run; the same arguments give the same weights. All randomness of an
    epoch (order, dropout, augmentation) is drawn from the seeds and the number of the epoch, so an interrupted epoch
    that is done again gives the same numbers.
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
        store: Store | None = None,
        on_epoch: Callable[[Progress], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.make_model, self.specs, self.train, self.val, self.config = make_model, specs, train, val, config
        self.classes, self.device, self.store, self.on_epoch = classes, device, store, on_epoch
        self.note = note or (lambda text: None)
        self.loss = BagLoss.of(train.facts.labels, classes, config.balance_classes, device)
        self.labels = torch.from_numpy(train.facts.labels).to(device)
        self.attempts: list[list[Finished]] = [[] for _ in specs]  # per run
        self.kept: list[Tensor | None] = [None] * len(specs)  # weights of the best attempt so far
        self._told_unstacked = False

    def run(self) -> list[tuple[MILModel, list[Finished]]]:
        """Train to the end, from where the store left off; per run its model and its attempts, the chosen one first."""
        rows, attempt = list(range(len(self.specs))), 0
        saved = self.store.load() if self.store else None
        if saved:
            rows, attempt = self._restore_attempts(*saved)
        while rows:
            self._attempt(rows, attempt, saved)
            saved = None
            attempt += 1
            rows = [r for r in rows if self._try_again(r, attempt)]
            self._save_between(rows, attempt)
        results = []
        for spec, finished, weights in zip(self.specs, self.attempts, self.kept, strict=True):
            assert weights is not None
            chosen = min(finished, key=lambda f: f.train_loss)
            replicas = Replicas([self.make_model(spec.seed, chosen.attempt)], self.device)
            model = replicas.export(0, weights).eval()
            results.append((model, [chosen, *(f for f in finished if f is not chosen)]))
        return results

    def _try_again(self, row: int, attempt: int) -> bool:
        if attempt > self.config.restarts or self.attempts[row][-1].fitted:
            return False
        # A model without learned distances that does not fit usually cannot: another start would only cost time.
        return bool(self.replicas.model.distance_parameters())

    # --- one attempt: all epochs of some runs ---

    def _attempt(self, rows: list[int], attempt: int, saved: tuple[dict[str, Tensor], dict[str, Any]] | None) -> None:
        config = self.config
        self.running = specs = [self.specs[r] for r in rows]
        self.replicas = replicas = Replicas([self.make_model(s.seed, attempt) for s in specs], self.device)
        self.stacked = self._may_stack(replicas)
        self.base_lr, weight_decay = self._rates(specs)
        self.optimizer: Optimizer = create_optimizer(
            config.optimizer, replicas.flat.detach(), weight_decay,
            lookahead=config.lookahead, lookahead_alpha=config.lookahead_alpha,
        )  # fmt: skip
        self.lr: tuple[float, Tensor] = (1.0, self.base_lr)
        self.states = [RunState() for _ in rows]
        self.best = replicas.flat.detach().clone() if config.selection == "best-val" else None
        start = 0
        if saved and "flat" in saved[0]:
            start = self._restore_epoch(*saved)
        handle = None
        if config.feature_dropout:
            handle = replicas.model.encoder.register_forward_hook(
                lambda module, _, output: F.dropout(output, config.feature_dropout, module.training)  # pyright: ignore
            )
        times: list[float] = []
        for epoch in range(start, config.epochs):
            if self._all_stopped():
                break
            begun = time.perf_counter()
            table = self._one_epoch(epoch, [s.seed for s in specs], attempt)
            times.append(time.perf_counter() - begun)
            for state, row in zip(self.states, table, strict=True):
                state.history.append({**row, "seconds": times[-1]})
            self._save_epoch(rows, attempt, epoch + 1)
            if self.on_epoch:
                left = (config.epochs - epoch - 1) * float(np.mean(times))
                seeds = [s.seed for s in specs]
                latest = [s.history[-1] for s in self.states]
                self.on_epoch(Progress(attempt, epoch + 1, config.epochs, seeds, latest, times[-1], left))
        if handle is not None:
            handle.remove()
        self._finish(rows, attempt)

    def _rates(self, specs: list[RunSpec]) -> tuple[Tensor, Tensor]:
        """Learning rate and weight decay [R, 1], or [R, P] when theta and beta have their own."""
        lr = torch.tensor([[s.lr] for s in specs], device=self.device)
        decay = torch.tensor([[s.weight_decay] for s in specs], device=self.device)
        columns = self.replicas.columns(self.replicas.model.distance_parameters())
        if self.config.distance_lr == "common" or not columns:
            return lr, decay
        flat = self.replicas.flat.detach()
        lr, decay = lr.expand_as(flat).clone(), decay.expand_as(flat).clone()
        for where in columns.values():
            lr[:, where] *= self.config.distance_lr * flat[:, where].abs().clamp_min(1e-3)
            decay[:, where] = 0.0
        return lr, decay

    def _may_stack(self, replicas: Replicas) -> bool:
        if replicas.runs == 1:
            return False
        largest = int(self.train.facts.sizes.max()) * replicas.runs
        reason = ""
        if not replicas.model.stackable:
            reason = f"{replicas.model.name} cannot be stacked"
        elif largest > self.config.stacked_instances:
            reason = f"{largest:,} instances in the largest step, more than {self.config.stacked_instances:,}"
        if reason and not self._told_unstacked:
            self._told_unstacked = True
            self.note(f"The {replicas.runs} runs take each step one after the other ({reason}).")
        return not reason

    # --- one epoch ---

    def _one_epoch(self, epoch: int, seeds: list[int], attempt: int) -> list[Row]:
        config, replicas = self.config, self.replicas
        rngs = [np.random.default_rng([seed, attempt, epoch]) for seed in seeds]
        torch.manual_seed(int(np.random.SeedSequence([attempt, epoch, *seeds]).generate_state(1, np.uint64)[0]) >> 1)
        replicas.model.train()
        steps = len(self.train.facts.ids)
        total, warmup = config.epochs * steps, round(config.warmup_epochs * steps)
        losses, logits, bags = [], [], []
        gradient: Tensor | None = None
        for index, step in enumerate(self.train.epoch(rngs)):
            features = jitter_digits(step.features) if config.augment == "digits" else step.features
            labels = self.labels[torch.from_numpy(step.bags).to(self.device)]
            logit, loss, new = self._gradient(features, step.coords, step.section, labels)
            losses.append(loss)
            logits.append(logit)
            bags.append(step.bags)
            gradient = new if gradient is None else gradient.add_(new)
            pending = index % config.accumulate + 1
            if pending == config.accumulate or index + 1 == steps:
                if pending > 1:
                    gradient.div_(pending)
                if config.clip:
                    clip_gradient(gradient, config.clip)
                self.optimizer.step(gradient, self._lr(factor(config.schedule, epoch * steps + index, total, warmup)))
                gradient = None
        return self._epoch_rows(epoch, torch.stack(losses), torch.stack(logits), np.stack(bags))

    def _lr(self, share: float) -> Tensor:
        if share != self.lr[0]:
            self.lr = (share, self.base_lr * share)
        return self.lr[1]

    def _gradient(
        self, features: Tensor, coords: Tensor, section: Tensor | None, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [R, ...], losses [R] and gradients [R, P] of one bag for every run."""
        replicas = self.replicas
        if self.stacked:
            with self._precision():
                output = replicas.forward_all(features, coords, section)
            losses = self.loss(output, labels)
            return output.logit.detach(), losses.detach(), replicas.gradient_all(losses)
        logits, losses, gradients = [], [], []
        for run in range(replicas.runs):
            with self._precision():
                output = replicas.forward_one(
                    run, features[run], coords[run], None if section is None else section[run]
                )
            loss = self.loss(output, labels[run])
            gradients.append(replicas.gradient_one(run, loss))
            logits.append(output.logit.detach())
            losses.append(loss.detach())
        return torch.stack(logits), torch.stack(losses), torch.stack(gradients)

    def _precision(self) -> Any:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _epoch_rows(self, epoch: int, losses: Tensor, logits: Tensor, bags: np.ndarray) -> list[Row]:
        train_loss = losses.double().mean(0).tolist()
        seen = np.moveaxis(logits.double().cpu().numpy(), 1, 0)  # [R, steps, ...], with dropout, as it was trained
        table: list[Row] = []
        val_logits, val_losses = None, []
        if self.val is not None:
            val_logits = self._scored(self.val)
            val_losses = mean_losses(self.loss, val_logits, self.val.facts.labels)
        for run, state in enumerate(self.states):
            row: Row = {
                "epoch": epoch + 1,
                "lr": self.running[run].lr * self.lr[0],
                "train_loss": train_loss[run],
                "train_balanced_accuracy": self._metric(self.train, seen[run], "balanced_accuracy", bags[:, run]),
            }
            if self.val is not None and val_logits is not None:
                row["val_loss"] = val_losses[run]
                for name in ("auroc", "balanced_accuracy"):
                    row[f"val_{name}"] = self._metric(self.val, val_logits[run], name)
                self._note_best(run, state, row)
            table.append(row)
        if self.replicas.model.distance_parameters():
            for run, row in enumerate(table):
                for k, learned in enumerate(self.replicas.export(run).learned_distances()):
                    row |= {f"{name}_{k}": float(learned[name]) for name in ("theta", "beta", "midpoint", "width")}
        return table

    def _scored(self, feed: Feed, weights: Tensor | None = None) -> np.ndarray:
        """Logits [R, bags, ...] in evaluation mode."""
        replicas = self.replicas
        own = replicas.flat.detach().clone()
        if weights is not None:
            replicas.load(weights)
        replicas.model.eval()
        scored = bag_logits([lambda x, c, s, r=r: replicas.forward_one(r, x, c, s) for r in range(replicas.runs)], feed)
        replicas.load(own)
        return scored

    def _metric(self, feed: Feed, logits: np.ndarray, name: str, bags: np.ndarray | None = None) -> float:
        if not np.isfinite(logits).all():
            return float("nan")
        labels = feed.facts.labels if bags is None else feed.facts.labels[bags]
        return score(labels, probabilities(logits, self.classes))[name]

    def _note_best(self, run: int, state: RunState, row: Row) -> None:
        if self.best is None or state.stopped_epoch is not None:
            return
        value = row[f"val_{self.config.monitor}"] * (-1 if self.config.monitor == "loss" else 1)
        if np.isfinite(value) and (state.best_score is None or value > state.best_score):
            state.best_score, state.best_epoch = value, int(row["epoch"])
            self.best[run] = self.replicas.flat.detach()[run]
        elif self.config.early_stopping and row["epoch"] - (state.best_epoch or 0) >= self.config.early_stopping:
            state.stopped_epoch = int(row["epoch"])

    def _all_stopped(self) -> bool:
        return all(state.stopped_epoch is not None for state in self.states)

    def _finish(self, rows: list[int], attempt: int) -> None:
        """Score the chosen weights on the training bags, and keep them if they beat earlier attempts."""
        weights = self.replicas.flat.detach() if self.best is None else self.best
        losses = mean_losses(self.loss, self._scored(self.train, weights), self.train.facts.labels)
        limit = self.config.stuck_above * self.loss.constant_guess
        for run, row in enumerate(rows):
            state, loss = self.states[run], losses[run]
            fitted = bool(loss <= limit)
            reason = "" if fitted else (
                f"training loss {loss:.3f} at the end, above {limit:.3f} "
                f"({self.config.stuck_above:g} of the {self.loss.constant_guess:.3f} of a constant guess)"
            )  # fmt: skip
            if not np.isfinite(loss):
                loss, reason = float("inf"), "training diverged: its loss is no longer a finite number"
            epoch = state.best_epoch if self.best is not None and state.best_epoch else len(state.history)
            model = self.replicas.export(run, weights[run])
            finished = Finished(attempt, loss, fitted, reason, epoch, state.history, dict(model.config))
            earlier = [f.train_loss for f in self.attempts[row]]
            self.attempts[row].append(finished)
            if not earlier or loss < min(earlier):
                self.kept[row] = weights[run].clone()

    # --- saving and continuing ---

    def _attempt_state(self, rows: list[int], attempt: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"kept.{r}": k for r, k in enumerate(self.kept) if k is not None}
        state = {
            "attempt": attempt,
            "rows": rows,
            "attempts": [[vars(f) for f in finished] for finished in self.attempts],
            "threads": torch.get_num_threads(),
        }
        return tensors, state

    def _save_epoch(self, rows: list[int], attempt: int, epoch: int) -> None:
        if self.store is None:
            return
        tensors, state = self._attempt_state(rows, attempt)
        tensors["flat"] = self.replicas.flat.detach()
        tensors |= {f"optimizer.{name}": value for name, value in self.optimizer.state().items()}
        if self.best is not None:
            tensors["best"] = self.best
        state |= {"epoch": epoch, "states": [vars(s) for s in self.states]}
        self.store.save(tensors, state)

    def _save_between(self, rows: list[int], attempt: int) -> None:
        if self.store is not None:
            tensors, state = self._attempt_state(rows, attempt)
            self.store.save(tensors, {**state, "epoch": 0, "states": []})

    def _restore_attempts(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> tuple[list[int], int]:
        if state["threads"] != torch.get_num_threads():
            self.note(
                f"The saved epochs used {state['threads']} threads, now {torch.get_num_threads()}: "
                "results may differ in the last digits."
            )
        self.attempts = [[Finished(**f) for f in finished] for finished in state["attempts"]]
        for r in range(len(self.specs)):
            if f"kept.{r}" in tensors:
                self.kept[r] = tensors[f"kept.{r}"].to(self.device)
        return list(state["rows"]), int(state["attempt"])

    def _restore_epoch(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> int:
        self.replicas.load(tensors["flat"].to(self.device))
        prefix = "optimizer."
        self.optimizer.load({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        if self.best is not None:
            self.best.copy_(tensors["best"])
        self.states = [RunState(**s) for s in state["states"]]
        return int(state["epoch"])


def resolve_device(name: str) -> torch.device:
    """The device of that name; auto takes CUDA, then MPS, then the CPU."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(device for device in ("cuda", "mps", "cpu") if available[device])
    if not available[name]:
        have = ", ".join(device for device, there in available.items() if there)
        raise BackendError(f"the device {name} is not available here (available: {have}): use --device auto")
    return torch.device(name)
