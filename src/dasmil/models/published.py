"""Weights that other programs trained: checkpoints of CLAM and of AB-MIL as models of ours, by their tensor names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dasmil.errors import DataError, InputError, named, shown
from dasmil.types import Unit

if TYPE_CHECKING:
    from dasmil.models.base import MILModel

# Published name -> name of ours. CLAM's attention stands behind a dropout layer (3) or, in older versions, not (2).
_CLAM = (
    (r"attention_net\.0\.(weight|bias)", r"aggregator.enter.\1"),
    (r"attention_net\.[23]\.attention_a\.0\.(weight|bias)", r"aggregator.tanh.\1"),
    (r"attention_net\.[23]\.attention_b\.0\.(weight|bias)", r"aggregator.gate.\1"),
    (r"attention_net\.[23]\.attention_c\.(weight|bias)", r"aggregator.weight.\1"),
    (r"classifiers\.(weight|bias)", r"classifier.\1"),
)
_ABMIL = (
    (r"feature_extractor_part2\.0\.(weight|bias)", r"encoder.linear.\1"),
    (r"attention\.0\.(weight|bias)", r"aggregator.tanh.\1"),
    (r"attention\.2\.(weight|bias)", r"aggregator.weight.\1"),
    (r"attention_V\.0\.(weight|bias)", r"aggregator.tanh.\1"),
    (r"attention_U\.0\.(weight|bias)", r"aggregator.gate.\1"),
    (r"attention_w\.(weight|bias)", r"aggregator.weight.\1"),
    (r"classifier\.0\.(weight|bias)", r"classifier.\1"),
)
_LEFT_OUT = re.compile(r"instance_loss_fn\..*|feature_extractor_part1\..*")
_ROW = re.compile(r"(classifiers|instance_classifiers)\.(\d+)\.(weight|bias)")


def load_published(path: str | Path, *, unit: Unit = "um") -> MILModel:
    """A checkpoint of CLAM (gated, single or multiple branches) or of AB-MIL (plain or gated) as a model of ours.

    Example: ``model = dasmil.load_published("s_0_checkpoint.pt"); model(features, coords).logit``

    Told by the names of its tensors, read without pickle. Two classes are one logit: that of class 1 minus that of
    class 0. Of AB-MIL for digits the convolutions are left out (ours are others): instances are what they give, 800
    numbers. unit: of the coordinates that bags will have; neither model looks at them.
    """
    file = Path(path)
    tensors = _read(file)
    clam = any(name.startswith("attention_net.") for name in tensors)
    found = _clam(file, tensors) if clam else _abmil(file, tensors)
    from dasmil.models import MODELS

    model = MODELS[found.model](**found.options, unit=unit)
    expected = model.state_dict()
    missing, extra = sorted(expected.keys() - found.tensors.keys()), sorted(found.tensors.keys() - expected.keys())
    if missing or extra:
        raise DataError(f"{file} does not make a {found.model}: missing {named(missing)}, not known {named(extra)}")
    for name, value in found.tensors.items():
        if value.shape != expected[name].shape:
            raise DataError(
                f"{file}: {name} has shape {tuple(value.shape)}, expected {tuple(expected[name].shape)} beside the rest"
            )
    model.load_state_dict(found.tensors)
    return model.eval()


@dataclass(frozen=True)
class _Found:
    """A model of ours by name, its options, and its tensors."""

    model: str
    options: dict[str, Any]
    tensors: dict[str, Tensor]


def _read(file: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by their published names, without the wrappings that trainers add."""
    if not file.is_file():
        raise InputError(f"{file} does not exist: expected a checkpoint (.pt, .pth) of CLAM or AB-MIL")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the reader of PyTorch has no error of its own for damaged bytes
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DataError(
            f"{file} cannot be read as plain tensors ({reason}); save its state_dict alone, without other objects"
        ) from None
    for name in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise DataError(f"{file} holds {type(content).__name__}, expected a state_dict: tensors by name")
    tensors = {str(name).removeprefix("module.").replace(".module.", "."): v for name, v in content.items()}
    return {name: _plain(file, name, value) for name, value in tensors.items() if not _LEFT_OUT.fullmatch(name)}


