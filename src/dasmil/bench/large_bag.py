"""`dasmil bench large-bag`: the memory of training DAS-MIL's CAMELYON16 model on one very large bag, on the CPU."""

from __future__ import annotations

import json as json_module
import sys
import time
from dataclasses import asdict, dataclass
from typing import Annotated

from cyclopts import Parameter

from dasmil.bench.measure import in_fresh_process

TILES, FEATURES, MAX_MEMORY_GB = 100_000, 768, 3.0


@dataclass(frozen=True)
class Figures:
    """One step of training on a bag of this many tiles (and one on a tiny bag of the other class)."""

    tiles: int
    peak_gb: float
    base_gb: float
    seconds: float
    loss: float


def main(
    *,
    tiles: int = TILES,
    threads: int | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Train DAS-MIL's CAMELYON16 model for one epoch with a bag of 100,000 tiles and print the peak memory.

    Example: dasmil bench large-bag

    Parameters
    ----------
    tiles
        Instances of the large bag (768 features each).
    threads
        Threads of PyTorch.
    json
        Print the figures as JSON.
    """
    figures = Figures(**in_fresh_process("dasmil.bench.large_bag", tiles, threads or 0, threads=threads))
    if json:
        print(json_module.dumps({**asdict(figures), "limit_gb": MAX_MEMORY_GB}))
    else:
        print(
            f"{figures.tiles:,} tiles x {FEATURES} features, das-mil (camelyon16), one epoch: {figures.seconds:.0f} s"
        )
        print(f"peak memory {figures.peak_gb:.2f} GB ({figures.base_gb:.2f} GB before it); limit {MAX_MEMORY_GB:g} GB")
    return 0 if figures.peak_gb <= MAX_MEMORY_GB else 1


def _measure(tiles: int, threads: int) -> Figures:
    import torch

    from dasmil.train.fit import fit
    from dasmil.train.plan import peak_memory
    from dasmil.types import Bag

    if threads:
        torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)

    def bag(n: int, label: int) -> Bag:
        features = torch.randn(n, FEATURES, generator=generator)
        return Bag(features, torch.rand(n, 2, generator=generator) * 20_000, "um", f"bag-{n}-{label}", label=label)

    small = [bag(16, 0), bag(16, 1)]
    fit("das-mil", small, preset="camelyon16", epochs=1, restarts=0, starts=1, progress=False)
    base = peak_memory()
    bags = [bag(tiles, 1), small[0]]
    started = time.perf_counter()
    runs = fit("das-mil", bags, preset="camelyon16", epochs=1, restarts=0, starts=1, progress=False)
    seconds = time.perf_counter() - started
    return Figures(tiles, peak_memory() / 1e9, base / 1e9, seconds, runs[0].train_loss)


if __name__ == "__main__":
    print(json_module.dumps(asdict(_measure(int(sys.argv[1]), int(sys.argv[2])))))
