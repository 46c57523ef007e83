"""Checkpoints under the names of FEATHER and STAMP give the logits that their authors' programs computed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import dasmil
from dasmil.errors import DataError
from dasmil.models import MILModel

GOLDEN = Path(__file__).parents[1] / "golden"
ENTRIES: dict[str, Any] = {
    **json.loads((GOLDEN / "published.json").read_text()), **json.loads((GOLDEN / "recent.json").read_text()),
}  # fmt: skip
FEATHER = [
    f"model.{name}.{kind}"
    for name in ("patch_embed.0", "global_attn.attention_a.0", "global_attn.attention_b.0", "global_attn.attention_c",
                 "classifier")
    for kind in ("weight", "bias")
]  # fmt: skip


def stamp_names(alibi: bool) -> list[str]:
    names = ["class_token", "project_features.0.weight", "project_features.0.bias"]
    for layer in range(2):
        attention, forward = f"transformer.layers.{layer}.0", f"transformer.layers.{layer}.1"
        names += [f"{attention}.norm.weight", f"{attention}.norm.bias"]
        if alibi:
            names += [f"{attention}.mhsa.{kind}_encoders.{head}.{part}" for kind in ("query", "key", "value")
                      for head in range(4) for part in ("weight", "bias")]  # fmt: skip
            names += [f"{attention}.mhsa.attentions.{head}.bias_scale" for head in range(4)]
        else:
            names += [f"{attention}.mhsa.in_proj_weight", f"{attention}.mhsa.in_proj_bias"]
        last = "fc" if alibi else "out_proj"
        names += [f"{attention}.mhsa.{last}.{part}" for part in ("weight", "bias")]
        names += [f"{forward}.{place}.{part}" for place in (0, 1, 4) for part in ("weight", "bias")]
    return [*names, "transformer.norm.weight", "transformer.norm.bias", "mlp_head.0.weight", "mlp_head.0.bias"]


def by_formula(entry: str, names: list[str]) -> dict[str, Tensor]:
    shapes = [shape for _, shape in ENTRIES[entry]["parameters"]]
    found = {}
    for t, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        fan = math.prod(shape[1:]) if len(shape) >= 2 else 1
        values = torch.sin(0.37 * torch.arange(math.prod(shape), dtype=torch.float64) + t + 1) / math.sqrt(fan)
        found[name] = values.view(shape).float()
    return found


def bag(n: int) -> tuple[Tensor, Tensor]:
    i, j = torch.arange(n, dtype=torch.float64), torch.arange(32, dtype=torch.float64)
    x = torch.sin(0.7 * i[:, None] + 0.3 * j + 0.1 * i[:, None] * j)
    return x.float(), torch.stack([128 + 90 * torch.sin(1.3 * i), 128 + 90 * torch.cos(2.1 * i)], dim=1).float()


def difference(entry: str, case: str) -> float:
    logits = ENTRIES[entry]["cases"][case]["logits"]
    return logits[1] - logits[0]


def logit(model: MILModel, n: int) -> float:
    with torch.no_grad():
        return model(*bag(n)).logit.item()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_feather(suffix: str, prefix: str, tmp_path: Path) -> None:
    """Also with the two dots that MIL-Lab's own loader writes in front of downloaded names."""
    saved = by_formula("feather-abmil", FEATHER)
    saved = {name if not prefix else name.replace("model.", "model.."): value for name, value in saved.items()}
    path = tmp_path / f"feather{suffix}"
    save_file(saved, path) if suffix == ".safetensors" else torch.save(saved, path)
    model = dasmil.load_published(path)
    assert model.name == "feather"
    cases = ENTRIES["feather-abmil"]["cases"]
    for case in cases:
        assert logit(model, cases[case]["n"]) == pytest.approx(difference("feather-abmil", case), abs=1e-4)


def test_feather_without_its_classifier(tmp_path: Path) -> None:
    """As the weights are published; the slide features are those of the program."""
    saved = {name: value for name, value in by_formula("feather-abmil", FEATHER).items() if "classifier" not in name}
    torch.save(saved, tmp_path / "feather.bin")
    model = dasmil.load_published(tmp_path / "feather.bin", n_classes=3)
    case = next(iter(ENTRIES["feather-abmil"]["cases"].values()))
    x, coords = bag(case["n"])
    with torch.no_grad():
        output = model(x, coords)
        found = model.aggregator(x, coords, None, None).embedding[:8]
    assert output.logit.shape == (3,)
    torch.testing.assert_close(found, torch.tensor(case["slide_features_first8"]), atol=1e-5, rtol=1e-5)


def with_means(saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """The slopes and running means of all heads: other means than 57, and slopes that make up for it."""
    found = {}
    for layer in range(2):
        for head in range(4):
            place, factor = f"transformer.layers.{layer}.0.mhsa.attentions.{head}", 1.0 + layer + head / 4
            found[f"{place}.bias_scale"] = saved[f"{place}.bias_scale"] * factor
            found[f"{place}.scale_distance.running_mean"] = torch.tensor([57.0 * factor])
            found[f"{place}.scale_distance.items_so_far"] = torch.ones(1)
    return found


@pytest.mark.parametrize("alibi", [False, True])
def test_stamp(alibi: bool, tmp_path: Path) -> None:
    """As a checkpoint of its trainer: wrapped, with buffers; each head's running mean of distances is its own."""
    entry = "stamp-vit-alibi" if alibi else "stamp-vit"
    saved = by_formula(entry, stamp_names(alibi))
    saved |= with_means(saved) if alibi else {}
    wrapped = {f"model.{name}": value for name, value in saved.items()} | {"class_weights": torch.ones(2)}
    torch.save({"state_dict": wrapped, "epoch": 3}, tmp_path / "model.ckpt")
    model = dasmil.load_published(tmp_path / "model.ckpt", **({} if alibi else {"heads": 4}))
    assert model.name == "stamp-vit"
    cases = {case: found for case, found in ENTRIES[entry]["cases"].items() if case.endswith("_nomask")}
    assert cases
    for case, found in cases.items():
        assert logit(model, found["n"]) == pytest.approx(difference(entry, case), abs=1e-4)
    model.save_pretrained(tmp_path / "ours")
    again = dasmil.load_model(tmp_path / "ours")
    n = next(iter(cases.values()))["n"]
    assert logit(again, n) == logit(model, n)


def test_checkpoints_that_lack_a_part_are_refused(tmp_path: Path) -> None:
    saved = by_formula("stamp-vit-alibi", stamp_names(True))
    whole = saved | with_means(saved)
    for left_out, message in (("encoders.1.", r"heads \[0, 2, 3\]"), ("running_mean", "not of the same layers"),
                              ("mlp_head.0.bias", "missing classifier.bias")):  # fmt: skip
        torch.save({name: v for name, v in whole.items() if left_out not in name}, tmp_path / "model.ckpt")
        with pytest.raises(DataError, match=message):
            dasmil.load_published(tmp_path / "model.ckpt")
