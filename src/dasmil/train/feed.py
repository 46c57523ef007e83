"""Bags on their way into training: what is known about a set of bags, and the order in which each run sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dasmil.errors import DataError
from dasmil.tasks import Task, classification
from dasmil.train.job import Outline
from dasmil.train.ranks import Ranks
from dasmil.train.transfer import Moved, moved, source
from dasmil.types import Bag, Unit, need_bag

EVALUATED_INSTANCES = 4096  # instances of small bags that are scored in one call
UNLABELLED = -1


def read_ahead(bags: Sequence[Bag], order: Sequence[int]) -> Iterator[Bag]:
    """bags[i] for i in order; the next one is read in the background while the caller works on this one."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        upcoming = None
        for i in order:
            current, upcoming = upcoming, reader.submit(bags.__getitem__, int(i))
            if current is not None:
                yield current.result()
        if upcoming is not None:
            yield upcoming.result()


@dataclass(frozen=True)
class Facts:
    """What training needs to know about a set of bags before it starts."""

    ids: tuple[str, ...]
    patient_ids: tuple[str | None, ...]
    labels: NDArray[np.int64]
    """The class of every bag; with a task of another kind, what splits are balanced by."""
    sizes: NDArray[np.int64]
    unit: Unit
    feature_shape: tuple[int, ...]
    fingerprint: str
    feature_sum: float
    """Mean over all instances of the sum of their absolute features."""
    feature_square: float
    """Mean square of all features."""
    targets: NDArray[np.float64]
    """Values of the task [bags, columns]: of classification the label, of survival time and event, ..."""
    task: Task = field(default_factory=classification)

    @property
    def patients(self) -> list[str]:
        """The patient of every bag; a bag without one is its own patient."""
        return [patient or bag_id for patient, bag_id in zip(self.patient_ids, self.ids, strict=True)]

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1

    @property
    def outline(self) -> Outline:
        """What a job has to know of these bags."""
        if self.task.labels is None:
            return Outline(len(self.ids), self.feature_shape, self.unit, task=self.task.record())
        return Outline(len(self.ids), self.feature_shape, self.unit, max(2, self.classes))

    def describe(self) -> dict[str, Any]:
        """The entry of this set in data.json."""
        return {
            "n": len(self.ids),
            **self.task.describe(self.targets),
            "instances": {
                "total": int(self.sizes.sum()),
                "min": int(self.sizes.min()),
                "median": float(np.median(self.sizes)),
                "max": int(self.sizes.max()),
            },
            "unit": self.unit,
            "feature_shape": list(self.feature_shape),
            "fingerprint": self.fingerprint,
            "bag_ids": list(self.ids),
        }


@dataclass(frozen=True)
class Group:
    """Bags of one size: features [bags, n, ...], coords [bags, n, 2], section [bags, n] or None."""

    members: NDArray[np.int64]
    features: Tensor
    coords: Tensor
    section: Tensor | None

    def take(self, positions: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor | None]:
        if len(self.members) == 1:  # the same bag for every run: no copy
            count = len(positions)
            expanded = (x.expand(count, *x.shape[1:]) for x in (self.features, self.coords))
            section = None if self.section is None else self.section.expand(count, -1)
            features, coords = expanded
            return features, coords, section
        index = torch.from_numpy(positions).to(self.features.device)
        section = None if self.section is None else self.section.index_select(0, index)
        return self.features.index_select(0, index), self.coords.index_select(0, index), section

    def part(self, place: NDArray[np.int64]) -> Group:
        """The members with a new number (place >= 0) under that number."""
        positions = np.flatnonzero(place[self.members] >= 0)
        members = place[self.members[positions]]
        if len(positions) == len(self.members):
            return replace(self, members=members)
        index = torch.from_numpy(positions).to(self.features.device)
        section = None if self.section is None else self.section.index_select(0, index)
        return Group(members, self.features.index_select(0, index), self.coords.index_select(0, index), section)


@dataclass(frozen=True)
class Step:
    """One training step: a bag for every run, all of one size. features [R, n, ...]."""

    bags: NDArray[np.int64]  # [R] which bag each run sees
    features: Tensor
    coords: Tensor
    section: Tensor | None


class Part(Sequence[Bag]):
    """Some of the bags, in this order."""

    def __init__(self, bags: Sequence[Bag], indices: list[int]) -> None:
        self.bags, self.indices = bags, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Bag:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.bags[self.indices[index]]


