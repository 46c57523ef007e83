"""The loop over epochs: runs that train together, one bag a step for each. It never receives a test bag."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dasmil.models.base import MILModel
from dasmil.nn.draws import Draws, drawing, drawing_alone
from dasmil.train.augment import AUGMENTATIONS, feature_dropout, mixed, random_part
from dasmil.train.checkpoint import Together
from dasmil.train.competition import Competition
from dasmil.train.feed import Feed, Step, balanced
from dasmil.train.loss import Lesson
from dasmil.train.material import Material
from dasmil.train.optim import Optimizer, clip_gradient, create_optimizer
from dasmil.train.ranks import Ranks
from dasmil.train.rates import rates
from dasmil.train.replicas import Replicas
from dasmil.train.schedule import factor
from dasmil.train.state import Row, RunSpec, RunState
from dasmil.types import Output

DRAWS = 1  # what tells the draws of a replica in an epoch from its order of the bags
SAMPLED, MIXED = 2, 3  # and what all replicas share: the bags of an epoch, and how two of them are mixed


class Attempt:
    """Runs that train together, as rows of one flat tensor of parameters; a run may try several starts at first.

    owners[r]: which run replica r belongs to; starts[r]: the number of its start. All randomness of a replica (order,
    dropout, augmentation) comes from its seed, the number of its start and the epoch: an interrupted epoch that is done
    again gives the same numbers, and so does a run in other company.
    """

    def __init__(
        self,
        owners: list[int],
        starts: list[int],
        specs: list[RunSpec],
        models: list[MILModel],
        material: Material,
        competition: Competition,
    ) -> None:
        self.owners, self.starts, self.specs, self.material = owners, starts, specs, material
        self.train, self.val, self.config = material.train, material.val, material.config
        self.loss, self.device, self.competition = material.loss, material.device, competition
        self.replicas = Replicas(models, self.device)
        self.stacked, self.why_not_stacked = self._may_stack()
        self.base_lr, self.weight_decay = rates(self.replicas, specs, self.config, self.train.facts.feature_sum)
        self.lr: tuple[float, Tensor] = (1.0, self.base_lr)
        self.optimizer = self._make_optimizer()
        self.states = [RunState() for _ in specs]
        self.best = self.replicas.flat.detach().clone() if self.config.selection == "best-val" else None
        self.judged = self.replicas.flat.detach().clone() if competition.sets_aside else None
        """While starts compete, the weights at the lowest held-out loss; later, those of runs that ended early."""
        self.epoch = 0  # epochs done

    def run(self, after_epoch: Callable[[float], None]) -> None:
        """Do the epochs that are left; after_epoch hears the seconds that each took."""
        if self.epoch == 0 and all(state.stopped_epoch == 0 for state in self.states):
            self._note_untrained()
        with feature_dropout(self.replicas.models, self.config.feature_dropout):
            while self.epoch < self.config.epochs and any(state.stopped_epoch is None for state in self.states):
                begun = time.perf_counter()
                table = self._one_epoch()
                seconds = time.perf_counter() - begun
                for run, row in table.items():
                    self.states[run].history.append({**row, "seconds": seconds})
                self.epoch += 1
                after_epoch(seconds)

    def _note_untrained(self) -> None:
        """Row 0 of runs that stay as they begin: what they say of all bags."""
        logits, bags = self.scored(self.train), np.arange(len(self.train.facts.ids))[:, None]
        losses = torch.tensor([self.loss.of_set(logits, self.train.facts)])
        seen = torch.from_numpy(np.moveaxis(logits, 0, 1))
        for state, row in zip(self.states, self._epoch_rows(-1, losses, seen, bags.repeat(len(self.states), 1))):
            state.history.append({**row, "seconds": 0.0})

    @torch.no_grad()
    def begin_again(self, replica: int, start: int, model: MILModel) -> None:
        """Put an untrained model from another start in the place of a replica; it trains on when `keep` is called."""
        self.starts[replica], self.replicas.models[replica] = start, model.to(self.device)
        fresh = Replicas([model], self.device).flat[0]
        self.replicas.flat[replica] = fresh
        if self.judged is not None:
            self.judged[replica] = fresh

    def keep(self, chosen: list[int]) -> None:
        """Go on with these replicas only."""
        part = self._taken(chosen)
        self.owners, self.starts, self.specs, self.states = part.owners, part.starts, part.specs, part.states
        self.replicas, self.best, self.judged = part.replicas, part.best, part.judged
        self.base_lr, self.weight_decay, self.lr = part.base_lr, part.weight_decay, part.lr
        self.optimizer, self.stacked, self.why_not_stacked = part.optimizer, part.stacked, part.why_not_stacked

    def _taken(self, rows: list[int]) -> Attempt:
        """These replicas, in training by themselves."""

        def mine(values: list[Any]) -> list[Any]:
            return [values[r] for r in rows]

        models = [self.replicas.export(r) for r in rows]
        part = Attempt(
            mine(self.owners), mine(self.starts), mine(self.specs), models, self.material, self.competition
        )  # fmt: skip
        part.base_lr, part.weight_decay = self.base_lr[rows], self.weight_decay[rows]
        part.lr = (1.0, part.base_lr)
        part.optimizer = part._make_optimizer()
        part.optimizer.load({name: value[rows] for name, value in self.optimizer.state().items()})
        part.states, part.epoch = mine(self.states), self.epoch
        part.best = None if self.best is None else self.best[rows]
        part.judged = None if self.judged is None else self.judged[rows]
        return part

    @torch.no_grad()
    def _take_back(self, rows: list[int], part: Attempt) -> None:
        """What these replicas became by themselves."""
        pairs = [(self.replicas.flat, part.replicas.flat), (self.best, part.best), (self.judged, part.judged)]
        theirs = part.optimizer.state()
        pairs += [(value, theirs[name]) for name, value in self.optimizer.state().items()]
        for whole, new in pairs:
            if whole is not None and new is not None:
                whole[rows] = new.detach()

    def _make_optimizer(self) -> Optimizer:
        config = self.config
        return create_optimizer(
            config.optimizer, self.replicas.flat.detach(), self.weight_decay,
            lookahead=config.lookahead, lookahead_alpha=config.lookahead_alpha,
        )  # fmt: skip

    @property
    def weights(self) -> Tensor:
        """The weights to keep [R, P]: of the last, or of the best validation epoch if one had a finite score."""
        last = self.replicas.flat.detach()
        if self.judged is not None and self.best is None:
            ended = torch.tensor([[state.stopped_epoch is not None] for state in self.states])
            last = torch.where(ended.to(self.device), self.judged, last)
        if self.best is None:
            return last
        scored = torch.tensor([[state.best_epoch is not None] for state in self.states], device=self.device)
        return torch.where(scored, self.best, last)

    def kept_epoch(self, run: int) -> int:
        """The epoch that these weights are of."""
        state = self.states[run]
        if self.best is not None and state.best_epoch:
            return state.best_epoch
        return len(state.history) if state.stopped_epoch is None else state.stopped_epoch

    def train_losses(self) -> tuple[list[float], list[float]]:
        """Losses on the training bags, without dropout: of the kept weights, and of those that training ended with."""
        facts = self.train.facts
        kept = self.loss.of_set(self.scored(self.train, self.weights), facts)
        return kept, kept if self.best is None else self.loss.of_set(self.scored(self.train), facts)

    def saved(self) -> Together:
        """All that a checkpoint needs."""
        tensors = {"flat": self.replicas.flat.detach()}
        tensors |= {f"optimizer.{name}": value for name, value in self.optimizer.state().items()}
        tensors |= {} if self.best is None else {"best": self.best}
        tensors |= {} if self.judged is None else {"judged": self.judged}
        return Together(self.starts, self.epoch, self.states, tensors)

    def restore(self, saved: Together) -> None:
        """Go on after the epoch that was saved."""
        tensors = saved.tensors
        self.replicas.load(tensors["flat"].to(self.device))
        prefix = "optimizer."
        self.optimizer.load({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        if self.best is not None:
            self.best.copy_(tensors["best"])
        if self.judged is not None:
            self.judged.copy_(tensors["judged"])
        self.states, self.epoch = saved.states, saved.epoch

    def _may_stack(self) -> tuple[bool, str]:
        """Whether one call trains all runs, and if not, why."""
        replicas, limit = self.replicas, self.config.stacked_instances
        if replicas.runs == 1:
            return False, ""
        largest = self._seen(int(self.train.facts.sizes.max())) * replicas.runs
        if not replicas.model.stackable:
            return False, f"{replicas.model.name} cannot be stacked"
        if largest > limit:
            return False, f"{largest:,} instances in the largest step, more than {limit:,}"
        return True, ""

    @property
    def choosing(self) -> bool:
        """Whether a run still has several starts."""
        return len(set(self.owners)) < len(self.owners)

    @property
    def feed(self) -> Feed:
        """The bags that a step may see."""
        return self.competition.bags(self.train, choosing=self.choosing)

    def _seen(self, n: int) -> int:
        """How many instances of a bag of n a training step sees."""
        most = [n]
        if self.choosing:
            most.append(self.config.starts_instances)
        if self.config.instances_share:
            most.append(max(1, int(self.config.instances_share * float(np.median(self.train.facts.sizes)))))
        return min(most)

    def _one_epoch(self) -> dict[int, Row]:
        """An epoch of all replicas that have not ended; their rows by number.

        Those of runs that still choose among starts see other bags than those that go on alone: each kind trains by
        itself, so that a run does not wait for its company.
        """
        going = [r for r, state in enumerate(self.states) if state.stopped_epoch is None]
        choosing = [r for r in going if self.owners.count(self.owners[r]) > 1]
        alone = [r for r in going if r not in choosing]
        table: dict[int, Row] = {}
        for rows in (choosing, alone):
            if len(rows) == len(self.owners):
                table = dict(enumerate(self._pass()))
            elif rows:
                part = self._taken(rows)
                table |= zip(rows, part._pass(), strict=True)
                self._take_back(rows, part)
        return table

    def _pass(self) -> list[Row]:
        """One pass over the bags with every replica."""
        config, epoch, feed = self.config, self.epoch, self.feed
        keys = [[spec.seed, start, epoch] for spec, start in zip(self.specs, self.starts, strict=True)]
        draws = Draws.of(*([*key, DRAWS] for key in keys))
        torch.manual_seed(epoch)  # for layers of other makers, which draw from torch
        lesson = self.loss.lesson(feed.facts, lambda: self.scored(feed), self.device)
        self.replicas.model.train()
        only = None
        if config.sampling == "balanced":
            only = balanced(feed.facts.labels, np.random.default_rng([epoch, SAMPLED]))
        steps = len(feed.facts.ids) if only is None else len(only)
        total, warmup = config.epochs * steps, round(config.warmup_epochs * steps)
        losses, logits, bags = [], [], []
        ranks = Ranks.here()
        ranks.check(steps)
        together = config.accumulate * ranks.world  # bags of one step of the optimizer
        order = feed.epoch(np.random.default_rng(epoch), [np.random.default_rng(key) for key in keys], ranks, only)
        before: Step | None = None
        for begin in range(0, steps, together):
            count = min(together, steps - begin)
            gradient: Tensor | None = None
            for index in range(begin + ranks.rank, begin + count, ranks.world):
                given = next(order)
                logit, loss, new = self._step(given, before, lesson, draws.at(index), index)
                before = given if config.mixup else None
                losses.append(loss)
                logits.append(logit)
                bags.append(given.bags)
                gradient = new if gradient is None else gradient.add_(new)
            gradient = ranks.summed(gradient, self.replicas.flat).div_(count)
            if config.clip:
                clip_gradient(gradient, config.clip)
            last = epoch * steps + begin + count - 1
            self.optimizer.step(gradient, self._lr(factor(config.schedule, last, total, warmup)))
        seen = ranks.gathered(torch.from_numpy(np.stack(bags)).to(self.device), steps).cpu().numpy()
        everyone = [ranks.gathered(torch.stack(found), steps) for found in (losses, logits)]
        return self._epoch_rows(epoch, everyone[0], everyone[1], seen)

    def _step(
        self, given: Step, before: Step | None, lesson: Lesson, draws: Draws, number: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, losses and gradients of one bag for every replica; before: the bag that it may be mixed with."""
        with drawing(draws):
            if before is not None:
                chance, share = np.random.default_rng([self.epoch, number, MIXED]).random(2)
                if chance < self.config.mixup:
                    given = mixed(given, before, share, draws)
                    lesson = self._of_both(lesson, before, share)
            step = random_part(given, self._seen(given.coords.shape[1]), draws)
            features = AUGMENTATIONS[self.config.augment](step.features)
            bags = torch.from_numpy(step.bags).to(self.device)
            return self._gradient(features, step.coords, step.section, bags, lesson)

    def _of_both(self, lesson: Lesson, before: Step, share: float) -> Lesson:
        """The losses of the labels of both bags that were mixed."""
        others = torch.from_numpy(before.bags).to(self.device)

        def losses(output: Output, bags: Tensor, run: int | None) -> Tensor:
            other = others if run is None else others[run]
            return share * lesson(output, bags, run) + (1 - share) * lesson(output, other, run)

        return losses

    def _lr(self, share: float) -> Tensor:
        if share != self.lr[0]:
            self.lr = (share, self.base_lr * share)
        return self.lr[1]

    def _gradient(
        self, features: Tensor, coords: Tensor, section: Tensor | None, bags: Tensor, lesson: Lesson
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [R, ...], losses [R] and gradients [R, P] of one bag for every run."""
        replicas = self.replicas
        if self.stacked:
            with self._precision():
                output = replicas.forward_all(features, coords, section)
            losses = lesson(output, bags, None)
            return output.logit.detach(), losses.detach(), replicas.gradient_all(losses)
        logits, losses, gradients = [], [], []
        for run in range(replicas.runs):
            with self._precision(), drawing_alone(run):
                output = replicas.forward_one(
                    run, features[run], coords[run], None if section is None else section[run]
                )
            loss = lesson(output, bags[run], run)
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
        trained = self.loss.trained
        val_logits, val_losses = None, []
        if self.val is not None:
            val_logits = self.scored(self.val)
            val_losses = self.loss.of_set(val_logits, self.val.facts)
        for run, state in enumerate(self.states):
            row: Row = {
                "epoch": epoch + 1,
                "lr": self.specs[run].lr * self.lr[0],
                "train_loss": train_loss[run],
                f"train_{trained}": self.metric(self.feed, seen[run], trained, bags[:, run]),
            }
            if self.val is not None and val_logits is not None:
                row["val_loss"] = val_losses[run]
                for name in self.loss.metrics:
                    row[f"val_{name}"] = self.metric(self.val, val_logits[run], name)
                self._note_best(run, state, row)
            table.append(row)
        self.competition.note(self, table)
        if self.replicas.model.distance_parameters():
            for run, row in enumerate(table):
                for k, learned in enumerate(self.replicas.export(run).learned_distances()):
                    row |= {f"{name}_{k}": float(learned[name]) for name in ("theta", "beta", "midpoint", "width")}
        return table

    def scored(self, feed: Feed, weights: Tensor | None = None) -> np.ndarray:
        """Logits [R, bags, ...] in evaluation mode."""
        return self.replicas.scored(feed, weights)

    def metric(self, feed: Feed, logits: np.ndarray, name: str, bags: np.ndarray | None = None) -> float:
        if not np.isfinite(logits).all():
            return float("nan")
        return self.loss.metric(feed.facts, logits, name, bags)

    def _note_best(self, run: int, state: RunState, row: Row) -> None:
        if self.best is None or state.stopped_epoch is not None:
            return
        value = row[f"val_{self.config.monitor}"] * (-1 if self.config.monitor == "loss" else 1)
        if np.isfinite(value) and (state.best_score is None or value > state.best_score):
            state.best_score, state.best_epoch = value, int(row["epoch"])
            self.best[run] = self.replicas.flat.detach()[run]
        elif self.config.early_stopping and row["epoch"] - (state.best_epoch or 0) >= self.config.early_stopping:
            state.stopped_epoch = int(row["epoch"])
