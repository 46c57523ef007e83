"""Bags for one's own training loop: a torch Dataset of them, and batches that are padded as the models take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from dasmil.errors import InputError, shown
from dasmil.types import Bag, need_bag, need_bags


class BagDataset(Dataset[dict[str, Any]]):
    """Bags as dictionaries of tensors, read when they are asked for; for torch.utils.data.DataLoader.

    Example: ``DataLoader(dasmil.BagDataset(bags), batch_size=8, shuffle=True, collate_fn=dasmil.collate_bags)``

    Each item has features [n, *f], coords [n, 2 or 3], section [n] (zeros where a bag has none), label (-1 where it has
    none) and bag_id.
    """

    def __init__(self, bags: Sequence[Bag]) -> None:
        need_bags(bags)
        self.bags = bags

    def __len__(self) -> int:
        return len(self.bags)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not hasattr(index, "__index__"):
            raise InputError(f"the index is {shown(index)}, expected the number of a bag")
        bag = need_bag(self.bags[index], index)
        return {
            "features": bag.features.float(),
            "coords": bag.coords,
            "section": torch.zeros(len(bag), dtype=torch.int64) if bag.section is None else bag.section,
            "label": -1 if bag.label is None else bag.label,
            "bag_id": bag.bag_id,
        }


def collate_bags(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A batch of bags: features [b, n, *f], coords, section padded to the largest, mask [b, n] True for instances.

    ``model(batch["features"], batch["coords"], batch["mask"], batch["section"]).logit`` is [b].
    """
    if not items:
        raise InputError("a batch without bags: expected at least one item of a BagDataset")
    for name in ("features", "coords"):
        shapes = {tuple(item[name].shape[1:]) for item in items}
        if len(shapes) > 1:
            raise InputError(f"bags of one batch have {name} of shapes {shown(sorted(shapes))}: they must be alike")
    sizes = torch.tensor([len(item["features"]) for item in items])
    largest = int(sizes.max())
    return {
        **{name: _padded([item[name] for item in items], largest) for name in ("features", "coords", "section")},
        "mask": torch.arange(largest) < sizes[:, None],
        "label": torch.tensor([item["label"] for item in items]),
        "bag_id": [item["bag_id"] for item in items],
    }


def _padded(parts: Sequence[Tensor], n: int) -> Tensor:
    whole = parts[0].new_zeros(len(parts), n, *parts[0].shape[1:])
    for row, part in zip(whole, parts):
        row[: len(part)] = part
    return whole
