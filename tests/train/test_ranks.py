"""One run on several processes: the same weights as one process that adds up as many bags."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from toy import toy_bags

import dasmil
from dasmil.errors import InputError
from dasmil.train.feed import Feed
from dasmil.train.ranks import Ranks

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from toy import toy_bags
import dasmil
from dasmil.train.ranks import joined

torch.set_num_threads(1)
with joined("cpu") as ranks:
    assert ranks.world == 2
    sets = toy_bags(7), toy_bags(4, 1, prefix="val")
    settings = {"epochs": 3, "accumulate": 1, "memory_gb": float(sys.argv[3])}
    run = dasmil.fit("das-mil", *sets, **settings)[0]
    losses = torch.tensor([row["train_loss"] for row in run.history])
    torch.save({"weights": run.model.state_dict(), "losses": losses}, f"{sys.argv[2]}/{ranks.rank}.pt")
"""


@pytest.mark.parametrize("memory_gb", [1.0, 0.0], ids=["in memory", "read ahead"])
def test_two_processes_equal_one_that_accumulates_two_bags(tmp_path, memory_gb):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(script), str(Path(__file__).parent), str(tmp_path), str(memory_gb)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    sets = toy_bags(7), toy_bags(4, 1, prefix="val")
    run = dasmil.fit("das-mil", *sets, epochs=3, accumulate=2, memory_gb=memory_gb)[0]
    losses = torch.tensor([row["train_loss"] for row in run.history])
    for found in (first, second):
        torch.testing.assert_close(found["losses"], losses)
        for name, tensor in run.model.state_dict().items():
            torch.testing.assert_close(found["weights"][name], tensor)


def test_processes_share_the_bags_of_an_epoch():
    bags = toy_bags(7)
    feed = Feed(bags, torch.device("cpu"), memory_gb=0.0)
    whole = [int(step.bags[0]) for step in feed.epoch(np.random.default_rng(4), [np.random.default_rng(3)])]
    shares = [
        [int(step.bags[0]) for step in feed.epoch(np.random.default_rng(4), [np.random.default_rng(3)], Ranks(rank, 3))]
        for rank in range(3)
    ]
    assert shares == [whole[0::3], whole[1::3], whole[2::3]]


def test_more_processes_than_bags_are_refused():
    with pytest.raises(InputError, match="9 processes train on 7 bags"):
        Ranks(8, 9).check(7)
