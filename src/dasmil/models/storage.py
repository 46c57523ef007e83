"""Models on disk: one safetensors file with the configuration as JSON in its header; nothing in it is executed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dasmil import __version__
from dasmil.errors import WORD, DataError, InputError, named, shown
from dasmil.files import need_readable, write_tensors, write_text
from dasmil.models.sizes import sizes_only

if TYPE_CHECKING:
    from dasmil.models.base import MILModel

FORMAT = "dasmil-model"
FORMAT_VERSION = 1
MODEL_FILE = "model.safetensors"


def save(model: MILModel, path: Path) -> None:
    """Write the model to a temporary name in the same folder, then rename."""
    header = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "model": json.dumps({"name": model.name, "options": model.config}, sort_keys=True),
        "dasmil_version": __version__,
    }
    write_tensors(path, model.state_dict(), header)


def save_pretrained(model: MILModel, directory: Path) -> None:
    save(model, directory / MODEL_FILE)
    config = {"model": model.name, "options": model.config, "library_name": "dasmil", "format_version": FORMAT_VERSION}
    write_text(directory / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")


def read_model(path: str | Path) -> MILModel:
    """The model of a file, or of a folder that ``save_pretrained`` wrote, on the CPU and in evaluation mode."""
    from dasmil.models import STORED

    file = Path(path)
    file = file / MODEL_FILE if file.is_dir() else file
    if not file.is_file():
        raise InputError(f"{file} does not exist: expected a .safetensors file written by model.save")
    need_readable(file)
    with _opened(file) as reader:
        name, options = _description(file, reader.metadata() or {})
        if name not in STORED:
            raise DataError(
                f"{file} holds a model named {shown(name)}, which this dasmil ({__version__}) does not know"
            )
        try:
            with sizes_only():  # nothing is allocated before the sizes are known to match
                model = STORED[name](**options)
        except (TypeError, ValueError) as error:
            raise DataError(f"{file}: its configuration does not make a {name} model: {error}") from error
        expected = model.state_dict()
        _check_tensors(file, expected, reader)
        tensors = {key: reader.get_tensor(key).clone() for key in expected}
    model.load_state_dict(_one_type(tensors), assign=True)
    return model.eval()


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """The file with its header read and nothing else; what is wrong with it is one clear error."""
    try:
        with safe_open(file, framework="pt") as reader:
            yield reader
    except (SafetensorError, OSError, MemoryError) as error:
        raise DataError(
            f"{file} is not a readable safetensors file ({str(error)[:WORD]}): expected a file written by model.save"
        ) from error


def _description(file: Path, header: dict[str, str]) -> tuple[str, dict[str, Any]]:
    if header.get("format") != FORMAT:
        raise DataError(
            f"{file} was not written by dasmil (its header says {shown(header.get('format'))}, expected {FORMAT!r})"
        )
    if header.get("format_version") != str(FORMAT_VERSION):
        raise DataError(
            f"{file} has format version {shown(header.get('format_version'))}, this dasmil ({__version__}) reads "
            f"{FORMAT_VERSION}: use the dasmil that wrote it ({shown(header.get('dasmil_version'))})"
        )
    try:
        description = json.loads(header["model"])
        return str(description["name"]), dict(description["options"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: the configuration in its header is broken ({shown(error)})") from error


def _check_tensors(file: Path, expected: dict[str, Tensor], reader: Any) -> None:
    """Names, shapes and number types as the header of the file declares them, before a tensor is read."""
    complaints: list[str] = []
    found: list[str] = list(reader.keys())
    if missing := sorted(expected.keys() - set(found)):
        complaints.append(f"missing tensors: {named(missing)}")
    if extra := sorted(set(found) - expected.keys()):
        complaints.append(f"unexpected tensors: {named(extra)}")
    for key in sorted(expected.keys() & set(found)):
        part, like = reader.get_slice(key), expected[key]
        shape, kind = tuple(part.get_shape()), str(part.get_dtype())
        if shape != tuple(like.shape):
            complaints.append(f"{key} has shape {shown(shape)}, expected {tuple(like.shape)}")
        elif like.is_floating_point() and kind not in _FLOATS:
            complaints.append(f"{key} holds {kind} numbers, expected one of {', '.join(_FLOATS)}")
        elif not like.is_floating_point() and kind[:1] not in "IUB":
            complaints.append(f"{key} holds {kind} numbers, expected whole ones")
    if complaints:
        more = f"; and {len(complaints) - 5} more" if len(complaints) > 5 else ""
        raise DataError(f"{file} does not match its configuration; {'; '.join(complaints[:5])}{more}")


_FLOATS = ("F32", "F64", "F16", "BF16")


def _one_type(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All parameters in one type that every layer computes with: float64 where all are, else float32."""
    floats = {value.dtype for value in tensors.values() if value.is_floating_point()}
    dtype = torch.float64 if floats == {torch.float64} else torch.float32
    return {key: value.to(dtype) if value.is_floating_point() else value for key, value in tensors.items()}
