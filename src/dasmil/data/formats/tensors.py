"""Tensors and arrays of other tools: ``.pt`` without pickle, ``.npz`` and ``.npy`` by their headers."""

from __future__ import annotations

import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dasmil.data.memory import need_memory
from dasmil.errors import WORD, DataError, named


def load_tensor(path: Path, *, vector: bool = False) -> Tensor:
    """The features of a ``.pt`` file, [n, f]: mapped, not read. vector: also [f] of a whole slide."""
    try:
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except Exception as error:  # the reader of PyTorch has no error of its own for damaged bytes
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DataError(f"{path} cannot be read as a plain tensor ({reason}); export the bag again") from None
    if not isinstance(value, Tensor):
        raise DataError(f"{path} holds {type(value).__name__}, expected one tensor of features [n, f]")
    if value.is_nested or value.layout != torch.strided or value.is_quantized or value.is_complex() or value.is_meta:
        raise DataError(f"{path} holds a tensor of {value.dtype} ({value.layout}), expected plain numbers [n, f]")
    if value.ndim not in ((1, 2) if vector else (2,)) or 0 in value.shape:
        raise DataError(f"{path} holds {tuple(value.shape)}, expected one tensor of features [n, f]")
    stored, declared = value.untyped_storage().nbytes(), value.numel() * value.element_size()
    if declared > stored:
        raise DataError(
            f"{path} declares {' x '.join(map(str, value.shape))} features ({declared:,} bytes), but only {stored:,} "
            "bytes are stored; export the bag again"
        )
    need_memory(path, "features", 4 * value.numel())
    return value.detach().resolve_neg()


def _is_zip(path: Path) -> bool:
    """Whether the tensor can be mapped: files of old torch versions are no zip archives."""
    return path.is_file() and zipfile.is_zipfile(path)


def read_array(
    path: Path, member: str = "arr_0", *, rows: int | None = None, columns: tuple[int, int] | None = (2, 1000)
) -> tuple[tuple[int, ...], np.ndarray]:
    """The shape of an array of numbers as its header says, and its values where ``rows`` says how many there must be.

    member: of an archive (.npz). columns: fewest and most of a matrix; None for a list of numbers.
    """
    try:
        with ExitStack() as opened:
            stream: Any = opened.enter_context(path.open("rb"))
            if path.suffix == ".npz":
                archive = opened.enter_context(zipfile.ZipFile(stream))
                if f"{member}.npy" not in archive.namelist():
                    held = named(name.removesuffix(".npy") for name in archive.namelist())
                    raise DataError(f"{path} has no array {member!r}, it holds {held}: export it again")
                stream = opened.enter_context(archive.open(f"{member}.npy"))
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, columns_first, dtype = read(stream)
            fits = len(shape) == 1 if columns is None else len(shape) == 2 and columns[0] <= shape[1] <= columns[1]
            if not fits or min(shape) < 0 or dtype.kind not in "fiu":
                expected = "[n]" if columns is None else "[n, 2]"
                raise DataError(f"{path} holds an array of shape {shape} of {dtype}, expected numbers {expected}")
            if rows is None:
                return shape, np.empty((0, *shape[1:]))
            if shape[0] != rows:
                raise DataError(f"{path} holds {shape[0]} positions, expected {rows}: one for each row of features")
            data = np.frombuffer(stream.read(dtype.itemsize * int(np.prod(shape))), dtype)
            values = data.reshape(shape, order="F" if columns_first else "C")
    except DataError:
        raise
    except Exception as error:  # zip, NumPy's headers and the operating system each have errors of their own
        reason = str(error) or type(error).__name__
        raise DataError(f"{path} cannot be read as an array of positions: {reason[:WORD]}") from None
    return shape, np.asarray(values, dtype=np.float64)
