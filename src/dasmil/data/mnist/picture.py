"""A collage drawn as a picture."""

from __future__ import annotations

import numpy as np

from dasmil.data.mnist.digits import SIDE
from dasmil.data.mnist.splits import MEAN, STD
from dasmil.errors import InputError
from dasmil.types import Bag


def digit_images(bag: Bag) -> np.ndarray:
    """The digits of a bag as they are in MNIST: uint8 [n, 28, 28], 0 = ground."""
    if tuple(bag.features.shape[1:]) != (1, SIDE, SIDE):
        raise InputError(
            f"bag {bag.bag_id!r} has features of shape {tuple(bag.features.shape)}, expected MNIST digits "
            f"[n, 1, {SIDE}, {SIDE}]: only those can be drawn"
        )
    pixels = bag.features[:, 0].numpy().astype(np.float64) * STD + MEAN
    return np.clip(np.rint(pixels * 255), 0, 255).astype(np.uint8)


def collage_image(bag: Bag) -> np.ndarray:
    """The collage as uint8 [size, size]; where digits overlap, the brighter pixel wins."""
    size = int(bag.metadata.get("collage_px", 256))
    picture = np.zeros((size, size), np.uint8)
    corners = np.rint(bag.coords.numpy() - SIDE / 2).astype(int).clip(0, size - SIDE)
    for image, (x, y) in zip(digit_images(bag), corners):
        patch = picture[y : y + SIDE, x : x + SIDE]
        np.maximum(patch, image, out=patch)
    return picture
