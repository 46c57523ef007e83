"""`dasmil bench`: the measurements of the folder benchmarks/, which is in the source tree and not in the wheel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

import dasmil
from dasmil.errors import InputError

app = App(name="bench", help_epilogue="Example: dasmil bench attention --quick")

BENCHES = {
    "attention": "Distance-aware attention beside its naive form and plain attention: time, memory, error.",
    "distance": "Attention with a bias or a radius beside dense biases and lists of edges: time, memory, error.",
    "models": "Memory and time of one very large bag, for the models that attend.",
    "convolution": "The fused convolution kernel of the MNIST encoder beside PyTorch.",
    "training": "Many runs trained at once beside one bag at a time.",
    "reading": "How often training reads its files, and the time until the first epoch.",
    "extract": "The slide pipeline beside a bare OpenSlide loop.",
    "large-bag": "Memory of training on one very large bag.",
    "slide-transformer": "Memory of a slide encoder on one very large slide.",
    "engine": "Workers beside a bare loop: cost of a unit, gain of a second worker.",
    "explain": "The attribution of one very large bag beside the model's forward pass.",
    "space": "A study of space on many sections of cells beside one of its fits.",
    "viewer": "One very large bag in the viewer, in a real browser: waiting times, frames, memory.",
}
SOURCE_TREE = Path(dasmil.__file__).resolve().parents[2]


def _missing(*_: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]) -> int:
    raise InputError(
        "the benchmarks are not installed with the package: get the source tree of dasmil (its folder benchmarks/), "
        "install from it with `pip install -e .` and call this again"
    )


if (SOURCE_TREE / "benchmarks" / "goals.toml").is_file():
    sys.path.append(str(SOURCE_TREE))
    for _bench, _help in BENCHES.items():
        app.command(f"benchmarks.{_bench.replace('-', '_')}:main", name=_bench, help=_help)
else:
    app.default(_missing)
