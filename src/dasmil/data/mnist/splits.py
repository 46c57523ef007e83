"""The data sets made of MNIST digits: which random streams make which split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from dasmil.data.mnist.digits import read_digits
from dasmil.data.mnist.layout import BagsRule, CollageRule, Layout, Rule
from dasmil.errors import InputError, unknown_name
from dasmil.types import Bag

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "mnist-bags": BagsRule(),
        "mnist-collage": CollageRule(),
        "mnist-collage-inv": CollageRule(threshold=170.0, farther=True),
    }
)
"""The data sets and the rule that makes their bags positive."""

SPLITS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "clean": {"train": 300, "val": 300, "test": 100, "test-large": 2000},
        "published": {"train": 300, "test": 100},
    }
)
"""Protocol -> split -> number of bags, half of them positive."""

MEAN, STD = 0.1307, 0.3081
"""Pixels become (x/255 - MEAN) / STD."""

VAL_DIGITS = 10_000
"""The last so many digits of the clean order of MNIST train are kept for validation bags."""

# The clean protocol's random streams are numbered, so that no two of them share a seed.
_DATASET_STREAM = {"mnist-bags": 1, "mnist-collage": 2, "mnist-collage-inv": 3}
_SPLIT_STREAM = {"train": 1, "val": 2, "test": 3, "test-large": 4}
_IMAGE_STREAM = 0
_IMAGE_SEED = 1


def load_mnist(
    name: str,
    protocol: str = "clean",
    split: str = "train",
    *,
    n_bags: int | None = None,
    seed: int = 1,
    mnist_dir: str | Path | None = None,
    **options: Any,
) -> list[Bag]:
    """Bags of MNIST digits, made anew from their seed; `options` change the rule, for example threshold=60."""
    rule = _rule(name, options)
    bags_wanted = _bags_wanted(name, protocol, split, n_bags)
    digits = read_digits(_half(split), None if mnist_dir is None else Path(mnist_dir))
    if protocol == "published":
        random = np.random.RandomState(seed)
        layouts = _draw_layouts(random, rule, bags_wanted)
        order = random.permutation(len(digits.labels))
    else:
        layouts = _draw_layouts(_stream(seed, _DATASET_STREAM[name], _SPLIT_STREAM[split]), rule, bags_wanted)
        order = clean_order(split, len(digits.labels))
    index = _in_order_per_class(order, digits.labels, np.concatenate([layout.digits for layout in layouts]))
    images = digits.take(index, f"{name}, {protocol} {split} split with these options,")
    features = _NORMALISED[images][:, None]
    facts: dict[str, Any] = {"dataset": name, "protocol": protocol, "split": split, "targets": list(rule.targets)}
    if isinstance(rule, CollageRule):
        facts |= {"collage_px": rule.collage_size, "threshold_px": rule.threshold, "farther": rule.farther}
    return _as_bags(layouts, features, index, facts)


def _as_bags(layouts: list[Layout], features: np.ndarray, index: np.ndarray, facts: dict[str, Any]) -> list[Bag]:
    bags: list[Bag] = []
    start = 0
    for number, layout in enumerate(layouts):
        end = start + len(layout.digits)
        bag = Bag(
            features=features[start:end],  # pyright: ignore[reportArgumentType] - Bag takes NumPy arrays
            coords=layout.centres,  # pyright: ignore[reportArgumentType]
            unit="px",
            bag_id=f"{facts['dataset']}/{facts['split']}/{number:04d}",
            label=layout.label,
            instance_labels=layout.digits,  # pyright: ignore[reportArgumentType]
            key_instances=layout.keys,  # pyright: ignore[reportArgumentType]
            metadata={**facts, "mnist_index": index[start:end].tolist()},
        )
        bags.append(bag)
        start = end
    return bags


def _rule(name: str, options: dict[str, Any]) -> Rule:
    if name not in RULES:
        raise unknown_name("data set", name, RULES)
    known = {field.name for field in fields(RULES[name])} - {"farther"}
    for option in options:
        if option not in known:
            raise unknown_name(f"option of {name}", option, known | {"n_bags", "seed", "mnist_dir"})
    if "targets" in options:
        targets = options["targets"]
        options = {**options, "targets": (targets,) if isinstance(targets, int) else tuple(targets)}
    return replace(RULES[name], **options)


def _bags_wanted(name: str, protocol: str, split: str, n_bags: int | None) -> int:
    if protocol not in SPLITS:
        raise unknown_name("protocol", protocol, SPLITS)
    if protocol == "published" and name == "mnist-bags":
        raise InputError("mnist-bags has no published split; take protocol 'clean'")
    if split not in SPLITS[protocol]:
        raise unknown_name(f"split of the {protocol} protocol", split, SPLITS[protocol])
    if n_bags is not None and n_bags < 2:
        raise InputError(f"n_bags is {n_bags}, expected at least 2: one positive and one negative bag")
    return SPLITS[protocol][split] if n_bags is None else n_bags


def _half(split: str) -> str:
    return "test" if split.startswith("test") else "train"


def _draw_layouts(random: np.random.RandomState, rule: Rule, n_bags: int) -> list[Layout]:
    """All positive bags, then all negative ones, then shuffled."""
    positives = n_bags // 2
    layouts = [rule.draw(random, 1) for _ in range(positives)]
    layouts += [rule.draw(random, 0) for _ in range(n_bags - positives)]
    random.shuffle(layouts)  # pyright: ignore[reportArgumentType] - it swaps the items of any list
    return layouts


def clean_order(split: str, n_digits: int) -> np.ndarray:
    """The order in which a clean split takes its digit images: the same for every data set and layout seed.

    Train and validation bags draw from disjoint parts of MNIST train, whatever their number.
    """
    if _half(split) == "test":
        return _stream(_IMAGE_SEED, _IMAGE_STREAM, _SPLIT_STREAM[split]).permutation(n_digits)
    order = _stream(_IMAGE_SEED, _IMAGE_STREAM, _SPLIT_STREAM["train"]).permutation(n_digits)
    return order[-VAL_DIGITS:] if split == "val" else order[:-VAL_DIGITS]


def _in_order_per_class(order: np.ndarray, labels: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """For each wanted digit the next image of its class in `order`, from the start again when they run out."""
    index = np.empty(len(digits), np.int64)
    for digit in range(10):
        wanted = np.flatnonzero(digits == digit)
        images = order[labels[order] == digit]
        index[wanted] = images[np.arange(len(wanted)) % len(images)]
    return index


def _stream(*numbers: int) -> np.random.RandomState:
    """A generator of its own per stream; NumPy guarantees that this kind never changes."""
    return np.random.RandomState(list(numbers))


_NORMALISED = ((np.arange(256) / 255 - MEAN) / STD).astype(np.float32)
