"""Several runs of one model as the rows of one flat parameter tensor, so that one call trains them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dasmil.errors import DataError
from dasmil.models.base import MILModel
from dasmil.train.evaluate import bag_logits
from dasmil.train.feed import Feed
from dasmil.types import Output


class Replicas:
    """Models of one architecture, one per run; their trainable parameters are ``flat`` [runs, parameters].

    ``forward_all`` runs all of them in one call (the model must be ``stackable``), ``forward_one`` a single run with
    its ordinary shapes. Frozen parameters and buffers that differ between runs travel with their run.
    """

    def __init__(self, models: Sequence[MILModel], device: torch.device) -> None:
        self.model = models[0].to(device)
        self.models = list(models)
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.names = list(named)
        self.shapes = [p.shape for p in named.values()]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        rows = [
            torch.cat([dict(m.named_parameters())[name].detach().reshape(-1) for name in self.names]).to(device)
            for m in models
        ]
        self.flat = torch.stack(rows).requires_grad_()
        self._leaves = [row.detach().requires_grad_() for row in self.flat.detach()]  # share the storage of flat
        self._fixed = self._fixed_tensors(device)
        self._slots = self._find_slots()

    def _find_slots(self) -> list[list[tuple[dict[str, Any], str, Any]]]:
        """For every trainable and then every fixed tensor, the places in the model's modules that hold it."""
        places: dict[int, list[tuple[dict[str, Any], str, Any]]] = {}
        for module in self.model.modules():
            for store in (module._parameters, module._buffers):
                for key, tensor in store.items():
                    if tensor is not None:
                        places.setdefault(id(tensor), []).append((store, key, tensor))
        own = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        return [places[id(own[name])] for name in (*self.names, *self._fixed)]

    def _fixed_tensors(self, device: torch.device) -> dict[str, Tensor]:
        """Frozen parameters [R, ...], and buffers where they differ between runs."""
        fixed: dict[str, Tensor] = {}
        states = [{**dict(m.named_parameters()), **dict(m.named_buffers())} for m in self.models]
        frozen = {name for name, p in self.model.named_parameters() if not p.requires_grad}
        for name in states[0]:
            if name in self.names:
                continue
            values = [s[name].detach().to(device) for s in states]
            if name in frozen or any(not torch.equal(values[0], v) for v in values[1:]):
                fixed[name] = torch.stack(values)
        return fixed

    @property
    def runs(self) -> int:
        return len(self.models)

    def forward_all(self, features: Tensor, coords: Tensor, section: Tensor | None) -> Output:
        """All runs at once: features [R, n, ...] -> logit [R] or [R, classes]."""
        tensors = [
            part.view(-1, *shape) for part, shape in zip(self.flat.split(self.sizes, dim=1), self.shapes, strict=True)
        ]
        return self._call(tensors + list(self._fixed.values()), features, coords, section)

    def forward_one(self, run: int, features: Tensor, coords: Tensor, section: Tensor | None) -> Output:
        """One run, with features of any batch shape [*batch, n, ...]."""
        tensors = [
            part.view(shape) for part, shape in zip(self._leaves[run].split(self.sizes), self.shapes, strict=True)
        ]
        return self._call(tensors + [value[run] for value in self._fixed.values()], features, coords, section)

    def _call(self, tensors: list[Tensor], features: Tensor, coords: Tensor, section: Tensor | None) -> Output:
        """The model with other tensors in place of its own.

        As torch.func.functional_call, without its bookkeeping, which took a tenth of a training step.
        """
        for slots, tensor in zip(self._slots, tensors, strict=True):
            for store, key, _ in slots:
                store[key] = tensor
        try:
            return self.model(features, coords, None, section)
        finally:
            for slots in self._slots:
                for store, key, own in slots:
                    store[key] = own

    def gradient_all(self, losses: Tensor) -> Tensor:
        """Gradient [R, P] of losses [R]; a run's loss depends on its own row alone."""
        return torch.autograd.grad(losses.sum(), self.flat)[0]

    def gradient_one(self, run: int, loss: Tensor) -> Tensor:
        """Gradient [P] of one run's loss."""
        return torch.autograd.grad(loss, self._leaves[run])[0]

    def scored(self, feed: Feed, weights: Tensor | None = None) -> NDArray[np.float64]:
        """Logits [R, bags, ...] in evaluation mode, with their own or with other weights [R, P]."""
        own = self.flat.detach().clone()
        if weights is not None:
            self.load(weights)
        self.model.eval()
        found = bag_logits([lambda x, c, s, r=r: self.forward_one(r, x, c, s) for r in range(self.runs)], feed)
        self.load(own)
        return found

    def columns(self, names: Sequence[str]) -> dict[str, slice]:
        """Where parameters of these names stand in a row of ``flat``."""
        found, start = {}, 0
        for name, size in zip(self.names, self.sizes, strict=True):
            if name in names:
                found[name] = slice(start, start + size)
            start += size
        return found

    @torch.no_grad()
    def load(self, flat: Tensor) -> None:
        """Take over the parameters [R, P]."""
        if flat.shape != self.flat.shape:
            raise DataError(
                f"the checkpoint holds {flat.shape[0]} runs of {flat.shape[-1]:,} parameters, expected "
                f"{self.flat.shape[0]} of {self.flat.shape[1]:,}: it belongs to another model or set of runs"
            )
        self.flat.copy_(flat)

    @torch.no_grad()
    def export(self, run: int, row: Tensor | None = None) -> MILModel:
        """The run's own model, with its parameters from ``flat`` (or from ``row`` [P])."""
        model = self.models[run]
        source = self.flat[run] if row is None else row
        parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        for name, part, shape in zip(self.names, source.split(self.sizes), self.shapes, strict=True):
            parameters[name].copy_(part.view(shape))
        return model
