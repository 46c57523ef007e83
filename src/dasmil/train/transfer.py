"""Bags that are read while training goes on, on their way to the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dasmil.types import Bag

Moved = tuple[Tensor, Tensor, Tensor | None]


class PinnedBags(Sequence[Bag]):
    """The same bags in memory that a GPU copies from by itself; whoever reads them pins them."""

    def __init__(self, bags: Sequence[Bag]) -> None:
        self.bags = bags

    def __len__(self) -> int:
        return len(self.bags)

    def __getitem__(self, index: int) -> Bag:  # pyright: ignore[reportIncompatibleMethodOverride]
        bag = self.bags[index]
        section = None if bag.section is None else bag.section.pin_memory()
        return replace(bag, features=bag.features.pin_memory(), coords=bag.coords.pin_memory(), section=section)


def source(bags: Sequence[Bag], device: torch.device) -> Sequence[Bag]:
    """Where to read bags from for this device."""
    return PinnedBags(bags) if device.type == "cuda" else bags


def moved(bags: Iterator[Bag], device: torch.device) -> Iterator[Moved]:
    """Features, coordinates and section of each bag on the device, features in float32, pixels as they are.

    On CUDA the next bag is copied on a stream of its own while the caller computes on this one.
    """
    if device.type != "cuda":
        for bag in bags:
            yield _copied(bag, device)
        return
    copies = torch.cuda.Stream(device)

    def begun(bag: Bag | None) -> Any:
        if bag is None:
            return None
        with torch.cuda.stream(copies):
            return _copied(bag, device), copies.record_event(), bag  # the bag: its memory must outlive the copy

    upcoming = begun(next(bags, None))
    while upcoming is not None:
        (current, done, _), upcoming = upcoming, begun(next(bags, None))
        computing = torch.cuda.current_stream(device)
        computing.wait_event(done)
        for tensor in current:
            if tensor is not None:
                tensor.record_stream(computing)
        yield current


def _copied(bag: Bag, device: torch.device) -> Moved:
    section = None if bag.section is None else bag.section.to(device, non_blocking=True)
    features = bag.features.to(device, non_blocking=True)
    if not bag.pixels:
        features = features.to(torch.float32)
    return features, bag.coords.to(device, non_blocking=True), section