class Feed:
    """A set of bags, checked; small sets are kept in memory, grouped by size, larger ones are read ahead as needed."""

    def __init__(
        self,
        bags: Sequence[Bag],
        device: torch.device,
        *,
        memory_gb: float,
        name: str = "training",
        labelled: bool = True,
        task: Task | None = None,
        observe: Callable[[Bag], None] | None = None,
    ) -> None:
        """task: what is asked, None: the class; observe: hears every bag once, while bags are checked."""
        task = task or classification()
        if len(bags) == 0:
            raise DataError(f"there are no {name} bags")
        self.bags = bags
        self.device = device
        self._groups: list[Group] | None = None
        limit = memory_gb * 2**30
        kept: list[Bag] | None = []
        ids: list[str] = []
        patient_ids: list[str | None] = []
        labels: list[int] = []
        asked: list[list[float]] = []
        sizes: list[int] = []
        size_bytes = 0
        absolute, squares = 0.0, 0.0
        digest = hashlib.sha256()
        first: Bag | None = None
        for bag in read_ahead(bags, range(len(bags))):
            first = first or bag
            need_bag(bag, len(ids))
            _check(bag, first, name, labelled and task.labels is not None)
            if observe is not None:
                observe(bag)
            ids.append(bag.bag_id)
            patient_ids.append(bag.patient_id)
            labels.append(UNLABELLED if bag.label is None else bag.label)
            asked.append(task.values_of(bag, needed=labelled))
            sizes.append(len(bag))
            _digest(bag, digest)
            size_bytes += bag.features.numel() * (1 if bag.pixels else 4)
            norm = torch.linalg.vector_norm
            values = bag.features.to(torch.float32)
            absolute += float(norm(values, 1))
            squares += float(norm(values, 2)) ** 2
            if kept is not None:
                kept.append(bag)
                if size_bytes > limit:
                    kept = None
        assert first is not None
        _check_ids(ids, name)
        targets = np.array(asked, dtype=np.float64).reshape(len(ids), -1)
        strata = task.strata(targets) if task.labels is None else np.array(labels)
        self.facts = Facts(
            tuple(ids), tuple(patient_ids), strata, np.array(sizes), first.unit, tuple(first.features.shape[1:]),
            digest.hexdigest(), absolute / sum(sizes),
            squares / (sum(sizes) * max(1, first.features[0].numel())), targets, task,
        )  # fmt: skip
        if kept is not None:
            self._groups = _grouped(kept, self.facts.sizes, device)

    def part(self, indices: Sequence[int]) -> Feed:
        """Some of the bags as a set of their own; what is in memory is not read again."""
        return _PartOfFeed(self, np.asarray(indices))

    def epoch(
        self,
        sizes: np.random.Generator,
        rngs: Sequence[np.random.Generator],
        ranks: Ranks | None = None,
        only: NDArray[np.int64] | None = None,
    ) -> Iterator[Step]:
        """One pass: every run sees every bag once, in an order of its own, in steps of equal bag size.

        ``sizes`` draws the sequence of sizes that all runs share; each run then draws its own order among bags of one
        size, so that no padding is needed. Bags that are not in memory are read once, for all runs together.
        Several processes (`ranks`) take turns: each has the steps of its own turn and reads no other bags.
        only: the bags of this pass, None: all.
        """
        only = np.arange(len(self.facts.ids)) if only is None else only
        order = only[bag_order(self.facts.sizes[only] if self._groups else only, sizes, rngs)]
        if ranks is not None:
            order = order[:, ranks.rank :: ranks.world]
        if self._groups is None:
            for (features, coords, section), chosen in zip(self._stream(order[0].tolist()), order.T, strict=True):
                runs = len(rngs)
                yield Step(
                    chosen,
                    features.expand(runs, *features.shape),
                    coords.expand(runs, *coords.shape),
                    None if section is None else section.expand(runs, -1),
                )
            return
        group_of, position_of = np.empty_like(self.facts.sizes), np.empty_like(self.facts.sizes)
        for g, group in enumerate(self._groups):
            group_of[group.members] = g
            position_of[group.members] = np.arange(len(group.members))
        for chosen in order.T:
            yield Step(chosen, *self._groups[group_of[chosen[0]]].take(position_of[chosen]))

    def batches(self) -> Iterator[Step]:
        """Every bag once, several small ones of equal size together; for scoring. features [bags, n, ...]."""
        if self._groups is None:
            for i, (features, coords, section) in enumerate(self._stream(range(len(self.facts.ids)))):
                yield Step(np.array([i]), features[None], coords[None], None if section is None else section[None])
            return
        for group in self._groups:
            count = max(1, EVALUATED_INSTANCES // group.features.shape[1])
            for start in range(0, len(group.members), count):
                part = slice(start, start + count)
                section = None if group.section is None else group.section[part]
                yield Step(group.members[part], group.features[part], group.coords[part], section)

    def _stream(self, order: Sequence[int]) -> Iterator[Moved]:
        return moved(read_ahead(source(self.bags, self.device), order), self.device)


class _PartOfFeed(Feed):
    """Some of the bags of a feed; what is in memory is not read again."""

    def __init__(self, whole: Feed, chosen: NDArray[np.int64]) -> None:
        facts = whole.facts
        self.bags, self.device = Part(whole.bags, chosen.tolist()), whole.device
        self.facts = replace(
            facts,
            ids=tuple(facts.ids[i] for i in chosen),
            patient_ids=tuple(facts.patient_ids[i] for i in chosen),
            labels=facts.labels[chosen],
            targets=facts.targets[chosen],
            sizes=facts.sizes[chosen],
            fingerprint="",
        )
        self._groups = None
        if whole._groups is not None:
            place = np.full(len(facts.ids), -1)
            place[chosen] = np.arange(len(chosen))
            self._groups = [group.part(place) for group in whole._groups if (place[group.members] >= 0).any()]


def bag_order(
    kinds: NDArray[np.int64], sizes: np.random.Generator, rngs: Sequence[np.random.Generator]
) -> NDArray[np.int64]:
    """Orders of the bags [R, N] with a bag of the same kind at each step in all runs; each is uniform over all orders.

    kinds: what must be equal in a step (the bag's size); ``sizes`` draws their sequence.
    """
    shared = sizes.permutation(len(kinds))
    order = np.tile(shared, (len(rngs), 1))
    for kind in np.unique(kinds):
        steps = np.flatnonzero(kinds[shared] == kind)
        for row, rng in zip(order, rngs, strict=True) if len(steps) > 1 else ():
            row[steps] = rng.permutation(row[steps])
    return order


def balanced(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Random bags, as many of each class as the rarest class has."""
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    rarest = min(map(len, members))
    return np.concatenate([rng.permutation(own)[:rarest] for own in members])


def _grouped(bags: list[Bag], sizes: NDArray[np.int64], device: torch.device) -> list[Group]:
    groups = []
    sectioned = any(bag.section is not None for bag in bags)
    for size in np.unique(sizes):
        members = np.flatnonzero(sizes == size)
        chosen = [bags[i] for i in members]
        section = None
        if sectioned:
            section = torch.stack(
                [torch.zeros(len(b), dtype=torch.int64) if b.section is None else b.section for b in chosen]
            ).to(device)
        features = chosen[0].features[None] if len(chosen) == 1 else torch.stack([b.features for b in chosen])
        coords = torch.stack([b.coords for b in chosen])
        kind = torch.uint8 if all(bag.pixels for bag in chosen) else torch.float32
        groups.append(Group(members, features.to(device, kind), coords.to(device), section))
    return groups


def _digest(bag: Bag, digest: hashlib._Hash) -> None:
    """Add all that makes a bag what it is."""
    digest.update(f"{bag.bag_id}\0{bag.label}\0{len(bag)}\0".encode())
    if bag.targets:
        digest.update(repr(sorted(bag.targets.items())).encode())
    for tensor in (bag.coords, bag.features, bag.section):
        if tensor is not None:
            digest.update(memoryview(tensor.contiguous().view(torch.uint8).numpy()))  # pyright: ignore


def _check_ids(ids: Sequence[str], name: str) -> None:
    if len(set(ids)) < len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise DataError(f"two {name} bags have the id {twice!r}: bag ids must be unique")


def _check(bag: Bag, first: Bag, name: str, labelled: bool) -> None:
    if labelled and bag.label is None:
        raise DataError(f"the {name} bag {bag.bag_id!r} has no label: training and scoring need one for every bag")
    if bag.features.shape[1:] != first.features.shape[1:]:
        raise DataError(
            f"bag {bag.bag_id!r} has features of shape {tuple(bag.features.shape[1:])} per instance, but "
            f"{first.bag_id!r} has {tuple(first.features.shape[1:])}: all bags must come from the same encoder"
        )
    if bag.unit != first.unit:
        raise DataError(f"bag {bag.bag_id!r} has coordinates in {bag.unit!r}, but {first.bag_id!r} in {first.unit!r}")
    bag.need_finite_features()
