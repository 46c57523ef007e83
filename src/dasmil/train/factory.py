"""Where the models of a training come from: untrained ones for every run and start, and finished ones for the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dasmil.candidates.whitening import Directions
from dasmil.models import create_model
from dasmil.models.base import MILModel
from dasmil.nn import Linear
from dasmil.train.defaults import fit_to_features
from dasmil.train.distances import Lengths, with_start
from dasmil.train.feed import Feed
from dasmil.train.starts import Start, begin

ON_ALL = 1_000_000
"""What is added to the number of a start where it is fitted to all training bags, not to those to learn from alone."""


class Factory:
    """Makes models: the same run and start give the same weights.

    With directions the models train on features that were read in them already; ``finish`` puts the directions in
    front, so that the user's model takes features as they are. starts: of a first attempt, in order; further attempts
    start from further lengths. learn: the bags to learn from while starts compete; train: all.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        lengths: Lengths | None,
        starts: Sequence[Start],
        learn: Feed,
        train: Feed,
        *,
        directions: Directions | None,
        scaled: bool,
        constant: Tensor | None = None,
    ) -> None:
        """constant: what models say of every bag before they are trained; None: as their layers are drawn."""
        self.constant = constant
        self.name, self.options, self.lengths, self.starts = name, dict(options), lengths, list(starts)
        self.learn, self.train, self.directions, self.scaled = learn, train, directions, scaled
        if directions is not None:
            self.options |= {"in_features": len(directions), "encoder_features": len(directions)}

    def start(self, number: int) -> Start:
        """Start 0, 1, 2, ...; those after the first attempt's are its lengths again, with lengths of their own.

        From ON_ALL on: the same starts from all training bags.
        """
        if number >= ON_ALL:
            start = self.start(number - ON_ALL)
            return start if start.on_all is None else start.on_all
        if number < len(self.starts):
            return self.starts[number]
        again = [start for start in self.starts if start.kind == "length"]
        round_, place = divmod(number - len(self.starts), len(again))
        return Start("length", again[place].number + (round_ + 1) * (again[-1].number + 1), again[place].rate)

    def numbers(self, attempt: int) -> list[int]:
        """The starts of an attempt."""
        if attempt == 0:
            return list(range(len(self.starts)))
        count = sum(start.kind == "length" for start in self.starts)
        first = len(self.starts) + (attempt - 1) * count
        return list(range(first, first + count))

    def make(self, seed: int, number: int) -> MILModel:
        """The untrained model of a run and a start."""
        start = self.start(number)
        feed = self.train if number >= ON_ALL else self.learn
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0]) >> 1)
            model = create_model(self.name, **with_start(self.name, self.options, self.lengths, start.number))
        if self.directions is not None:
            seen, zero = self._seen(start)
            model.encoder.directions.copy_(seen)  # pyright: ignore
            model.encoder.mean.copy_(zero)  # pyright: ignore
        elif self.scaled:
            fit_to_features(model, feed.facts.feature_square)
        self._begin_constant(model)
        begin(model, start, feed, torch.zeros(1) if self.constant is None else self.constant)
        return model

    def _seen(self, start: Start) -> tuple[Tensor, Tensor]:
        """What a model reads of the directions [k, k], and where that is 0 [k].

        Of a rule only its types, which leaves little to learn by heart: 1 for instances like one of them, about 0 for
        all others.
        """
        assert self.directions is not None
        seen, constants = torch.eye(len(self.directions)), torch.zeros(len(self.directions))
        if start.rule is not None:
            seen.zero_()
            for column, kind in enumerate(start.rule.types):
                weights, constants[column] = kind.reading
                seen[: len(weights), column] = torch.from_numpy(weights)
        elif len(self.starts) > 1 and not start.reads_between:
            seen[self.directions.within :] = 0.0
        return seen, -_reaching(constants, seen)

    @torch.no_grad()
    def _begin_constant(self, model: MILModel) -> None:
        """Hazards begin at those of all training bags, not at one half: few epochs of few bags would not get there."""
        last = model.classifier
        if self.constant is not None and isinstance(last, Linear) and last.bias is not None:
            last.bias.copy_(self.constant)

    @torch.no_grad()
    def finish(self, model: MILModel) -> MILModel:
        """The user's model of a trained one."""
        if self.directions is None:
            return model
        state = model.state_dict()
        seen, zero = state["encoder.directions"], state["encoder.mean"]
        read = self.directions.axes.to(seen) @ seen
        state["encoder.mean"] = self.directions.mean.to(zero) + _reaching(zero @ seen, read)
        state["encoder.directions"] = read
        with torch.random.fork_rng(devices=[]):
            finished = create_model(model.name, **{**model.config, "in_features": len(self.directions.mean)})
        finished.load_state_dict(state)
        return finished.to(next(model.parameters()).device).eval()


def _reaching(values: Tensor, directions: Tensor) -> Tensor:
    """The shortest features [f] that are read as these values [k] in directions [f, k]."""
    return (values.double() @ torch.linalg.pinv(directions.double())).to(directions)
