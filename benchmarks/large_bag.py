"""`dasmil bench large-bag`: the memory of training DAS-MIL's CAMELYON16 model on one very large bag, on the CPU."""

from __future__ import annotations

import json as json_module
import sys
import time
from typing import Annotated

from cyclopts import Parameter

from benchmarks.figures import Figures
from benchmarks.measure import in_fresh_process

TILES, FEATURES = 100_000, 768


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
    found = in_fresh_process("benchmarks.large_bag", tiles, threads or 0, threads=threads)
    title = f"das-mil (camelyon16), one epoch with a bag of {tiles:,} tiles x {FEATURES} features"
    figures = Figures("large-bag", title, details=found)
    figures.add("peak memory", found["peak_gb"], "GB", goal="peak_gb")
    figures.add("memory before it", found["base_gb"], "GB")
    figures.add("time", found["seconds"], "s")
    return figures.show(json=json)


def _measure(tiles: int, threads: int) -> dict[str, float]:
    """One step of training on a bag of this many tiles, and one on a tiny bag of the other class."""
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
    peak = peak_memory() / 1e9
    return {"peak_gb": peak, "base_gb": base / 1e9, "seconds": seconds, "loss": runs[0].train_loss}


if __name__ == "__main__":
    print(json_module.dumps(_measure(int(sys.argv[1]), int(sys.argv[2]))))
