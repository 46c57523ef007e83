"""`dasmil bench attention`: distance-aware attention beside its naive form and beside plain attention.

Every measurement runs in a fresh process, and the sides of a ratio take turns in it. d = 10, o = 16 as for CAMELYON16.
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

D, O = 10, 16  # noqa: E741  # the paper's sizes of keys and values
SMALL = 1000


def main(
    *,
    quick: Annotated[bool, Parameter(negative="")] = False,
    threads: int = 2,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Time, memory and error of the attention backends, forward and backward, on one thread.

    Times are CPU seconds, the best of several; "naive" makes the n x n x d tensors of the equations (6 GB at n = 4000),
    "plain" is PyTorch's scaled_dot_product_attention without distances, on the same queries, keys and values.

    Example: dasmil bench attention --quick

    Parameters
    ----------
    quick
        Small bags only: about half a minute and half a gigabyte.
    threads
        How many threads to compare with one.
    json
        Print the figures as JSON.
    """
    me = "benchmarks.attention"
    sizes = [SMALL, 4000] if quick else [SMALL, 4000, 6000, 50_000]
    with_naive = [SMALL] if quick else [SMALL, 4000]
    times: dict[str, dict[str, float]] = {}
    memory: dict[str, dict[str, float]] = {}
    for n in sizes:
        names = [
            "native",
            "plain",
            *(["chunked"] if n <= (SMALL if quick else 6000) else []),
            *(["naive"] if n in with_naive else []),
        ]
        times[str(n)] = in_fresh_process(me, "time", n, D, O, 1, *names)
        watched = names if n == sizes[-1] or n in with_naive else []
        memory[str(n)] = {name: in_fresh_process(me, "memory", n, D, O, 1, name)["mib"] for name in watched}
    error = in_fresh_process(me, "error", SMALL)
    title = "Forward + backward, one thread; stretch of errors: twice that of plain float32 PyTorch"
    details = {"seconds": times, "extra_mib": memory, "error": error}
    figures = Figures("attention", title, details=details)
    for n, found in times.items():
        for name, seconds in sorted(found.items(), key=lambda item: -item[1]):
            figures.add(f"{name}, n = {n}", seconds, "CPU s")
    for n, found in memory.items():
        for name, mib in found.items():
            goal = "mib_50000" if (n, name) == ("50000", "native") else None
            figures.add(f"{name}, n = {n}, extra memory", mib, "MiB", goal=goal)
    top = times[str(with_naive[-1])]
    for name in ("native", "chunked"):
        figures.add(
            f"{name}, relative to naive, n = {with_naive[-1]}", top["naive"] / top[name], "x", goal=f"{name}_gain"
        )
    for n in sizes:
        if n >= 4000:
            relative = times[str(n)]["native"] / times[str(n)]["plain"]
            figures.add(f"native, time relative to plain, n = {n}", relative, "x", goal="beside_plain")
    if not quick:
        wide = in_fresh_process(me, "time", 6000, 64, 64, 1, "native", "plain")
        relative = wide["native"] / wide["plain"]
        figures.add("the same, n = 6000, d = o = 64", relative, "x", goal="beside_plain_wide")
        speedup = in_fresh_process(me, "threads", 20_000, threads, threads=threads)["speedup"]
        figures.add(f"native, {threads} threads relative to one, n = 20000", speedup, "x", goal="threads")
        huge = in_fresh_process(me, "memory", 100_000, D, O, threads, "native", threads=threads)["mib"]
        figures.add(f"native, n = 100000, {threads} threads, extra memory", huge, "MiB", goal="mib_100000")
    figures.add_errors(error)
    return figures.show(json=json)


def naive(q: Tensor, k: Tensor, v: Tensor, coords: Tensor, theta: Tensor, beta: Tensor, embeds: list[Tensor]) -> Tensor:
    """The equations as one would write them first: distances once, then b_ij as n x n x d and n x n x o tensors."""
    import torch

    delta = (coords[:, None] - coords[None]).square().sum(-1).sqrt()
    phi = torch.sigmoid((delta - theta) * beta).unsqueeze(-1)
    b_k, b_q, b_v = (phi * u + (1 - phi) * w for u, w in (e[0] for e in embeds))
    q, k, v = q[0], k[0], v[0]
    e = q @ k.T + (q[:, None] * b_k).sum(-1) + (k[None] * b_q).sum(-1)
    weights = (e * 32**-0.5).softmax(-1)
    return (weights @ v + (weights.unsqueeze(-1) * b_v).sum(1))[None]


