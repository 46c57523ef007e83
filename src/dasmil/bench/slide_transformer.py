"""`dasmil bench slide-transformer`: the memory of a slide encoder on one very large slide, on the CPU."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated, Any

from cyclopts import Parameter

FEATURES, STEP_UM = 768, 256.0
LIMITS_GB = {"train": 8.0, "forward": 4.0}


def main(
    *,
    train_tiles: int = 20_000,
    forward_tiles: int = 100_000,
    layers: int = 6,
    radius_um: float = 1000.0,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Measure peak memory and CPU time of slide-transformer, forward + backward and forward alone, on one thread.

    Memory hardly depends on the radius, which saves time: without one (--radius-um 0) the same takes minutes to hours.
    The peak is that of a fresh process, with program, weights, gradients and the bag. Exit code 1 above 8 GB (forward +
    backward) or 4 GB (forward).

    Example: dasmil bench slide-transformer --train-tiles 5000 --forward-tiles 20000

    Parameters
    ----------
    train_tiles
        Tiles of the slide that is trained on.
    forward_tiles
        Tiles of the slide that is only encoded.
    layers
        Blocks of the model.
    radius_um
        Of the attention; 0: all tiles see each other.
    json
        Print the figures as JSON.
    """
    from dasmil.bench.measure import in_fresh_process, number, table

    tiles = {"train": train_tiles, "forward": forward_tiles}
    rows = {
        kind: in_fresh_process("dasmil.bench.slide_transformer", kind, n, layers, radius_um)
        for kind, n in tiles.items()
    }
    if json:
        print(json_module.dumps({"layers": layers, "radius_um": radius_um, "limits_gb": LIMITS_GB, **rows}))
    else:
        words = {"train": "forward + backward", "forward": "forward"}
        lines = [
            (f"{tiles[kind]:,} tiles, {words[kind]}", f"{row['peak_gb']:.2f}", f"{LIMITS_GB[kind]:g}",
             f"{row['base_gb']:.2f}", number(row["seconds"]))
            for kind, row in rows.items()
        ]  # fmt: skip
        reach = "all tiles see each other" if not radius_um else f"radius {radius_um:g} um"
        print(f"slide-transformer, {layers} layers x 12 heads x 64, {FEATURES} features, {reach}:\n")
        print(table(("", "peak GB", "limit", "before it", "CPU s"), lines))
    return 0 if all(rows[kind]["peak_gb"] <= limit for kind, limit in LIMITS_GB.items()) else 1


def measure(kind: str, tiles: int, layers: int, radius: float) -> dict[str, Any]:
    """One step in this process."""
    import time

    import torch

    from dasmil.models import create_model
    from dasmil.train.plan import peak_memory

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = create_model(
        "slide-transformer", in_features=FEATURES, layers=layers, step=STEP_UM, distance_scale=STEP_UM,
        radius=radius or None,
    ).train(kind == "train")  # fmt: skip
    side = int(tiles**0.5) + 1
    coords = torch.stack([torch.arange(tiles) // side, torch.arange(tiles) % side], -1) * STEP_UM
    features = torch.randn(tiles, FEATURES)
    before, start = peak_memory(), time.process_time()
    if kind == "train":
        model(features, coords).logit.backward()
    else:
        with torch.inference_mode():
            model(features, coords)
    seconds = time.process_time() - start
    return {"tiles": tiles, "peak_gb": peak_memory() / 2**30, "base_gb": before / 2**30, "seconds": seconds}


if __name__ == "__main__":
    what, count, depth, reach = sys.argv[1:]
    print(json_module.dumps(measure(what, int(count), int(depth), float(reach))))
