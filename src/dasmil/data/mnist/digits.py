"""The digit images: the part of MNIST that travels with the package, or the four original files."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np

from dasmil.errors import DataError, InputError

SIDE = 28
"""Width and height of a digit in pixels."""

SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""SHA-256 of the four original files, uncompressed."""

_STEMS = {"train": "train", "test": "t10k"}
_HEADERS = {"images": 16, "labels": 8}


@dataclass(frozen=True, eq=False)
class Digits:
    """One half of MNIST: the labels of all its digits, and the images of those at hand.

    labels: [N] uint8; images: [m, 28, 28] uint8; rows: [N] the row of `images` that shows digit i, or -1.
    """

    labels: np.ndarray
    images: np.ndarray
    rows: np.ndarray

    def take(self, index: np.ndarray, what: str) -> np.ndarray:
        """The images [k, 28, 28] of the digits `index`; `what` names the bags in the error."""
        rows = self.rows[index]
        missing = int(np.unique(index[rows < 0]).size)
        if missing:
            raise InputError(
                f"{what} needs {missing} MNIST digits that are not part of the package, which carries those of the "
                "default sets only; give the folder with the four original MNIST files as mnist_dir (--mnist-dir)"
            )
        return self.images[rows]


@lru_cache(maxsize=4)
def read_digits(half: str, mnist_dir: Path | None = None) -> Digits:
    """Digits of MNIST "train" or "test": from the package, or in full from `mnist_dir`."""
    if mnist_dir is not None:
        labels, images = read_idx_pair(half, mnist_dir)
        return Digits(labels, images, np.arange(len(labels)))
    with (
        resources.as_file(resources.files("dasmil.data.mnist") / "digits.npz") as path,
        np.load(path, allow_pickle=False) as file,
    ):
        labels, images, index = (file[f"{half}_{name}"] for name in ("labels", "images", "index"))
    rows = np.full(len(labels), -1)
    rows[index] = np.arange(len(index))
    return Digits(labels, images, rows)


def read_idx_pair(half: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels [N] and images [N, 28, 28] of MNIST "train" or "test" from its original files, checked byte for byte."""
    stem = _STEMS[half]
    labels = _read_idx(folder, f"{stem}-labels-idx1-ubyte")[_HEADERS["labels"] :]
    images = _read_idx(folder, f"{stem}-images-idx3-ubyte")[_HEADERS["images"] :]
    return np.frombuffer(labels, np.uint8), np.frombuffer(images, np.uint8).reshape(-1, SIDE, SIDE)


def _read_idx(folder: Path, name: str) -> bytes:
    """The verified content of one original file, which may be gzip-compressed and may have a dot before "idx"."""
    if not folder.is_dir():
        raise DataError(f"mnist_dir {folder} is not a folder; expected the folder with the four original MNIST files")
    spellings = [name, name.replace("-idx", ".idx")]
    path = next((p for s in spellings for p in (folder / s, folder / f"{s}.gz") if p.is_file()), None)
    if path is None:
        raise DataError(
            f"{folder} has no file {name} or {name}.gz; expected the four original MNIST files {', '.join(SHA256)}"
        )
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{path} is damaged or truncated ({error}); uncompressed, it must have SHA-256 {SHA256[name]}: "
                "get it again"
            ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256[name]:
        raise DataError(
            f"{path} is not the original MNIST file: {len(content):,} bytes with SHA-256 {found}, "
            f"expected SHA-256 {SHA256[name]} (uncompressed); get it again"
        )
    return content
