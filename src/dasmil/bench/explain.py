"""`dasmil bench explain`: an exact account of one very large bag beside the model's own forward pass."""

from __future__ import annotations

import json as json_module
import resource
import sys
import time
from dataclasses import asdict, dataclass
from typing import Annotated

from cyclopts import Parameter

from dasmil.bench.measure import in_fresh_process

TILES, FEATURES, MAX_MEMORY_GB = 100_000, 512, 1.0


@dataclass(frozen=True)
class Figures:
    """Seconds are CPU seconds of the process; memory is what the account needed beyond bag, model and forward pass."""

    tiles: int
    forward_seconds: float
    explain_seconds: float
    partners_seconds: float
    rows: int
    residual: float
    logit: float
    base_gb: float
    peak_gb: float

    @property
    def ratio(self) -> float:
        return self.explain_seconds / self.forward_seconds


def main(*, tiles: int = TILES, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Explain one bag with DAS-MIL's CAMELYON16 model and compare with the forward pass alone.

    Example: dasmil bench explain --tiles 100000

    Parameters
    ----------
    tiles
        Instances of the bag.
    json
        Print the figures as JSON.
    """
    figures = Figures(**in_fresh_process("dasmil.bench.explain", tiles))
    if json:
        print(json_module.dumps(asdict(figures) | {"ratio": figures.ratio}))
    else:
        print(
            f"{figures.tiles:,} tiles, {FEATURES} features, one thread, {figures.rows} rows of the attention computed"
        )
        print(f"forward pass           {figures.forward_seconds:8.2f} s")
        print(f"account, all in all    {figures.explain_seconds:8.2f} s   {figures.ratio:.2f} x the forward pass")
        print(f"partners of one tile   {figures.partners_seconds:8.3f} s")
        print(f"peak memory            {figures.peak_gb:8.2f} GB  ({figures.base_gb:.2f} GB before the account)")
        print(f"sum of contributions   off by {abs(figures.residual):.1e} of a logit of {figures.logit:.3f}")
    return 0 if figures.peak_gb - figures.base_gb <= MAX_MEMORY_GB and abs(figures.residual) < 1e-5 else 1


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(tiles: int) -> Figures:
    """One process, one thread: forward pass first, then the account from the start, then one more row."""
    import torch

    from dasmil.attribution import Account
    from dasmil.models import create_model
    from dasmil.types import Bag

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = create_model(
        "das-mil", in_features=FEATURES, hidden=10, out_features=16, distance_scale=2000.0, unit="um"
    ).eval()
    side = int(tiles**0.5) + 1
    grid = torch.arange(tiles)
    coords = torch.stack([grid % side, grid // side], 1).float() * 256.0
    bag = Bag(torch.randn(tiles, FEATURES), coords, "um", "bench")
    with torch.no_grad():
        start = time.process_time()
        model(bag.features, bag.coords)
        forward = time.process_time() - start
    base = _peak_gb()
    start = time.process_time()
    account = Account(model, bag)
    explanation = account.explain()
    explained = time.process_time() - start
    start = time.process_time()
    account.partners(tiles // 2)
    partners = time.process_time() - start
    rows = account.rows_computed()
    return Figures(tiles, forward, explained, partners, rows, explanation.residual, explanation.logit, base, _peak_gb())


if __name__ == "__main__":
    print(json_module.dumps(asdict(measure(int(sys.argv[1])))))
