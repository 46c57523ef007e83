"""Aggregators whose layout depends on the bag's own size: they read one bag at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dasmil.models.base import Aggregated
from dasmil.nn import Linear
from dasmil.nn.draws import drawing_alone


class BagByBag(nn.Module):
    """A subclass says in ``bag`` what it makes of one bag z [n, f], coords [n, 2], section [n] without padding.

    Batches, padding and stacked runs are taken apart here, so its layers see ordinary shapes only. Its buffers are
    single numbers.
    """

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        raise NotImplementedError

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        if z.ndim == 2:
            return self._real(z, coords, mask, section)
        given = [
            (z[row], coords[row], None if mask is None else mask[row], None if section is None else section[row])
            for row in range(len(z))
        ]
        if any(isinstance(m, Linear) and m.weight.ndim == 3 for m in self.modules()):
            state = dict(self.named_parameters()) | {name: b for name, b in self.named_buffers() if b.ndim}
            found = []
            for run, bag in enumerate(given):
                with drawing_alone(run):
                    own = {name: tensor[run] for name, tensor in state.items()}
                    found.append(torch.func.functional_call(self, own, bag))
            return _stack(found)
        return _stack([BagByBag.forward(self, *bag) for bag in given])

    def _real(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        """One bag without its padding, whose instances get a score of 0."""
        if mask is None or bool(mask.all()):
            return self.bag(z, coords, section)
        found = self.bag(z[mask], coords[mask], None if section is None else section[mask])
        if found.instance_scores is None:
            return found
        scores = torch.zeros_like(z[:, 0]).masked_scatter(mask, found.instance_scores)
        return found._replace(instance_scores=scores)


def _stack(found: list[Aggregated]) -> Aggregated:
    def together(name: str) -> Tensor | None:
        values = [getattr(one, name) for one in found]
        return None if values[0] is None else torch.stack(values)

    tensors = {name: together(name) for name in ("aux_loss", "instance_scores", "side_logits", "label_losses")}
    return found[0]._replace(embedding=torch.stack([one.embedding for one in found]), **tensors)
