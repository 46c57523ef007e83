"""Train, validation and test by patient, stratified by class; k folds likewise."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dasmil.errors import InputError, shown

VAL_SHARE, TEST_SHARE = 0.15, 0.15
"""Of the patients, where a label table does not say who validates and tests; a fold validates so much of the rest."""


@dataclass(frozen=True)
class Fold:
    """Bag numbers of one round of cross-validation."""

    train: list[int]
    val: list[int]
    test: list[int]


def split_patients(
    patients: Sequence[str],
    labels: Sequence[Hashable],
    shares: Mapping[str, float],
    seed: int = 0,
    *,
    what: str = "patient",
) -> dict[str, list[int]]:
    """Deal bags into named parts by patient, so that each part has its share of every class.

    patients: what must stay together; what: how messages call it, where it is sites.
    """
    if any(share < 0 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
        raise InputError(f"split shares are {dict(shares)}, expected numbers >= 0 that sum to 1")
    names = [name for name, share in shares.items() if share > 0]
    parts = _deal(patients, labels, [shares[name] for name in names], seed)
    found = dict(zip(names, parts))
    short = [name for name, part in found.items() if not part]
    if short:
        raise InputError(
            f"{len(set(patients))} {what}s are too few for the shares {dict(shares)}: {short[0]} would be empty"
        )
    return found


def make_folds(
    patients: Sequence[str],
    labels: Sequence[Hashable],
    k: int,
    seed: int = 0,
    val_share: float | None = VAL_SHARE,
    *,
    what: str = "patient",
    classes: Sequence[str] | None = None,
) -> list[Fold]:
    """k folds by patient, stratified; fold i is tested on part i, and trains and validates on all the rest.

    val_share: how much of the rest validates, drawn by patient; None: the whole next part does. patients, what: as of
    ``split_patients``. classes: what messages call the labels, which are then their numbers.
    """
    n = len(set(patients))
    fewest = 2 if val_share is not None else 3
    if k < fewest:
        raise InputError(f"{k} folds were asked for, expected at least {fewest}: every bag is tested once, by others")
    if k > n:
        raise InputError(f"{k} folds were asked for, but there are only {n} {what}s")
    parts = _deal(patients, labels, [1 / k] * k, seed)

    def called(label: Hashable) -> Hashable:
        return classes[label] if classes and isinstance(label, int) else label

    for name in dict.fromkeys(labels):
        holders = len({patient for patient, label in zip(patients, labels) if label == name})
        if holders < k:
            raise InputError(
                f"class {called(name)!r} has {holders} {what}{'s' * (holders != 1)}, fewer than the {k} folds; "
                "use fewer folds"
            )
    folds: list[Fold] = []
    for i in range(k):
        test = parts[i]
        val = parts[(i + 1) % k] if val_share is None else _drawn(patients, labels, test, val_share, seed, what, called)
        held = set(test) | set(val)
        folds.append(Fold(train=[j for j in range(len(patients)) if j not in held], val=val, test=test))
    return folds


def _drawn(
    patients: Sequence[str],
    labels: Sequence[Hashable],
    test: Sequence[int],
    share: float,
    seed: int,
    what: str,
    called: Callable[[Hashable], Hashable],
) -> list[int]:
    """Bags that validate a fold: a share of those that it does not test, by patient."""
    rest = [i for i in range(len(patients)) if i not in set(test)]
    for name in dict.fromkeys(labels):
        holders = len({patients[i] for i in rest if labels[i] == name})
        if holders < 2:
            raise InputError(
                f"class {called(name)!r} has {holders} {what}s outside a test fold, but training and validation need "
                f"one each: more {what}s of it, or more folds"
            )
    parts = split_patients(
        [patients[i] for i in rest], [labels[i] for i in rest], {"train": 1 - share, "val": share}, seed, what=what
    )
    return [rest[i] for i in parts["val"]]


def fingerprint(bag_ids: Sequence[str]) -> str:
    """A short name for a set of bags, whatever their order."""
    return hashlib.sha256("\n".join(sorted(bag_ids)).encode()).hexdigest()[:16]


def check_split_seed(seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"the seed of the split is {shown(seed)}, expected a whole number from 0 on")


def _deal(patients: Sequence[str], labels: Sequence[Hashable], shares: Sequence[float], seed: int) -> list[list[int]]:
    """Give each patient, largest first and in random order among equals, to the part that lacks its classes most."""
    classes = {name: i for i, name in enumerate(dict.fromkeys(labels))}
    members: dict[str, list[int]] = {}
    for i, patient in enumerate(patients):
        members.setdefault(patient, []).append(i)
    counts = {patient: np.zeros(len(classes)) for patient in members}
    for patient, label in zip(patients, labels):
        counts[patient][classes[label]] += 1
    total = np.sum(list(counts.values()), axis=0)
    wanted = np.outer(np.asarray(shares), total)
    held = np.zeros_like(wanted)
    order = list(members)
    check_split_seed(seed)
    rng = np.random.default_rng(seed)
    rng.shuffle(order)
    # Patients of rare classes first: they are the ones that are hard to deal evenly.
    rarity = {patient: min(total[counts[patient] > 0]) for patient in members}
    order.sort(key=lambda patient: (rarity[patient], -len(members[patient])))
    parts: list[list[int]] = [[] for _ in shares]
    for patient in order:
        need = counts[patient]
        # How far each part is behind its share of this patient's classes, in units of that share.
        behind = ((wanted - held) / np.maximum(wanted, 1e-9)) @ (need / need.sum())
        best = np.flatnonzero(behind >= behind.max() - 1e-9)
        chosen = int(rng.choice(best))
        parts[chosen] += members[patient]
        held[chosen] += need
    return [sorted(part) for part in parts]
