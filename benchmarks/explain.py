"""`dasmil bench explain`: the exact attribution of one very large bag beside the model's own forward pass."""

from __future__ import annotations

import json as json_module
import resource
import sys
import time
from typing import Annotated

from cyclopts import Parameter

from benchmarks.figures import Figures
from benchmarks.measure import in_fresh_process

TILES, FEATURES = 100_000, 512


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
    found = in_fresh_process("benchmarks.explain", tiles)
    title = f"{tiles:,} tiles, {FEATURES} features, one thread, {found['rows']} rows of the attention computed"
    figures = Figures("explain", title, details=found)
    figures.add("forward pass", found["forward_seconds"], "CPU s")
    figures.add("attribution, all in all", found["explain_seconds"], "CPU s")
    figures.add("relative to the forward pass", found["explain_seconds"] / found["forward_seconds"], "x")
    figures.add("partners of one tile", found["partners_seconds"], "CPU s")
    figures.add("memory beyond bag, model and forward pass", found["peak_gb"] - found["base_gb"], "GB", goal="extra_gb")
    figures.add("error of the sum of contributions", abs(found["residual"]), goal="residual")
    figures.notes.append(f"The logit is {found['logit']:.3f}.")
    return figures.show(json=json)


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(tiles: int) -> dict[str, float]:
    """One process, one thread: forward pass first, then the attribution from the start, then one more row."""
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
    return {
        "forward_seconds": forward,
        "explain_seconds": explained,
        "partners_seconds": partners,
        "rows": account.rows_computed(),
        "residual": explanation.residual,
        "logit": explanation.logit,
        "base_gb": base,
        "peak_gb": _peak_gb(),
    }


if __name__ == "__main__":
    print(json_module.dumps(measure(int(sys.argv[1]))))
