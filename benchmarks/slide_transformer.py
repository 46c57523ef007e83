"""`dasmil bench slide-transformer`: the memory of a slide encoder on one very large slide, on the CPU."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from benchmarks.figures import Figures
from benchmarks.measure import in_fresh_process

FEATURES, STEP_UM = 768, 256.0


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
    The peak is that of a fresh process, with program, weights, gradients and the bag.

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
    reach = "all tiles see each other" if not radius_um else f"radius {radius_um:g} um"
    figures = Figures(
        "slide-transformer", f"slide-transformer, {layers} layers x 12 heads x 64, {FEATURES} features, {reach}"
    )
    tiles = {"train": (train_tiles, "forward + backward"), "forward": (forward_tiles, "forward")}
    for kind, (n, words) in tiles.items():
        found = in_fresh_process("benchmarks.slide_transformer", kind, n, layers, radius_um)
        name = f"{n:,} tiles, {words}"
        figures.add(f"{name}, peak memory", found["peak_gb"], "GB", goal=f"{kind}_gb")
        figures.add(f"{name}, memory before it", found["base_gb"], "GB")
        figures.add(f"{name}, time", found["seconds"], "CPU s")
    return figures.show(json=json)


def measure(kind: str, tiles: int, layers: int, radius: float) -> dict[str, Any]:
    """One step in this process."""
    import time

    import torch

    from dasmil.models import create_model
    from dasmil.train.plan import peak_memory

    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = {"layers": layers, "step": STEP_UM, "distance_scale": STEP_UM, "radius": radius or None}
    model = create_model("slide-transformer", in_features=FEATURES, **sizes).train(kind == "train")
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
