"""Weights that other programs trained: CLAM, AB-MIL, FEATHER and STAMP as models of ours, by their tensor names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
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
_FEATHER = (
    (r"patch_embed\.0\.(weight|bias)", r"aggregator.enter.\1"),
    (r"global_attn\.attention_a\.0\.(weight|bias)", r"aggregator.tanh.\1"),
    (r"global_attn\.attention_b\.0\.(weight|bias)", r"aggregator.gate.\1"),
    (r"global_attn\.attention_c\.(weight|bias)", r"aggregator.weight.\1"),
)
_STAMP = (
    (r"class_token", r"aggregator.token"),
    (r"project_features\.0\.(weight|bias)", r"aggregator.enter.\1"),
    (r"transformer\.layers\.(\d+)\.0\.norm\.(weight|bias)", r"aggregator.blocks.\1.norm.\2"),
    (r"transformer\.layers\.(\d+)\.0\.mhsa\.(?:out_proj|fc)\.(weight|bias)", r"aggregator.blocks.\1.attention.out.\2"),
    (r"transformer\.layers\.(\d+)\.1\.0\.(weight|bias)", r"aggregator.blocks.\1.norm2.\2"),
    (r"transformer\.layers\.(\d+)\.1\.1\.(weight|bias)", r"aggregator.blocks.\1.up.\2"),
    (r"transformer\.layers\.(\d+)\.1\.4\.(weight|bias)", r"aggregator.blocks.\1.down.\2"),
    (r"transformer\.norm\.(weight|bias)", r"aggregator.norm.\1"),
    (r"mlp_head\.0\.(weight|bias)", r"classifier.\1"),
)
_OF_A_HEAD = re.compile(
    r"transformer\.layers\.(\d+)\.0\.mhsa\.(?:(query|key|value)_encoders\.(\d+)\.(weight|bias)"
    r"|attentions\.(\d+)\.(bias_scale|scale_distance\.running_mean))"
)
_JOINED = re.compile(r"transformer\.layers\.(\d+)\.0\.mhsa\.in_proj_(weight|bias)")
_WRAPPED = re.compile(r"(module\.)?(model\.+|vision_transformer\.)?")
STAMP_HEADS = 8
_LEFT_OUT = re.compile(r"instance_loss_fn\..*|feature_extractor_part1\..*|class_weights|.*\.items_so_far")
_ROW = re.compile(r"(classifiers|instance_classifiers)\.(\d+)\.(weight|bias)")


def load_published(path: str | Path, *, unit: Unit = "um", heads: int = STAMP_HEADS, n_classes: int = 2) -> MILModel:
    """A checkpoint of CLAM (gated, single or multiple branches), AB-MIL (plain or gated), FEATHER or STAMP's ViT as a
    model of ours.

    Example: ``model = dasmil.load_published("s_0_checkpoint.pt"); model(features, coords).logit``

    A .safetensors file, or one of PyTorch that is read without pickle; told by the names of its tensors. Two classes
    are one logit: that of class 1 minus that of class 0. Of AB-MIL for digits the convolutions are left out (ours are
    others): instances are what they give, 800 numbers. unit: of the coordinates that bags will have; STAMP's are um.
    heads: of STAMP's transformer without ALiBi, whose checkpoint does not say it. n_classes: of a FEATHER checkpoint,
    which comes without a classifier: it gets a new one and has to be trained before its logit means anything.
    """
    file = Path(path)
    tensors = _read(file)
    if any(name.startswith("attention_net.") for name in tensors):
        found = _clam(file, tensors)
    elif "patch_embed.0.weight" in tensors:
        found = _feather(file, tensors, n_classes)
    elif "class_token" in tensors:
        found = _stamp(file, tensors, heads)
    else:
        found = _abmil(file, tensors)
    from dasmil.models import MODELS

    model = MODELS[found.model](**found.options, unit=unit)
    expected = {name: value for name, value in model.state_dict().items() if not name.startswith(found.made_anew)}
    missing, extra = sorted(expected.keys() - found.tensors.keys()), sorted(found.tensors.keys() - expected.keys())
    if missing or extra:
        raise DataError(f"{file} does not make a {found.model}: missing {named(missing)}, not known {named(extra)}")
    for name, value in found.tensors.items():
        if value.shape != expected[name].shape:
            raise DataError(
                f"{file}: {name} has shape {tuple(value.shape)}, expected {tuple(expected[name].shape)} beside the rest"
            )
    model.load_state_dict(found.tensors, strict=False)  # all that is expected is there
    return model.eval()


@dataclass(frozen=True)
class _Found:
    """A model of ours by name, its options, and its tensors."""

    model: str
    options: dict[str, Any]
    tensors: dict[str, Tensor]
    made_anew: tuple[str, ...] = ()
    """Beginnings of the names of tensors that the checkpoint does not have."""


def _read(file: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by their published names, without the wrappings that trainers add."""
    if not file.is_file():
        raise InputError(
            f"{file} does not exist: expected a checkpoint (.pt, .pth, .ckpt, .bin, .safetensors) of CLAM, AB-MIL, "
            "FEATHER or STAMP"
        )
    try:
        content: Any = (
            load_file(file)
            if file.suffix == ".safetensors"
            else torch.load(file, map_location="cpu", weights_only=True)
        )
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
    tensors = {_WRAPPED.sub("", str(name), count=1).replace(".module.", "."): v for name, v in content.items()}
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


