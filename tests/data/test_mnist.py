"""The MNIST bags: bit-identical published splits, clean ones without a leak, truths recomputed by hand."""

from __future__ import annotations

import hashlib
import math
from collections import Counter

import numpy as np
import pytest
import torch

import dasmil
from dasmil.data.mnist import RULES, collage_image, digit_images
from dasmil.errors import InputError
from dasmil.types import Bag

CLEAN = ("train", "val", "test", "test-large")

# SHA-256, first 16 hex digits: digits (int64) then centres (float32) bag by bag; digit images (uint8) bag by bag.
PUBLISHED = [
    ("mnist-collage", "train", 2925, "c1d3171870d9c761", "a6050b2dba5871fc"),
    ("mnist-collage", "test", 964, "f9bd06333ee38d14", "5a5f90a625e8a773"),
    ("mnist-collage-inv", "train", 2846, "87220f7661019c2f", "35e2e2e957e325da"),
    ("mnist-collage-inv", "test", 963, "e57ee7c81882f2cf", "a8a2d85b93039ecb"),
]


def digests(bags: list[Bag]) -> tuple[str, str]:
    layout, images = hashlib.sha256(), hashlib.sha256()
    for bag in bags:
        assert bag.instance_labels is not None
        layout.update(bag.instance_labels.numpy().astype("<i8").tobytes())
        layout.update(bag.coords.numpy().astype("<f4").tobytes())
        images.update(digit_images(bag).tobytes())
    return layout.hexdigest()[:16], images.hexdigest()[:16]


@pytest.mark.parametrize(("name", "split", "instances", "layout", "images"), PUBLISHED)
def test_the_published_splits_are_bit_identical(name: str, split: str, instances: int, layout: str, images: str):
    bags = list(dasmil.load_dataset(name, "published", split))
    assert sum(len(bag) for bag in bags) == instances
    assert digests(bags) == (layout, images)


