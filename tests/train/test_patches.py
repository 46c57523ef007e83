"""Instances that are pictures: RGB patches go through a small CNN that is trained with the model."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.nn import functional as F

import dasmil
from dasmil.cli import app
from dasmil.data.store import read_bag_info
from dasmil.errors import InputError
from dasmil.nn import patches as patches_module
from dasmil.nn.draws import Draws, drawing
from dasmil.nn.patches import PatchCnn
from dasmil.runs import read_baselines
from dasmil.train.augment import turn_patches
from dasmil.types import Bag

SIDE = 12


def made(number: int, n: int = 10) -> Bag:
    """Patches of noise; in positive bags three of them have a green square, in the others a red one."""
    draw = np.random.default_rng(number)
    pixels = draw.integers(100, 156, (n, SIDE, SIDE, 3)).astype(np.uint8)
    pixels[:3, 3:9, 3:9] = (40, 220, 40) if number % 2 else (220, 40, 40)
    facts = {"tile_um": 10.0, "mpp": 0.5, "encoder": "none"}
    return Bag(pixels, draw.uniform(0, 900, (n, 2)), "um", f"s{number:02d}", number % 2, metadata=facts)  # type: ignore[arg-type]


def test_pixels_have_their_colours_first(tmp_path: Path) -> None:
    pixels = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    bag = Bag(pixels, np.zeros((2, 2)), "um", "a")  # type: ignore[arg-type]
    assert bag.pixels
    np.testing.assert_array_equal(bag.features.numpy(), pixels.transpose(0, 3, 1, 2))
    same = Bag(bag.features, bag.coords, "um", "a")
    assert torch.equal(same.features, bag.features)
    dasmil.write_bag(tmp_path / "a.h5", bag)
    with h5py.File(tmp_path / "a.h5", "r+") as file:  # as somebody else may have stored it
        del file["features"]
        file["features"] = pixels
    assert read_bag_info(tmp_path / "a.h5").feature_shape == (3, 4, 5)
    assert torch.equal(dasmil.read_bag(tmp_path / "a.h5").features, bag.features)


@pytest.mark.parametrize(("side", "parameters"), [(8, 1_536), (27, 7_200), (32, 27_744), (64, 64_672), (224, 64_672)])
def test_the_layers_are_those_that_are_documented(side: int, parameters: int) -> None:
    assert sum(p.numel() for p in PatchCnn(side, 64, 0.0).parameters()) == parameters


def test_the_layer_is_the_plain_network_in_pieces_and_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    cnn = PatchCnn(16, 5, 0.0)
    x = torch.randint(0, 256, (7, 3, 16, 16), dtype=torch.uint8)

    def plain(own: PatchCnn) -> torch.Tensor:
        h = (x.float() - 127.5) / 63.75
        for conv in own.convs:
            h = F.max_pool2d(F.relu(conv(h)), 2)
        return F.relu(own.linear(h.mean((2, 3))))

    want = torch.autograd.grad(plain(cnn).square().sum(), list(cnn.parameters()))
    monkeypatch.setattr(patches_module, "PIECE", 3 * 16 * 16 * 16)  # three patches at once
    found = cnn(x)
    torch.testing.assert_close(found, plain(cnn))
    for a, b in zip(torch.autograd.grad(found.square().sum(), list(cnn.parameters())), want, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(cnn(x.float()), found)

    other = PatchCnn(16, 5, 0.0)
    runs = [dict(one.named_parameters()) for one in (cnn, other)]
    stacked = {name: torch.stack([run[name] for run in runs]) for name in runs[0]}
    both = torch.func.functional_call(cnn, stacked, (x.expand(2, *x.shape),))
    torch.testing.assert_close(both, torch.stack([plain(cnn), plain(other)]))


def test_patches_are_turned_and_mirrored_by_the_draws_of_their_run() -> None:
    x = torch.arange(2 * 200 * 3 * 4 * 4).reshape(2, 200, 3, 4, 4)
    versions = [torch.rot90(y, k, (-2, -1)) for y in (x, x.flip(-1)) for k in range(4)]
    with drawing(Draws.of([1], [2])):
        found = turn_patches(x)
    same = torch.stack([(found == version).flatten(2).all(-1) for version in versions])
    assert bool((same.sum(0) == 1).all()), "each patch is one of its eight versions"
    assert bool((same.sum((1, 2)) > 20).all()), "and all eight occur"
    with drawing(Draws.of([2])):
        assert torch.equal(turn_patches(x[1:]), found[1:]), "whatever is beside it"
    with pytest.raises(InputError, match="needs square pictures"):
        turn_patches(torch.zeros(2, 3, 4, 5))


def test_patches_are_learned(tmp_path: Path) -> None:
    bags = [made(number) for number in range(16)]
    (run,) = dasmil.fit(
        "das-mil", bags[:12], bags[12:], seeds=1, epochs=12, lr=3e-3, out=tmp_path, progress=False, restarts=0
    )
    assert run.model.config["encoder"] == "patch-cnn"
    assert run.model.config["in_features"] == SIDE
    stored = dasmil.Run.read(tmp_path)
    assert stored.config["training"]["augment"] == "patches"
    assert stored.summary["splits"]["val"]["mean"]["auroc"] == 1.0
    again = dasmil.load_model(tmp_path)
    want = stored.seeds[0].predictions("val").logits
    found = [float(again(bag.features[None], bag.coords[None]).logit) for bag in bags[12:]]
    np.testing.assert_allclose(found, want, atol=1e-4)
    account = dasmil.explain(again, bags[13])
    assert float(account.contributions.sum() + account.bias) == pytest.approx(float(account.logit), abs=1e-3)


def test_patches_from_files_to_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bags").mkdir()
    for number in range(16):
        dasmil.write_bag(tmp_path / "bags" / f"s{number:02d}.h5", made(number))
    rows = "".join(f"s{k:02d},{'tumour' if k % 2 else 'normal'}\n" for k in range(16))
    (tmp_path / "labels.csv").write_text("slide,label\n" + rows)

    def call(*arguments: object) -> str:
        assert app([str(a) for a in arguments], exit_on_error=False, result_action="return_value") in (0, None)
        return capsys.readouterr().out

    bags, run = tmp_path / "bags", tmp_path / "run"
    train = ("train", "--bags", bags, "--labels", tmp_path / "labels.csv", "--model", "mean-pool", "--epochs", 1)
    call(*train, "--out", run, "--set", "augment=none")
    assert dasmil.Run.read(run).config["training"]["augment"] == "none"
    call("predict", run, "--bags", bags, "-o", tmp_path / "p.csv")
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 17
    told = json.loads(call("explain", run, "--bag", "s01", "-o", tmp_path / "ex", "--json"))
    assert told["logit"] == pytest.approx(float(dasmil.explain_bag(run, "s01").explanation.logit))
    rules = read_baselines(run)  # of their colours: the same bags, the same table
    scored = dasmil.Run.read(run).summary["splits"]["val"]["n"]
    assert {rule["splits"]["val"]["n"] for rule in rules.values()} == {scored}
    told = json.loads(call("plan", "--bags", bags, "--model", "mean-pool", "--json"))
    assert [probe["n"] for probe in told["probes"]][:3] == [16, 32, 64]
    assert told["held_bytes"] == 4 * (3 * SIDE * SIDE + 2) * sum(len(made(k)) for k in range(16))
    wrong = ("train", "--data", "mnist-bags", "--set", "encoder=patch-cnn", "--out", tmp_path / "other")
    assert "takes square patches" in _refused(*wrong)


def _refused(*arguments: object) -> str:
    with pytest.raises(InputError) as found:
        app([str(a) for a in arguments], exit_on_error=False, result_action="return_value")
    return str(found.value)
