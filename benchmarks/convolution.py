"""`dasmil bench convolution`: the fused convolution kernel of the MNIST encoder beside PyTorch's convolutions."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from benchmarks.figures import Figures
from benchmarks.measure import best_of, in_fresh_process

RUNS = (1, 5, 15)
IMAGES = 40  # about one collage


def main(*, rounds: int = 20, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Time of both blocks of the MNIST encoder, forward and backward, for 1, 5 and 15 stacked runs on one thread.

    "grouped" is what is used without the kernel: the same blocks by PyTorch, runs as groups of channels. "loop" calls
    PyTorch once a run. CPU time, best round; the difference is the largest of outputs and gradients against float64.

    Example: dasmil bench convolution

    Parameters
    ----------
    rounds
        Rounds in which all take turns; the best counts.
    json
        Print the figures as JSON.
    """
    measured = [in_fresh_process("benchmarks.convolution", runs, rounds) for runs in RUNS]
    title = f"{IMAGES} pictures a run, both blocks, forward and backward, one thread"
    figures = Figures("convolution", title, details={"runs": measured})
    for found in measured:
        runs, seconds = f"{found['runs']} runs", found["seconds"]
        for name in ("kernel", "grouped", "loop"):
            figures.add(f"{runs}, {name}", 1e3 * seconds[name], "CPU ms")
        for name in ("grouped", "loop"):
            figures.add(f"{runs}, kernel relative to {name}", seconds[name] / seconds["kernel"], "x")
        for name in ("kernel", "grouped"):
            figures.add(f"{runs}, {name}, error against float64", found["difference"][name])
    return figures.show(json=json)


def measure(runs: int, rounds: int) -> dict[str, Any]:
    """All ways in this process, in turn, on the same pictures and weights."""
    import torch
    from torch import Tensor

    from dasmil.errors import DasmilError
    from dasmil.ops.conv_pool import conv_pool, grouped, load

    if load() is None:
        raise DasmilError("there is no compiled kernel to measure: install dasmil again with a C++ compiler")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pictures = torch.rand(runs, IMAGES, 1, 28, 28)
    shapes = ((runs, 10, 1, 5, 5), (runs, 10), (runs, 20, 10, 5, 5), (runs, 20))
    weights = [torch.randn(shape) * 0.1 for shape in shapes]

    def step(block: Any, x: Tensor, given: list[Tensor]) -> list[Tensor]:
        w1, b1, w2, b2 = given = [w.detach().requires_grad_() for w in given]
        out = block(block(x, w1, b1), w2, b2)
        return [out.detach(), *torch.autograd.grad(out.square().mean(), given)]

    def loop() -> list[Tensor]:
        alone = [step(grouped, pictures[r : r + 1], [w[r : r + 1] for w in weights]) for r in range(runs)]
        return [torch.cat(parts) for parts in zip(*alone)]

    variants = {
        "kernel": lambda: step(conv_pool, pictures, weights),
        "grouped": lambda: step(grouped, pictures, weights),
        "loop": loop,
    }
    exact = step(grouped, pictures.double(), [w.double() for w in weights])
    difference = {
        name: max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(variants[name](), exact))
        for name in ("kernel", "grouped")
    }
    return {"runs": runs, "images": IMAGES, "seconds": best_of(variants, rounds), "difference": difference}


if __name__ == "__main__":
    print(json_module.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
