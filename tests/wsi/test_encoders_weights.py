"""Weights: plain tensors only, and exactly the network's."""

from __future__ import annotations

import hashlib
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dasmil.errors import DataError, InputError
from dasmil.wsi.encoders.weights import load_weights, read_weights


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.rand(value.shape, generator=generator) if value.is_floating_point() else value
        for name, value in network().state_dict().items()
    }


def assert_loaded(loaded) -> None:
    target = network()
    load_weights("test", target, loaded)
    for name, value in state().items():
        assert torch.equal(target.state_dict()[name], value), name


@pytest.mark.parametrize("wrap", [dict, lambda s: {"model": s}, lambda s: {"state_dict": s, "epoch": 3}])
def test_checkpoints_of_pytorch(tmp_path, wrap):
    torch.save(wrap(state()), tmp_path / "w.pth")
    loaded = read_weights(tmp_path / "w.pth")
    assert_loaded(loaded)
    assert loaded.sha256 == hashlib.sha256((tmp_path / "w.pth").read_bytes()).hexdigest()


def test_safetensors_and_prefix(tmp_path):
    save_file({f"module.{name}": value for name, value in state().items()}, tmp_path / "w.safetensors")
    assert_loaded(read_weights(tmp_path / "w.safetensors"))


def test_half_precision_weights_are_used_in_full_precision(tmp_path):
    torch.save({name: value.half() if value.is_floating_point() else value for name, value in state().items()},
               tmp_path / "w.pth")  # fmt: skip
    target = network()
    load_weights("test", target, read_weights(tmp_path / "w.pth"))
    assert target[0].weight.dtype == torch.float32
    assert torch.equal(target[0].weight, state()["0.weight"].half().float())


def test_counters_of_batch_normalisation_may_be_missing(tmp_path):
    torch.save({k: v for k, v in state().items() if "num_batches" not in k}, tmp_path / "w.pth")
    assert_loaded(read_weights(tmp_path / "w.pth"))


def test_misfits_are_told_in_one_line(tmp_path):
    changed = state() | {"head.weight": torch.zeros(2), "0.weight": torch.zeros(4, 3, 5, 5)}
    del changed["0.bias"], changed["1.weight"]
    torch.save(changed, tmp_path / "w.pth")
    with pytest.raises(DataError) as caught:
        load_weights("test", network(), read_weights(tmp_path / "w.pth"))
    text = str(caught.value)
    assert "do not fit encoder 'test'" in text
    assert "2 missing: 0.bias, 1.weight" in text
    assert "1 unknown: head.weight" in text
    assert "0.weight (4, 3, 5, 5) instead of (4, 3, 3, 3)" in text
    assert "\n" not in text


def test_damaged_values(tmp_path):
    changed = state()
    changed["0.bias"][1] = float("nan")
    torch.save(changed, tmp_path / "w.pth")
    with pytest.raises(DataError, match=r"NaN or infinite values in 0\.bias"):
        load_weights("test", network(), read_weights(tmp_path / "w.pth"))


class Evil:
    ran = False

    def __reduce__(self):
        return (setattr, (Evil, "ran", True))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_code_in_a_checkpoint_is_never_run(tmp_path):
    torch.save({"model": state(), "args": Evil()}, tmp_path / "evil.pth")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps({"model": Evil()}))
    for name in ("evil.pth", "evil.pkl"):
        with pytest.raises(DataError, match="can run code, so they are not loaded") as caught:
            read_weights(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert not Evil.ran


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors", "w.bin"])
@pytest.mark.parametrize("content", [b"", b"not weights at all" * 50, b"PK\x03\x04 half a zip"])
def test_other_files(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"weights .*{name}") as caught:
        read_weights(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["slide,label\na,0\n", "<!doctype html>\n<html>", ""])
def test_a_text_file_is_no_checkpoint(tmp_path, text):
    (tmp_path / "w.pth").write_text(text)
    with pytest.raises(DataError, match=r"no PyTorch checkpoint|not a readable PyTorch checkpoint"):
        read_weights(tmp_path / "w.pth")


def test_truncated_checkpoint(tmp_path):
    torch.save(state(), tmp_path / "w.pth")
    whole = (tmp_path / "w.pth").read_bytes()
    (tmp_path / "w.pth").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not a readable PyTorch checkpoint"):
        read_weights(tmp_path / "w.pth")


def test_things_that_are_no_state_dict(tmp_path):
    torch.save([torch.zeros(3)], tmp_path / "list.pth")
    with pytest.raises(DataError, match="hold list, expected a state dict"):
        read_weights(tmp_path / "list.pth")
    torch.save({"a": torch.zeros(3), "lr": 0.1}, tmp_path / "mixed.pth")
    with pytest.raises(DataError, match="lr are not tensors"):
        read_weights(tmp_path / "mixed.pth")
    with pytest.raises(InputError, match="no such file"):
        read_weights(tmp_path / "none.pth")
