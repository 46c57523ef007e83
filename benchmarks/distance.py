"""`dasmil bench distance`: attention with a bias or a radius beside what is built from PyTorch's own parts.

Every measurement runs in a fresh process, and the sides of a ratio take turns in it.
"""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from benchmarks.figures import Figures
from benchmarks.measure import best_of, in_fresh_process, peak_extra_mib

if TYPE_CHECKING:
    from torch import Tensor

HEADS, WIDTH = 12, 64  # the shape of today's slide encoders
NARROW = 32
NEIGHBOURS = 80


def main(
    *,
    quick: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Time, memory and error of attention that knows distances by a bias or by a radius, on one thread.

    "dense" makes the bias of n x n numbers for each head and gives it to PyTorch's scaled_dot_product_attention;
    "edges" gathers and scatters over the list of neighbours. Times are CPU seconds, the best of several.

    Example: dasmil bench distance --quick

    Parameters
    ----------
    quick
        A tenth of the instances: about a minute and a gigabyte.
    json
        Print the figures as JSON.
    """
    me = "benchmarks.distance"
    n_bias, n_long, n_near, n_edges = (1000, 10_000, 100_000, 10_000) if quick else (4000, 100_000, 1_000_000, 100_000)
    dense_near = 25_000 // (3 if quick else 1)  # about the root of a tenth, for a tenth of the neighbours
    bias = in_fresh_process(me, "bias", n_bias)
    long = in_fresh_process(me, "long", n_long)
    near = in_fresh_process(me, "near", n_near, dense_near)
    edges = in_fresh_process(me, "edges", n_edges)
    error = in_fresh_process(me, "error", 1000)
    title = (
        f"Attention with a bias or a radius, one thread; about {NEIGHBOURS} neighbours within the radius; "
        "stretch of errors: twice that of plain float32 PyTorch"
    )
    details = {"seconds": {"bias": bias, "near": near, "edges": edges}, "error": error}
    figures = Figures("distance", title, details=details)
    shape = f"{HEADS} x {WIDTH}, n = {n_bias:,}, linear bias"
    figures.add(f"{shape}, forward, time relative to dense", bias["native"] / bias["dense"], "x", goal="bias_forward")
    relative = bias["native, both"] / bias["dense, both"]
    figures.add("the same, forward + backward", relative, "x", goal="bias_both")
    figures.add(f"{HEADS} x {WIDTH}, n = {n_long:,}, forward, extra memory", long["mib"], "MiB", goal="bias_mib")
    name = f"radius, n = {n_near:,}, forward + backward, time relative to dense n = {dense_near:,}"
    figures.add(name, near["radius"] / near["dense"], "x", goal="radius_time")
    figures.add(f"radius, n = {n_near:,}, extra memory", near["mib"], "MiB", goal="radius_mib")
    relative = edges["radius"] / edges["edges"]
    figures.add(f"radius, n = {n_edges:,}, time relative to edges", relative, "x", goal="beside_edges")
    figures.add_errors(error)
    return figures.show(json=json)


def _bag(n: int, heads: int, width: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """Queries, keys, values; places on a grid with steps of 1; an incoming gradient."""
    import torch

    torch.manual_seed(0)
    side = int(n**0.5) + 1
    coords = torch.stack([torch.arange(n) // side, torch.arange(n) % side], -1).float()
    return [torch.randn(heads, n, width) for _ in range(3)], coords, torch.randn(heads, n, width)


def _both(run: Callable[..., Tensor], leaves: list[Tensor], d_out: Tensor) -> Callable[[], object]:
    import torch

    wanted = [t.clone().requires_grad_() for t in leaves]
    return lambda: torch.autograd.grad(run(*wanted), wanted, d_out)


def _bias(n: int) -> dict[str, float]:
    """Dense bias and fused kernel, forward alone and with the gradients of queries, keys and values."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from dasmil.ops import alibi_attention, alibi_slopes

    tensors, coords, d_out = _bag(n, HEADS, WIDTH)
    slopes = alibi_slopes(HEADS)

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        distance = torch.cdist(coords, coords, compute_mode="donot_use_mm_for_euclid_dist")
        bias = slopes.view(-1, 1, 1) * -distance
        return scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=bias[None])[0]

    def native(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return alibi_attention(q, k, v, coords, slopes, backend="native")

    with torch.no_grad():
        forward = best_of({"dense": lambda: dense(*tensors), "native": lambda: native(*tensors)}, 3)
    both = {"dense, both": _both(dense, tensors, d_out), "native, both": _both(native, tensors, d_out)}
    return forward | best_of(both, 2)


def _long(n: int) -> dict[str, float]:
    import torch

    from dasmil.ops import alibi_attention, alibi_slopes

    small, coords, _ = _bag(64, HEADS, WIDTH)
    with torch.no_grad():
        q, k, v = small
        alibi_attention(q, k, v, coords, alibi_slopes(HEADS))  # loads what is loaded on first use
        (q, k, v), coords, _ = _bag(n, HEADS, WIDTH)
        return {"mib": peak_extra_mib(lambda: alibi_attention(q, k, v, coords, alibi_slopes(HEADS), backend="native"))}


def _radius() -> float:
    return (NEIGHBOURS / 3.14159) ** 0.5


def _near_call(n: int, radius: float | None) -> Callable[[], object]:
    from dasmil.ops import das_attention

    tensors, coords, d_out = _bag(n, 1, NARROW)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return das_attention(q, k, v, coords, scale=NARROW**-0.5, radius=radius, backend="native")

    return _both(run, tensors, d_out)


def _near(n: int, dense: int) -> dict[str, float]:
    _near_call(1000, _radius())()
    local = _near_call(n, _radius())
    mib = peak_extra_mib(local)
    times = best_of({"radius": local, "dense": _near_call(dense, None)}, 2)
    return times | {"mib": mib}


def _edges(n: int) -> dict[str, float]:
    """The same attention as sums over a list of neighbours, which is made beforehand and not timed."""
    import numpy as np
    import torch
    from scipy.spatial import KDTree

    tensors, coords, d_out = _bag(n, 1, NARROW)
    tree = KDTree(coords.numpy())
    pairs = tree.query_pairs(_radius() * 1.000001, output_type="ndarray")
    both = np.concatenate([pairs, pairs[:, ::-1], np.arange(n)[:, None].repeat(2, 1)])
    i, j = torch.from_numpy(np.ascontiguousarray(both.T)).unbind(0)

    def edges(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = (q[0][i] * k[0][j]).sum(-1) * NARROW**-0.5
        top = torch.full((n,), -torch.inf).scatter_reduce(0, i, e.detach(), "amax")
        weight = (e - top[i]).exp()
        total = torch.zeros(n).index_add(0, i, weight)
        return torch.zeros_like(v[0]).index_add(0, i, (weight / total[i]).unsqueeze(-1) * v[0][j])[None]

    return best_of({"edges": _both(edges, tensors, d_out), "radius": _near_call(n, _radius())}, 2)


def _error(n: int) -> dict[str, dict[str, float]]:
    """The largest error against float64 over all kinds of bias with a radius, relative to the largest number."""
    import torch

    from dasmil.ops import das_attention

    torch.manual_seed(0)
    tensors = [torch.randn(2, n, size) for size in (NARROW, NARROW, NARROW)]
    coords, d_out = torch.rand(n, 2), torch.randn(2, n, NARROW)
    edges = torch.tensor([0.1, 0.2, 0.4])

    def run(backend: str, bias: str, dtype: torch.dtype) -> list[Tensor]:
        parameter = torch.rand(2, 4) if bias == "bins" else torch.rand(2) + 0.3
        leaves = [t.to(dtype, copy=True).requires_grad_() for t in (*tensors, parameter)]
        more: dict[str, Any] = (
            {"bias_table": leaves[3], "bias_edges": edges.to(dtype)} if bias == "bins" else {"bias_scale": leaves[3]}
        )
        q, k, v, _ = leaves
        more |= {"scale": NARROW**-0.5, "bias": bias, "radius": 0.7, "backend": backend}
        out = das_attention(q, k, v, coords.to(dtype), **more)
        assert isinstance(out, torch.Tensor)
        return [out.detach(), *torch.autograd.grad(out, leaves, d_out.to(dtype))]

    def errors(backend: str) -> dict[str, float]:
        worst = [0.0, 0.0, 0.0]
        for bias in ("linear", "gaussian", "cauchy", "bins"):
            torch.manual_seed(1)
            exact = run("reference", bias, torch.float64)
            torch.manual_seed(1)
            found = [
                float((a - b).abs().max() / b.abs().max()) for a, b in zip(run(backend, bias, torch.float32), exact)
            ]
            worst = [max(w, f) for w, f in zip(worst, (found[0], max(found[1:4]), found[4]))]
        return dict(zip(("output", "tensors", "scalars"), worst))

    return {"plain": errors("reference"), "native": errors("native"), "chunked": errors("chunked")}


def _part(kind: str, *arguments: str) -> dict[str, Any]:
    """One measurement, in the process that `in_fresh_process` started."""
    import torch

    torch.set_num_threads(1)
    parts: list[Callable[..., dict[str, Any]]] = [_bias, _long, _near, _edges, _error]
    return {part.__name__.strip("_"): part for part in parts}[kind](*map(int, arguments))


if __name__ == "__main__":
    print(json_module.dumps(_part(*sys.argv[1:])))
