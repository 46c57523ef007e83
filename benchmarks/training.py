"""`dasmil bench training`: many runs at once against one bag at a time over the naive n x n x d attention."""

from __future__ import annotations

import json as json_module
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from benchmarks.figures import Figures
from benchmarks.measure import in_fresh_process

if TYPE_CHECKING:
    from dasmil.types import Bag

RUNS = (5, 15)
BAGS = 100  # bags of one measurement


def main(*, rounds: int = 5, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Bags per second, summed over runs, of 5 and of 15 DAS-MIL runs on MNIST-COLLAGE on one thread.

    The baseline is measured in the same process, in turn: a plain loop over the attention as the authors wrote it
    (distances known beforehand, b_ij as n x n x d tensors), torch layers and torch.optim.AdamW. CPU time, best round.

    Example: dasmil bench training

    Parameters
    ----------
    rounds
        Epochs of 100 bags that are measured; the best counts.
    json
        Print the figures as JSON.
    """
    measured = [in_fresh_process("benchmarks.training", runs, rounds) for runs in RUNS]
    figures = Figures("training", "DAS-MIL on MNIST-COLLAGE, one thread, CPU time", details={"runs": measured})
    figures.add("one bag at a time, naive attention", measured[0]["baseline"], "bags/s")
    for found in measured:
        runs = found["runs"]
        figures.add(f"{runs} runs at once", found["bags_per_second"], "bags/s")
        figures.add(f"{runs} runs at once, relative to one bag at a time", found["ratio"], "x", goal=f"gain_{runs}")
        figures.add(f"{runs} runs at once, peak memory", found["peak_mb"], "MB", goal="peak_mb")
    return figures.show(json=json)


def naive_model(options: dict[str, Any]) -> Any:
    """DAS-MIL from torch layers, as the authors' program computes it; parameters named as in the package's model."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F

    class NaiveModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            d, hidden = 32, options["hidden"]
            self.conv1, self.conv2, self.linear = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5), nn.Linear(320, d)
            self.query, self.key = nn.Linear(d, hidden, bias=False), nn.Linear(d, hidden, bias=False)
            self.value = nn.Linear(d, d, bias=False)
            self.key_embed, self.query_embed = (nn.Parameter(torch.randn(2, hidden)) for _ in range(2))
            self.value_embed = nn.Parameter(torch.randn(2, d))
            self.theta, self.beta = nn.Parameter(torch.tensor([0.5])), nn.Parameter(torch.tensor([10.0]))
            self.classifier = nn.Linear(d, 1)

        def forward(self, x: Tensor, delta: Tensor) -> Tensor:
            drop = self.training
            x = F.dropout2d(F.max_pool2d(F.relu(self.conv1(x)), 2), 0.1, drop)
            x = F.dropout(F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1), 0.5, drop)
            x = F.relu(self.linear(x))
            q, k, v = self.query(x), self.key(x), self.value(x)
            phi = torch.sigmoid((delta - self.theta) * self.beta).unsqueeze(-1)
            others = 1 - torch.eye(len(x)).unsqueeze(-1)  # no b_ii, as in the authors' graph without self-loops
            b_k, b_q, b_v = (
                others * (phi * e[0] + (1 - phi) * e[1]) for e in (self.key_embed, self.query_embed, self.value_embed)
            )
            e = (q.unsqueeze(1) * (k.unsqueeze(0) + b_k)).sum(-1) + (k.unsqueeze(0) * b_q).sum(-1)
            a = F.dropout((e / 32**0.5).softmax(-1), 0.1, drop)
            z = (a.unsqueeze(-1) * (v.unsqueeze(0) + b_v)).sum(1)
            return self.classifier(z.max(0).values)[0]

    return NaiveModel()


def naive_loop(bags: list[Bag]) -> Callable[[], float]:
    """A function that trains on every bag once and returns the CPU seconds."""
    import torch
    from torch.nn import functional as F

    from dasmil.models import create_model
    from dasmil.ops.das_attention.reference import pair_distances

    options = create_model("das-mil", preset="mnist-collage").config
    model = naive_model(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    data = [(b.features, pair_distances(b.coords) / options["distance_scale"], float(b.label or 0)) for b in bags]

    def once() -> float:
        begun = time.process_time()
        for features, delta, label in data:
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(features, delta), torch.tensor(label))
            loss.backward()
            optimizer.step()
        return time.process_time() - begun

    return once


def _measure(runs: int, rounds: int) -> dict[str, float]:
    """Train ``runs`` runs for some epochs, and the baseline between the epochs."""
    import resource

    import torch

    torch.set_num_threads(1)
    from dasmil.data import load_dataset
    from dasmil.train import Progress, fit

    bags = list(load_dataset("mnist-collage", split="train"))[:BAGS]
    baseline = naive_loop(bags)
    baseline()  # warm up
    ours: list[float] = []
    theirs: list[float] = []
    mark = time.process_time()

    def after(progress: Progress) -> None:
        nonlocal mark
        ours.append(time.process_time() - mark)
        theirs.append(baseline())
        mark = time.process_time()

    fit(
        "das-mil",
        bags,
        seeds=runs,
        preset="mnist-collage",
        epochs=rounds + 1,
        distance_init="model",
        distance_lr="common",
        restarts=0,
        device="cpu",
        on_epoch=after,
    )
    speed, base = runs * BAGS / min(ours[1:]), BAGS / min(theirs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"runs": runs, "bags_per_second": speed, "baseline": base, "ratio": speed / base, "peak_mb": peak}


if __name__ == "__main__":
    print(json_module.dumps(_measure(int(sys.argv[1]), int(sys.argv[2]))))
