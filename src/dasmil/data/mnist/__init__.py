"""MNIST-BAGS, MNIST-COLLAGE and MNIST-COLLAGE-INV: toy bags whose truth is known exactly."""

from __future__ import annotations

from dasmil.data.mnist.layout import BagsRule, CollageRule
from dasmil.data.mnist.picture import collage_image, digit_images
from dasmil.data.mnist.splits import RULES, SPLITS, load_mnist

__all__ = ["RULES", "SPLITS", "BagsRule", "CollageRule", "collage_image", "digit_images", "load_mnist"]
