"""Weights from a file: only plain tensors, with a checksum, and exactly those that the network has."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dasmil.errors import DataError, InputError
from dasmil.files import need_readable


@dataclass(frozen=True)
class Weights:
    """A state dict, the file it came from and the file's checksum."""

    path: Path
    sha256: str
    state: dict[str, Tensor]


def read_weights(path: str | Path) -> Weights:
    """Read safetensors, or a PyTorch checkpoint that holds nothing but tensors; no code in it is ever run.

    A state dict below "model" or "state_dict" is found, and a common prefix "module." is taken off.
    """
    path = Path(path)
    if not path.is_file():
        found = "is a folder, expected a file (.safetensors or .pth)" if path.is_dir() else "no such file"
        raise InputError(f"weights {path}: {found}")
    need_readable(path)
    state: Any
    if path.suffix == ".safetensors":
        try:
            state = load_file(path)
        except (SafetensorError, OSError) as error:
            raise DataError(f"weights {path}: not a readable safetensors file ({error})") from None
    else:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            # PyTorch's message is many lines of advice to switch the protection off; its own words are left out.
            raise DataError(
                f"weights {path}: hold pickled Python objects besides tensors, or are no PyTorch checkpoint. Such "
                "files can run code, so they are not loaded: save the plain state dict as .safetensors"
            ) from error
        except Exception as error:  # any bytes can be there, and the reader fails on them in any way
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(f"weights {path}: not a readable PyTorch checkpoint ({reason})") from error
    return Weights(path, file_sha256(path), _state_dict(path, state))


def file_sha256(path: Path) -> str:
    """Checksum of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _state_dict(path: Path, state: Any) -> dict[str, Tensor]:
    for key in ("model", "state_dict"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not state:
        raise DataError(f"weights {path}: hold {type(state).__name__}, expected a state dict of named tensors")
    other = [str(key) for key, value in state.items() if not isinstance(value, Tensor)]
    if other:
        raise DataError(f"weights {path}: {_some(other)} are not tensors, expected a state dict of named tensors")
    names = [str(key) for key in state]
    prefix = "module." if all(name.startswith("module.") for name in names) else ""
    return {name.removeprefix(prefix): value for name, value in zip(names, state.values())}


def misfit(network: nn.Module, state: Mapping[str, Tensor]) -> str | None:
    """What keeps a state dict from fitting a network, in one line; None if it fits exactly."""
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    # An old checkpoint may lack the counters of batch normalisation, which do not matter for features.
    missing = [name for name in expected if name not in state and not name.endswith("num_batches_tracked")]
    extra = [name for name in state if name not in expected]
    shapes = [
        f"{name} {tuple(state[name].shape)} instead of {shape}"
        for name, shape in expected.items()
        if name in state and tuple(state[name].shape) != shape
    ]
    parts = [
        f"{len(names)} {what}: {_some(names)}"
        for names, what in ((missing, "missing"), (extra, "unknown"), (shapes, "of another shape"))
        if names
    ]
    return "; ".join(parts) or None


def load_weights(name: str, network: nn.Module, weights: Weights, state: Mapping[str, Tensor] | None = None) -> None:
    """Put weights (or the converted state) into a network; anything missing, unknown or misshapen is an error."""
    state = weights.state if state is None else state
    problem = misfit(network, state)
    if problem:
        raise DataError(f"weights {weights.path} do not fit encoder {name!r}: {problem}")
    bad = [key for key, value in state.items() if value.is_floating_point() and not torch.isfinite(value).all()]
    if bad:
        raise DataError(f"weights {weights.path}: NaN or infinite values in {_some(bad)}; the file is damaged")
    network.load_state_dict(dict(state), strict=False)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
