"""Checkpoints with the tensor names that CLAM and AB-MIL publish give the logits of those programs' equations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import dasmil
from dasmil.errors import DataError, InputError

N, F_IN, FEATURES, HIDDEN = 30, 12, 10, 6


def tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) / 3 for name, shape in shapes.items()}


def clam(place: int, classes: int, several: bool) -> dict[str, Tensor]:
    net, branches = f"attention_net.{place}", classes if several else 1
    shapes: dict[str, tuple[int, ...]] = {
        "attention_net.0.weight": (FEATURES, F_IN), "attention_net.0.bias": (FEATURES,),
        f"{net}.attention_a.0.weight": (HIDDEN, FEATURES), f"{net}.attention_a.0.bias": (HIDDEN,),
        f"{net}.attention_b.0.weight": (HIDDEN, FEATURES), f"{net}.attention_b.0.bias": (HIDDEN,),
        f"{net}.attention_c.weight": (branches, HIDDEN), f"{net}.attention_c.bias": (branches,),
    }  # fmt: skip
    for c in range(classes):
        shapes |= {f"instance_classifiers.{c}.weight": (2, FEATURES), f"instance_classifiers.{c}.bias": (2,)}
        if several:
            shapes |= {f"classifiers.{c}.weight": (1, FEATURES), f"classifiers.{c}.bias": (1,)}
    if not several:
        shapes |= {"classifiers.weight": (classes, FEATURES), "classifiers.bias": (classes,)}
    return tensors(shapes)


def clam_logits(t: dict[str, Tensor], place: int, x: Tensor) -> Tensor:
    """Lu et al. 2021, eqs. 1 to 3, written out with the published tensors: one logit a class."""
    net = f"attention_net.{place}"
    h = torch.relu(x @ t["attention_net.0.weight"].T + t["attention_net.0.bias"])
    a = torch.tanh(h @ t[f"{net}.attention_a.0.weight"].T + t[f"{net}.attention_a.0.bias"])
    b = torch.sigmoid(h @ t[f"{net}.attention_b.0.weight"].T + t[f"{net}.attention_b.0.bias"])
    attention = ((a * b) @ t[f"{net}.attention_c.weight"].T + t[f"{net}.attention_c.bias"]).softmax(0).T
    m = attention @ h
    if "classifiers.weight" in t:
        return (m @ t["classifiers.weight"].T + t["classifiers.bias"])[0]
    return torch.stack([m[c] @ t[f"classifiers.{c}.weight"][0] + t[f"classifiers.{c}.bias"][0] for c in range(len(m))])


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("place", [2, 3])
def test_clam(place: int, several: bool, classes: int, tmp_path: Path) -> None:
    saved = clam(place, classes, several)
    wrapped = {f"module.{name}": value for name, value in saved.items()}
    torch.save({**wrapped, "instance_loss_fn.labels": torch.zeros(2)}, tmp_path / "s_0_checkpoint.pt")
    model = dasmil.load_published(tmp_path / "s_0_checkpoint.pt")
    assert model.name == ("clam-mb" if several else "clam-sb")
    x = torch.randn(N, F_IN, generator=torch.Generator().manual_seed(1))
    expected = clam_logits(saved, place, x)
    expected = expected[1] - expected[0] if classes == 2 else expected
    with torch.no_grad():
        torch.testing.assert_close(model(x, torch.zeros(N, 2)).logit, expected, atol=1e-6, rtol=1e-6)
    rows = torch.cat([saved[f"instance_classifiers.{c}.weight"] for c in range(classes)])
    torch.testing.assert_close(model.state_dict()["aggregator.instances.weight"], rows)
    model.save_pretrained(tmp_path / "ours")
    again = dasmil.load_model(tmp_path / "ours")
    with torch.no_grad():
        torch.testing.assert_close(again(x, torch.zeros(N, 2)).logit, expected, atol=1e-6, rtol=1e-6)


def abmil(gated: bool, digits: bool) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"classifier.0.weight": (1, FEATURES), "classifier.0.bias": (1,)}
    if gated:
        shapes |= {"attention_V.0.weight": (HIDDEN, FEATURES), "attention_V.0.bias": (HIDDEN,)}
        shapes |= {"attention_U.0.weight": (HIDDEN, FEATURES), "attention_U.0.bias": (HIDDEN,)}
        shapes |= {"attention_w.weight": (1, HIDDEN), "attention_w.bias": (1,)}
    else:
        shapes |= {"attention.0.weight": (HIDDEN, FEATURES), "attention.0.bias": (HIDDEN,)}
        shapes |= {"attention.2.weight": (1, HIDDEN), "attention.2.bias": (1,)}
    if digits:
        shapes |= {"feature_extractor_part1.0.weight": (20, 1, 5, 5), "feature_extractor_part1.0.bias": (20,)}
        shapes |= {"feature_extractor_part2.0.weight": (FEATURES, F_IN), "feature_extractor_part2.0.bias": (FEATURES,)}
    return tensors(shapes)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("digits", [False, True])
def test_ab_mil(gated: bool, digits: bool, tmp_path: Path) -> None:
    """Ilse et al. 2018, eqs. 8 and 9, before the sigmoid; of digits from what the convolutions give."""
    saved = abmil(gated, digits)
    torch.save({"state_dict": saved}, tmp_path / "a.pth")
    model = dasmil.load_published(tmp_path / "a.pth")
    x = torch.randn(N, F_IN if digits else FEATURES, generator=torch.Generator().manual_seed(2))
    h = x
    if digits:
        h = torch.relu(x @ saved["feature_extractor_part2.0.weight"].T + saved["feature_extractor_part2.0.bias"])
    first = "attention_V.0" if gated else "attention.0"
    inner = torch.tanh(h @ saved[f"{first}.weight"].T + saved[f"{first}.bias"])
    if gated:
        inner = inner * torch.sigmoid(h @ saved["attention_U.0.weight"].T + saved["attention_U.0.bias"])
    last = "attention_w" if gated else "attention.2"
    a = (inner @ saved[f"{last}.weight"].T + saved[f"{last}.bias"]).softmax(0)
    expected = (a.T @ h @ saved["classifier.0.weight"].T + saved["classifier.0.bias"])[0, 0]
    with torch.no_grad():
        torch.testing.assert_close(model(x, torch.zeros(N, 2)).logit, expected, atol=1e-6, rtol=1e-6)


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("executed",))


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pt"
    with pytest.raises(InputError, match="does not exist"):
        dasmil.load_published(path)
    for content, message in (
        (Evil(), "cannot be read as plain tensors"),
        (torch.ones(3), "holds Tensor, expected a state_dict"),
        ({"layer.weight": torch.ones(3)}, r"holds layer\.weight, expected the tensors of CLAM"),
        ({"attention_net.3.module.0.weight": torch.ones(3, 3)}, "is a CLAM model without gate"),
        ({k: v for k, v in clam(3, 2, False).items() if "attention_b" not in k}, "does not make a clam-sb: missing"),
        ({**abmil(False, False), "attention.2.weight": torch.ones(1, 7)}, r"has shape \(1, 7\), expected \(1, 6\)"),
        ({**abmil(False, False), "more.weight": torch.ones(1)}, r"not known more\.weight"),
    ):
        torch.save(content, path)
        with pytest.raises(DataError, match=message):
            dasmil.load_published(path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match="cannot be read as plain tensors"):
        dasmil.load_published(path)
    assert "executed" not in capsys.readouterr().out