# The clean sets must never change either: results that people published would no longer compare.
CLEAN_DIGESTS = {
    ("mnist-bags", "train"): ("ad18d2cc9512cf00", "0e8a4bc8b70edd9c"),
    ("mnist-bags", "val"): ("2f1d86af32e3423b", "909a75df1409c346"),
    ("mnist-bags", "test"): ("0301a7b101c3ba03", "cb6ba16b03e5e065"),
    ("mnist-bags", "test-large"): ("23bed0ff606b2bcb", "3aafb8078d38555a"),
    ("mnist-collage", "train"): ("a2faeb3db24f9593", "90bb24dddc90d573"),
    ("mnist-collage", "val"): ("0cb2c38dc7426279", "d0f0013965ad0373"),
    ("mnist-collage", "test"): ("72d1e4a36e0e55d7", "b61b532484d4cd45"),
    ("mnist-collage", "test-large"): ("df1055b76db1cd80", "1d0852b2e5c73a5f"),
    ("mnist-collage-inv", "train"): ("7f64f73caa04e738", "a7430c942b412705"),
    ("mnist-collage-inv", "val"): ("ce1a9cdf385422aa", "d377c56e8aa3356c"),
    ("mnist-collage-inv", "test"): ("a3a9eeb7eaacf516", "6c000a21d68d319c"),
    ("mnist-collage-inv", "test-large"): ("d2f08c91f076ebf0", "c3e17a83172c80f7"),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("split", CLEAN)
def test_the_clean_splits_stay_as_they_are(name: str, split: str):
    assert digests(list(dasmil.load_dataset(name, split=split))) == CLEAN_DIGESTS[name, split]


def layout_key(bag: Bag) -> tuple[bytes, bytes]:
    assert bag.instance_labels is not None
    return bag.instance_labels.numpy().tobytes(), bag.coords.numpy().tobytes()


@pytest.mark.parametrize("name", ["mnist-collage", "mnist-collage-inv"])
def test_published_repeats_every_positive_training_layout_and_clean_none(name: str):
    train = {layout_key(bag) for bag in dasmil.load_dataset(name, "published", "train")}
    test = dasmil.load_dataset(name, "published", "test")
    assert sum(layout_key(bag) in train for bag in test if bag.label == 1) == 50
    assert sum(layout_key(bag) in train for bag in test if bag.label == 0) == 0
    layouts = [layout_key(bag) for split in CLEAN for bag in dasmil.load_dataset(name, split=split)]
    assert len(layouts) == 2700
    assert len(set(layouts)) == 2700
    centres = {
        point for _, c in layouts for point in np.frombuffer(c, np.float32).reshape(-1, 2).view("V8")[:, 0].tolist()
    }
    assert len(centres) == sum(len(c) // 8 for _, c in layouts)


@pytest.mark.parametrize("name", RULES)
def test_clean_validation_bags_share_no_digit_with_training_bags(name: str):
    train, val = (
        {i for bag in dasmil.load_dataset(name, split=split) for i in bag.metadata["mnist_index"]}
        for split in ("train", "val")
    )
    assert len(train) > 2500
    assert len(val) > 2500
    assert not train & val


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("split", "n"), [("train", 300), ("val", 300), ("test", 100), ("test-large", 2000)])
def test_labels_and_key_instances_follow_the_rule(name: str, split: str, n: int):
    bags = dasmil.load_dataset(name, split=split)
    assert Counter(bag.label for bag in bags) == {0: n // 2, 1: n // 2}
    assert [bag.bag_id for bag in bags[:2]] == [f"{name}/{split}/0000", f"{name}/{split}/0001"]
    for bag in bags:
        assert bag.instance_labels is not None
        assert bag.key_instances is not None
        digits, points = bag.instance_labels.tolist(), bag.coords.tolist()
        keys: set[int] = set()
        if name == "mnist-bags":
            keys = {i for i, digit in enumerate(digits) if digit == 9}
        else:
            near, far = (0.0, 80.0) if name == "mnist-collage" else (170.0, math.inf)
            for i, a in enumerate(digits):
                for j, b in enumerate(digits):
                    distance = math.dist(points[i], points[j])
                    if (a, b) == (0, 1) and near < distance < far:
                        keys |= {i, j}
                    assert i == j or name == "mnist-bags" or distance > 19.999
            assert all(14 <= value <= 242 for point in points for value in point)
        assert set(torch.nonzero(bag.key_instances)[:, 0].tolist()) == keys
        assert bag.label == int(bool(keys))


@pytest.mark.parametrize(("name", "share"), [("mnist-collage", 12), ("mnist-collage-inv", 16)])
def test_negative_published_test_bags_with_both_digits(name: str, share: int):
    bags = dasmil.load_dataset(name, "published", "test")
    both = [
        b for b in bags if b.label == 0 and b.instance_labels is not None and {0, 1} <= set(b.instance_labels.tolist())
    ]
    assert len(both) == share


def test_pixels_are_normalised_and_the_picture_shows_them():
    bag = dasmil.load_dataset("mnist-collage", split="test")[0]
    images = digit_images(bag)
    assert bag.features.dtype == torch.float32
    assert bag.unit == "px"
    torch.testing.assert_close(bag.features[:, 0], (torch.from_numpy(images).float() / 255 - 0.1307) / 0.3081)
    assert images.max() > 250
    picture = collage_image(bag)
    expected = np.zeros((256, 256), np.uint8)
    for image, (x, y) in zip(images, bag.coords.tolist()):
        left, top = round(x - 14), round(y - 14)
        for row in range(28):
            for column in range(28):
                old = expected[top + row, left + column]
                expected[top + row, left + column] = max(old, image[row, column])
    np.testing.assert_array_equal(picture, expected)


def test_all_parameters_can_be_changed():
    bags = dasmil.load_dataset(
        "mnist-collage", split="test", collage_size=400, threshold=50, targets=(3, 8), bag_size_mean=6,
        bag_size_std=0, min_distance=40, n_bags=20, seed=7,
    )  # fmt: skip
    assert len(bags) == 20
    reach = torch.stack([bag.coords.max() for bag in bags]).max()
    assert 256 < reach <= 386
    for bag in bags:
        assert len(bag) == 6
        assert collage_image(bag).shape == (400, 400)
        distance = torch.cdist(bag.coords, bag.coords, compute_mode="donot_use_mm_for_euclid_dist")
        assert distance[~torch.eye(6, dtype=torch.bool)].min() >= 39.999
        assert bag.instance_labels is not None
        pair = distance[bag.instance_labels == 3][:, bag.instance_labels == 8]
        assert bag.label == int((pair < 50).any())
    pairs = dasmil.load_dataset("mnist-bags", split="test", targets=(7, 9), n_bags=10)
    for bag in pairs:
        assert bag.instance_labels is not None
        assert bag.label == int({7, 9} <= set(bag.instance_labels.tolist()))
        assert not bag.coords.any()


def test_another_seed_gives_other_layouts_of_the_same_kind_offline():
    one, two = (dasmil.load_dataset("mnist-collage", split="train", seed=seed) for seed in (1, 2))
    assert not {layout_key(bag) for bag in one} & {layout_key(bag) for bag in two}
    assert sum(bag.label or 0 for bag in two) == 150


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("mnist-colage",), {}, "Did you mean 'mnist-collage'"),
        (("mnist-collage", "cleen"), {}, "Did you mean 'clean'"),
        (("mnist-collage", "clean", "test-larg"), {}, "Did you mean 'test-large'"),
        (("mnist-collage", "published", "val"), {}, "unknown split of the published protocol 'val'"),
        (("mnist-bags", "published"), {}, "no published split"),
        (("mnist-collage",), {"treshold": 60}, "Did you mean 'threshold'"),
        (("mnist-collage",), {"targets": (0, 11)}, "digits from 0 to 9"),
        (("mnist-collage",), {"targets": (0, 1, 2)}, "two digits"),
        (("mnist-collage",), {"n_bags": 1}, "at least 2"),
        (("mnist-collage",), {"collage_size": 20}, "more than a digit"),
        (("mnist-collage",), {"threshold": 0}, "positive threshold"),
        (("mnist-collage",), {"bag_size_mean": 1}, "mean of at least 2"),
        (("mnist-collage",), {"min_distance": 150}, "do not fit into a collage of 256 px"),
        (("mnist-collage-inv",), {"threshold": 400}, "no bag of .* with label 1"),
        (("mnist-bags",), {"targets": (1, 2, 3, 4), "bag_size_mean": 2, "bag_size_std": 0}, "no bag of 2 digits"),
        (("mnist-collage",), {"n_bags": 2000}, "MNIST digits that are not part of the package.*--mnist-dir"),
    ],
)
def test_bad_requests_say_what_to_do(arguments: tuple[str, ...], options: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        dasmil.load_dataset(*arguments, **options)


def test_only_digits_can_be_drawn():
    bag = Bag(features=torch.zeros(3, 5), coords=torch.zeros(3, 2), unit="um", bag_id="slide")
    with pytest.raises(InputError, match="expected MNIST digits"):
        collage_image(bag)