def _feather(file: Path, tensors: Mapping[str, Tensor], n_classes: int) -> _Found:
    found = _renamed(tensors, _FEATHER)
    _need(file, found, "aggregator.enter.weight", "aggregator.tanh.weight", "aggregator.weight.weight")
    if "classifier.weight" in found:
        n_classes = max(2, len(found["classifier.weight"]))
        _one_logit(found)
    options = {**_sizes(found, "aggregator.enter.weight"), "hidden": len(found["aggregator.tanh.weight"])}
    made_anew = () if "classifier.weight" in found else ("classifier.",)
    return _Found("feather", {**options, "n_classes": n_classes}, found, made_anew)


def _stamp(file: Path, tensors: Mapping[str, Tensor], heads: int) -> _Found:
    """The program's own transformer: its bias behind the softmax, its token seen by all and at (0, 0).

    Each head divides distances by a running mean of its own; ours have one length, so the slopes take up the ratio.
    """
    single: dict[str, Tensor] = {}
    own: dict[tuple[int, str], dict[int, Tensor]] = {}
    for name, value in tensors.items():
        if of_head := _OF_A_HEAD.fullmatch(name):
            layer, kind, number, part, other, what = of_head.groups()
            key = f"attention.{kind}.{part}" if kind else "slopes" if what == "bias_scale" else "length"
            own.setdefault((int(layer), key), {})[int(number or other)] = value
        elif (joined := _JOINED.fullmatch(name)) and value.ndim and len(value) % 3 == 0:
            for kind, part in zip(("query", "key", "value"), value.chunk(3), strict=True):
                single[f"aggregator.blocks.{joined[1]}.attention.{kind}.{joined[2]}"] = part
        else:
            single[name] = value
    found = _renamed(single, _STAMP)
    scale = 1.0
    lengths = {layer: _by_head(file, parts) for (layer, key), parts in own.items() if key == "length"}
    sloped = {layer for layer, key in own if key == "slopes"}
    if sloped != lengths.keys() or (lengths and 0 not in lengths):
        raise DataError(f"{file}: bias_scale and running_mean are not of the same layers of the transformer, 0 on")
    if lengths:
        scale = float(lengths[0][0])
    for (layer, key), parts in own.items():
        if key != "length":
            value = _by_head(file, parts)
            found[f"aggregator.blocks.{layer}.{key}"] = value * scale / lengths[layer] if key == "slopes" else value
            heads = len(parts)
    _need(file, found, "aggregator.enter.weight", "aggregator.blocks.0.up.weight", "classifier.weight")
    layers = 1 + max(int(name.split(".")[2]) for name in found if name.startswith("aggregator.blocks."))
    options = {
        **_sizes(found, "aggregator.enter.weight"), "heads": heads, "layers": layers, "distance_scale": scale,
        "mlp": len(found["aggregator.blocks.0.up.weight"]), "alibi": "after" if lengths else "none",
        "n_classes": max(2, len(found["classifier.weight"])),
    }  # fmt: skip
    _one_logit(found)
    return _Found("stamp-vit", options, found)


def _by_head(file: Path, parts: Mapping[int, Tensor]) -> Tensor:
    """The tensors of all heads as one."""
    shapes = {tuple(part.shape) for part in parts.values()}
    if sorted(parts) != list(range(len(parts))) or len(shapes) > 1 or () in shapes:
        raise DataError(f"{file}: the attention has the heads {sorted(parts)}, expected 0, 1, ... of one size")
    return torch.cat([parts[head] for head in range(len(parts))])


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
            f"{file} holds {named(found)}, expected the tensors of CLAM (attention_net.0.weight, ...), AB-MIL "
            "(attention.0.weight or attention_V.0.weight, ..., classifier.0.weight), FEATHER (patch_embed.0.weight, "
            f"...) or STAMP (class_token, ...): {lacking[0]} is missing"
        )