def _plain(file: Path, name: str, value: Tensor) -> Tensor:
    """A tensor of numbers as float32; one that is no plain array, or declares more than is stored, is refused."""
    odd = value.is_nested or value.layout != torch.strided or value.is_quantized or value.is_meta
    if odd or not value.is_floating_point():
        raise DataError(
            f"{file}: {shown(name)} is a tensor of {value.dtype} ({value.layout}), expected plain floating numbers"
        )
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise DataError(
            f"{file}: {shown(name)} declares {value.numel():,} numbers, more than are stored; save it again"
        )
    return value.float()


def _renamed(tensors: Mapping[str, Tensor], rules: tuple[tuple[str, str], ...]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, value in tensors.items():
        for pattern, ours in rules:
            if re.fullmatch(pattern, name):
                name = re.sub(pattern, ours, name)
                break
        found[name] = value
    return found


def _clam(file: Path, tensors: Mapping[str, Tensor]) -> _Found:
    if any(".module.0." in name for name in tensors) or not any("attention_a" in name for name in tensors):
        raise DataError(
            f"{file} is a CLAM model without gate (attention_a, attention_b), which is not among our models"
        )
    rows: dict[tuple[str, str], dict[int, Tensor]] = {}
    single: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if row := _ROW.fullmatch(name):
            rows.setdefault((row[1], row[3]), {})[int(row[2])] = value
        else:
            single[name] = value
    found = _renamed(single, _CLAM)
    joined = {key: _together(file, key, [parts[i] for i in sorted(parts)]) for key, parts in rows.items()}
    for kind in ("weight", "bias"):
        if ("instance_classifiers", kind) in joined:
            found[f"aggregator.instances.{kind}"] = joined["instance_classifiers", kind]
        if ("classifiers", kind) in joined:
            found[f"classifier.row_{kind}"] = joined["classifiers", kind]
    several = "classifier.row_weight" in found
    _need(file, found, "aggregator.enter.weight", "aggregator.tanh.weight", "aggregator.weight.weight")
    _need(file, found, "classifier.row_weight" if several else "classifier.weight")
    classes = len(found["classifier.row_weight" if several else "classifier.weight"])
    options = {**_sizes(found, "aggregator.enter.weight"), "hidden": len(found["aggregator.tanh.weight"])}
    if not several:
        _one_logit(found)
    return _Found("clam-mb" if several else "clam-sb", {**options, "n_classes": max(2, classes)}, found)


def _together(file: Path, key: tuple[str, str], parts: list[Tensor]) -> Tensor:
    """The rows of several classifiers as one tensor."""
    shapes = {tuple(part.shape) for part in parts}
    if len(shapes) > 1 or not parts[0].ndim:
        raise DataError(f"{file}: {'.'.join(key)} of the classes have shapes {shown(sorted(shapes))}: expected one")
    return torch.cat(parts)


def _abmil(file: Path, tensors: Mapping[str, Tensor]) -> _Found:
    found = _renamed(tensors, _ABMIL)
    _need(file, found, "aggregator.tanh.weight", "aggregator.weight.weight", "classifier.weight")
    hidden, features = found["aggregator.tanh.weight"].shape
    options: dict[str, Any] = {"hidden": hidden, "in_features": features, "encoder": "identity"}
    if "encoder.linear.weight" in found:
        inside = found["encoder.linear.weight"].shape[-1]
        options |= {"in_features": inside, "encoder": "linear-relu", "encoder_features": features}
    classes = max(2, len(found["classifier.weight"]))
    _one_logit(found)
    gated = "aggregator.gate.weight" in found
    return _Found("gated-ab-mil" if gated else "ab-mil", {**options, "n_classes": classes}, found)


def _sizes(found: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    features, inside = found[name].shape
    return {"features": features, "in_features": inside, "encoder": "identity"}


def _one_logit(found: dict[str, Tensor]) -> None:
    """Two logits as the one that their softmax is the sigmoid of."""
    for name in ("classifier.weight", "classifier.bias"):
        if name in found and len(found[name]) == 2:
            found[name] = found[name][1:] - found[name][:1]


def _need(file: Path, found: Mapping[str, Tensor], *names: str) -> None:
    lacking = [name for name in names if name not in found or found[name].ndim != 2 or 0 in found[name].shape]
    if lacking:
        raise DataError(
            f"{file} holds {named(found)}, expected the tensors of CLAM (attention_net.0.weight, ...) or of AB-MIL "
            f"(attention.0.weight or attention_V.0.weight, ..., classifier.0.weight): {lacking[0]} is missing"
        )
