"""What does not matter changes nothing: real commands on bags that are permuted, moved, turned, mirrored or renamed."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from calls import run

from dasmil.data.store import write_bag
from dasmil.types import Bag

N = 12
TURN = np.array([[np.cos(0.7), -np.sin(0.7)], [np.sin(0.7), np.cos(0.7)]])


def made(i: int) -> Bag:
    draw = np.random.default_rng(i)
    features, places = draw.normal(size=(30, 6)) + i % 2, draw.uniform(0, 2000, (30, 2))
    return Bag(torch.from_numpy(features).float(), torch.from_numpy(places).float(), "um", f"s{i:02d}")


def permuted(bag: Bag) -> Bag:
    order = torch.randperm(len(bag), generator=torch.Generator().manual_seed(1))
    return replace(bag, features=bag.features[order], coords=bag.coords[order])


def moved(bag: Bag) -> Bag:
    return replace(bag, coords=bag.coords + 5000)


def turned(bag: Bag) -> Bag:
    return replace(bag, coords=(bag.coords.double() @ torch.from_numpy(TURN)).float())


def mirrored(bag: Bag) -> Bag:
    return replace(bag, coords=bag.coords * torch.tensor([1.0, -1.0]))


def renamed(bag: Bag) -> Bag:
    return replace(bag, bag_id=f"z{99 - int(bag.bag_id[1:])}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("same")
    (folder / "bags").mkdir()
    for i in range(N):
        write_bag(folder / "bags" / f"s{i:02d}.h5", made(i))
    rows = [f"s{i:02d},{'ab'[i % 2]},{'train' if i < 8 else 'val'}" for i in range(N)]
    (folder / "labels.csv").write_text("\n".join(["slide,label,split", *rows]))
    few = ("--epochs", 1, "--set", "starts=1", "--set", "restarts=0", "--set", "simple_starts=0", "--no-baselines")
    bags = ("--bags", folder / "bags", "--labels", folder / "labels.csv")
    assert run("train", *bags, "--model", "das-mil", *few, "--out", folder / "run") == 0
    return folder


def logits(run_dir: Path, bags: Path, *more: object) -> dict[str, float]:
    out = bags.with_suffix(".p.csv")
    assert run("predict", run_dir, "--bags", bags, "-o", out, *more) == 0
    return {row["bag_id"]: float(row["logit"]) for row in csv.DictReader(out.open())}


@pytest.mark.parametrize("change", [permuted, moved, turned, mirrored, renamed])
def test_what_does_not_matter_changes_no_prediction(
    change: Callable[[Bag], Bag], trained: Path, tmp_path: Path
) -> None:
    (tmp_path / "bags").mkdir()
    names = {}
    for i in range(N):
        bag = change(made(i))
        names[bag.bag_id] = f"s{i:02d}"
        write_bag(tmp_path / "bags" / f"{bag.bag_id}.h5", bag)
    before, after = logits(trained / "run", trained / "bags"), logits(trained / "run", tmp_path / "bags")
    assert after.keys() == names.keys()
    np.testing.assert_allclose([after[name] for name in names], [before[old] for old in names.values()], atol=2e-4)
    assert len(set(before.values())) == N


def test_positions_matter(trained: Path, tmp_path: Path) -> None:
    """The other way round: what is looked at here is not blind to positions."""
    (tmp_path / "bags").mkdir()
    for i in range(N):
        bag = made(i)
        write_bag(tmp_path / "bags" / f"{bag.bag_id}.h5", replace(bag, coords=bag.coords * 2))
    before, after = logits(trained / "run", trained / "bags"), logits(trained / "run", tmp_path / "bags")
    assert max(abs(after[name] - before[name]) for name in before) > 1e-3
