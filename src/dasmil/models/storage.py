"""Models on disk: one safetensors file with the configuration as JSON in its header; nothing in it is executed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from dasmil import __version__
from dasmil.errors import DataError, InputError
from dasmil.files import replacing, write_text

if TYPE_CHECKING:
    from dasmil.models.base import MILModel

FORMAT = "dasmil-model"
FORMAT_VERSION = 1


def save(model: MILModel, path: Path) -> None:
    """Write the model to a temporary name in the same folder, then rename."""
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in model.state_dict().items()}
    header = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "model": json.dumps({"name": model.name, "options": model.config}, sort_keys=True),
        "dasmil_version": __version__,
    }
    with replacing(path) as temporary:
        temporary.write_bytes(_in_order(to_bytes(tensors, metadata=header)))


def _in_order(data: bytes) -> bytes:
    """The same file with its metadata sorted: safetensors shuffles it, and equal models should be equal files."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def save_pretrained(model: MILModel, directory: Path) -> None:
    save(model, directory / "model.safetensors")
    config = {"model": model.name, "options": model.config, "library_name": "dasmil", "format_version": FORMAT_VERSION}
    write_text(directory / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_model(path: str | Path) -> MILModel:
    """The model of a file, or of the first seed (and fold) of a run directory, on the CPU and in evaluation mode."""
    from dasmil.models import MODELS

    file = find_model(Path(path))
    header, tensors = _read(file)
    name, options = _description(file, header)
    if name not in MODELS:
        raise DataError(f"{file} holds a model named {name!r}, which this dasmil ({__version__}) does not know")
    try:
        with torch.device("meta"):  # sizes only: nothing is allocated before they are known to match
            model = MODELS[name](**options)
    except (TypeError, ValueError) as error:
        raise DataError(f"{file}: its configuration does not make a {name} model: {error}") from error
    _check_tensors(file, {key: value.shape for key, value in model.state_dict().items()}, tensors)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def find_model(path: Path) -> Path:
    """The model file that a path means: itself, or the first seed (of the first fold) of a run."""
    if path.is_file():
        return path
    if not path.exists():
        raise InputError(f"{path} does not exist: expected a .safetensors file or a run directory")
    if (path / "model.safetensors").is_file():
        return path / "model.safetensors"
    found = [*path.glob("seed-*/model.safetensors"), *path.glob("fold-*/seed-*/model.safetensors")]
    if not found:
        raise InputError(
            f"{path} holds no model: expected model.safetensors, seed-0/model.safetensors or fold-0/seed-0/..."
        )
    return min(found, key=lambda file: [int(number) for number in re.findall(r"-(\d+)", str(file.relative_to(path)))])


def _read(file: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(file, framework="pt") as reader:
            header = reader.metadata() or {}
            return header, {key: reader.get_tensor(key).clone() for key in reader.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise DataError(
            f"{file} is not a readable safetensors file ({error}): expected a file written by model.save"
        ) from error


def _description(file: Path, header: dict[str, str]) -> tuple[str, dict[str, Any]]:
    if header.get("format") != FORMAT:
        raise DataError(
            f"{file} was not written by dasmil (its header says {header.get('format')!r}, expected {FORMAT!r})"
        )
    if header.get("format_version") != str(FORMAT_VERSION):
        raise DataError(
            f"{file} has format version {header.get('format_version')!r}, this dasmil ({__version__}) reads "
            f"{FORMAT_VERSION}: use the dasmil that wrote it ({header.get('dasmil_version')})"
        )
    try:
        description = json.loads(header["model"])
        return str(description["name"]), dict(description["options"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: the configuration in its header is broken ({error!r})") from error


def _check_tensors(file: Path, expected: dict[str, torch.Size], found: dict[str, Tensor]) -> None:
    complaints = []
    if missing := sorted(expected.keys() - found.keys()):
        complaints.append(f"missing tensors: {', '.join(missing)}")
    if extra := sorted(found.keys() - expected.keys()):
        complaints.append(f"unexpected tensors: {', '.join(extra)}")
    for key in sorted(expected.keys() & found.keys()):
        if found[key].shape != expected[key]:
            complaints.append(f"{key} has shape {tuple(found[key].shape)}, expected {tuple(expected[key])}")
    if complaints:
        raise DataError(f"{file} does not match its configuration; {'; '.join(complaints)}")