def _attention(
    backend: str, q: Tensor, k: Tensor, v: Tensor, coords: Tensor, theta: Tensor, beta: Tensor, embeds: list[Tensor]
) -> Tensor:
    """The naive form, or a backend of the operator."""
    from dasmil.ops import das_attention

    if backend == "naive":
        return naive(q, k, v, coords, theta, beta, embeds)
    named = dict(zip(("key_embed", "query_embed", "value_embed"), embeds))
    out = das_attention(q, k, v, coords, theta=theta, beta=beta, **named, scale=32**-0.5, backend=backend)
    assert not isinstance(out, tuple)
    return out


def _variants(n: int, d: int, o: int, names: list[str]) -> dict[str, Callable[[], Any]]:
    """Forward and backward of each variant on the same random bag on a grid."""
    import torch
    from torch.nn.functional import pad, scaled_dot_product_attention

    torch.manual_seed(0)
    side = int(n**0.5) + 1
    coords = torch.stack([torch.arange(n) // side, torch.arange(n) % side], -1) / side
    q, k, v = torch.randn(1, n, d), torch.randn(1, n, d), torch.randn(1, n, o)
    embeds = [torch.randn(1, 2, size) for size in (d, d, o)]
    theta, beta = torch.tensor([0.5]), torch.tensor([10.0])
    d_out = torch.randn(1, n, o)

    def ours(backend: str) -> Callable[[], Any]:
        leaves = [t.clone().requires_grad_() for t in (q, k, v, theta, beta, *embeds)]

        def run() -> None:
            a, b, c, t, s, *e = leaves
            out = _attention(backend, a, b, c, coords, t, s, e)
            torch.autograd.grad(out, leaves, d_out)

        return run

    # Zero columns change nothing, and only with equal sizes does PyTorch take its fast path.
    width = max(d, o)
    plain = [pad(t, (0, width - t.shape[-1]))[None].requires_grad_() for t in (q, k, v)]
    plain_d_out = pad(d_out, (0, width - o))[None]

    def run_plain() -> None:
        a, b, c = plain
        torch.autograd.grad(scaled_dot_product_attention(a, b, c, scale=32**-0.5), plain, plain_d_out)

    return {name: run_plain if name == "plain" else ours(name) for name in names}


def _error(n: int) -> dict[str, dict[str, float]]:
    """The largest error against float64, relative to the largest number of each tensor."""
    import torch

    torch.manual_seed(0)
    tensors = [
        torch.randn(1, n, D),
        torch.randn(1, n, D),
        torch.randn(1, n, O),
        torch.tensor([0.5]),
        torch.tensor([10.0]),
    ]
    tensors += [torch.randn(1, 2, size) for size in (D, D, O)]
    coords, d_out = torch.rand(n, 2), torch.randn(1, n, O)

    def run(backend: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = [t.to(dtype, copy=True).requires_grad_() for t in tensors]
        q, k, v, t, s, *e = leaves
        out = _attention(backend, q, k, v, coords.to(dtype), t, s, e)
        return [out, *torch.autograd.grad(out, leaves, d_out.to(dtype))]

    exact = run("reference", torch.float64)

    def errors(backend: str) -> dict[str, float]:
        worst = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(run(backend, torch.float32), exact)]
        return {"output": worst[0], "tensors": max(*worst[1:4], *worst[6:]), "scalars": max(worst[4:6])}

    return {"plain": errors("naive"), "native": errors("native"), "chunked": errors("chunked")}


def _threads(n: int, threads: int) -> dict[str, float]:
    import torch

    run = _variants(n, D, O, ["native"])["native"]

    def with_threads(count: int) -> Callable[[], None]:
        def both() -> None:
            torch.set_num_threads(count)
            run()

        return both

    seconds = best_of({"one": with_threads(1), "several": with_threads(threads)}, 5, wall=True)
    return {"speedup": seconds["one"] / seconds["several"], **seconds}


def _part(kind: str, *arguments: str) -> dict[str, Any]:
    """One measurement, in the process that `in_fresh_process` started."""
    import torch

    if kind == "error":
        return _error(int(arguments[0]))
    if kind == "threads":
        return _threads(int(arguments[0]), int(arguments[1]))
    n, d, o, threads = map(int, arguments[:4])
    names = list(arguments[4:])
    torch.set_num_threads(threads)
    if kind == "memory":
        _variants(64, d, o, names)[names[0]]()  # loads what is loaded on first use
        run = _variants(n, d, o, names)[names[0]]
        return {"mib": peak_extra_mib(run)}
    variants = _variants(n, d, o, names)
    slow = {name: variants.pop(name) for name in ("naive",) if name in variants}
    rounds = 10 if n <= 1000 else 7 if n <= 10_000 else 2
    return best_of(variants, rounds) | best_of(slow, 2)


if __name__ == "__main__":
    print(json_module.dumps(_part(*sys.argv[1:])))
