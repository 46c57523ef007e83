"""The shipped digits and the original MNIST files: same bytes, and clear words about bad ones."""

from __future__ import annotations

import gzip
import hashlib
import struct
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

import dasmil
from dasmil.data.mnist.digits import SHA256, read_digits, read_idx_pair
from dasmil.errors import DataError


@pytest.fixture
def originals(tmp_path: Path) -> Path:
    """The test half of MNIST as original files, put together from the shipped digits: one raw, one compressed."""
    digits = read_digits("test")
    labels = struct.pack(">II", 2049, 10_000) + digits.labels.tobytes()
    images = struct.pack(">IIII", 2051, 10_000, 28, 28) + digits.images.tobytes()
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(labels)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(images, 1))
    return tmp_path


def test_the_shipped_test_digits_are_the_originals_byte_for_byte(originals: Path):
    content = gzip.decompress((originals / "t10k-images-idx3-ubyte.gz").read_bytes())
    assert hashlib.sha256(content).hexdigest() == SHA256["t10k-images-idx3-ubyte"]
    labels, images = read_idx_pair("test", originals)
    np.testing.assert_array_equal(labels, read_digits("test").labels)
    np.testing.assert_array_equal(images, read_digits("test").images)


def test_the_shipped_train_digits_know_their_class():
    digits = read_digits("train")
    assert len(digits.labels) == 60_000
    shipped = digits.rows[digits.rows >= 0]
    assert sorted(shipped) == list(range(len(digits.images)))
    assert (
        hashlib.sha256(struct.pack(">II", 2049, 60_000) + digits.labels.tobytes()).hexdigest()
        == (SHA256["train-labels-idx1-ubyte"])
    )


def test_the_package_data_stays_small_and_states_its_licence():
    folder = resources.files("dasmil.data.mnist")
    with resources.as_file(folder / "digits.npz") as path:
        assert path.stat().st_size < 5_000_000
    assert "CC BY-SA 3.0" in (folder / "README.md").read_text()


def test_original_files_give_the_same_bags_as_the_package(originals: Path):
    for ours, theirs in zip(
        dasmil.load_dataset("mnist-collage", split="test"),
        dasmil.load_dataset("mnist-collage", split="test", mnist_dir=str(originals)),
        strict=True,
    ):
        assert torch.equal(ours.features, theirs.features)
        assert torch.equal(ours.coords, theirs.coords)


def test_missing_folder_and_missing_file(tmp_path: Path, originals: Path):
    with pytest.raises(DataError, match="is not a folder"):
        dasmil.load_dataset("mnist-collage", split="test", mnist_dir=tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"has no file train-labels-idx1-ubyte or train-labels-idx1-ubyte\.gz"):
        dasmil.load_dataset("mnist-collage", split="train", mnist_dir=originals)


@pytest.mark.parametrize("damage", ["truncated", "not gzip", "other content", "truncated raw"])
def test_damaged_files_name_the_expected_checksum(originals: Path, damage: str):
    images, labels = originals / "t10k-images-idx3-ubyte.gz", originals / "t10k-labels-idx1-ubyte"
    expected = SHA256[images.stem]
    if damage == "truncated":
        images.write_bytes(images.read_bytes()[:100_000])
    elif damage == "not gzip":
        images.write_bytes(b"<html>404</html>")
    elif damage == "other content":
        images.write_bytes(gzip.compress(b"not digits"))
    else:
        labels.write_bytes(labels.read_bytes()[:-1])
        expected = SHA256[labels.name]
    with pytest.raises(DataError, match=expected):
        dasmil.load_dataset("mnist-collage", split="test", mnist_dir=originals)
