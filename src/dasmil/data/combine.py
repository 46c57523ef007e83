"""Bags made of bags: several slides of a patient as one, and a random part of a large one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from dasmil.errors import DataError
from dasmil.types import Bag


def join_sections(bag_id: str, bags: Sequence[Bag]) -> Bag:
    """Several slides as one bag; every slide's own sections stay apart from those of the others."""
    widths = sorted({bag.features.shape[1:] for bag in bags})
    if len(widths) > 1:
        raise DataError(f"patient {bag_id!r}: slides have different numbers of features ({widths}); use one encoder")
    sections, offset = [], 0
    for bag in bags:
        own = bag.section if bag.section is not None else torch.zeros(len(bag), dtype=torch.int64)
        _, own = torch.unique(own, return_inverse=True)
        sections.append(own + offset)
        offset += int(own.max()) + 1
    optional = {}
    for name in ("instance_labels", "key_instances"):
        values = [getattr(bag, name) for bag in bags]
        if all(value is not None for value in values):
            optional[name] = torch.cat(values)
    names = [bag.bag_id for bag, own in zip(bags, sections) for _ in range(int(own.max()) - int(own.min()) + 1)]
    ids = [bag.instance_ids for bag in bags]
    return Bag(
        features=torch.cat([bag.features for bag in bags]),
        coords=torch.cat([bag.coords for bag in bags]),
        unit=bags[0].unit,
        bag_id=bag_id,
        section=torch.cat(sections),
        metadata={"slides": [bag.bag_id for bag in bags], **bags[0].metadata, "section_names": names},
        instance_ids=None if None in ids else tuple(name for own in ids for name in own or ()),
        **optional,
    )


def sample_instances(bag: Bag, size: int, seed: int) -> Bag:
    """A random part of a bag, the same each time it is read: the draw depends on the bag's name and the seed."""
    digest = hashlib.sha256(f"{seed}/{bag.bag_id}".encode()).digest()
    chosen = np.random.default_rng(int.from_bytes(digest[:8], "little")).choice(len(bag), size, replace=False)
    index = torch.from_numpy(np.sort(chosen))
    parts = {
        name: value[index]
        for name in ("features", "coords", "instance_labels", "key_instances", "section")
        if (value := getattr(bag, name)) is not None
    }
    if bag.instance_ids is not None:
        parts["instance_ids"] = tuple(bag.instance_ids[k] for k in index.tolist())
    return replace(bag, **parts, metadata={**bag.metadata, "sampled_from": len(bag)})
