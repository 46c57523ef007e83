"""`dasmil bench`: measurements side by side, as ratios; each is a module of `dasmil.bench`."""

from __future__ import annotations

from cyclopts import App

app = App(name="bench", help_epilogue="Example: dasmil bench attention --quick")

BENCHES = {
    "attention": "Distance-aware attention beside its naive form and plain attention: time, memory, error.",
    "distance": "Attention with a bias or a radius beside dense biases and lists of edges: time, memory, error.",
    "models": "Memory and time of one very large bag, for the models that attend.",
    "convolution": "The fused convolution kernel of the MNIST encoder beside PyTorch.",
    "training": "Many runs trained at once beside one bag at a time.",
    "extract": "The slide pipeline beside a bare OpenSlide loop.",
    "large-bag": "Memory of training on one very large bag.",
    "slide-transformer": "Memory of a slide encoder on one very large slide.",
    "engine": "Workers beside a bare loop: cost of a unit, gain of a second worker.",
    "explain": "The account of one very large bag beside the model's forward pass.",
    "viewer": "One very large bag in the viewer, in a real browser: waiting times, frames, memory.",
}
FORMER = {"large-bag": "cohort"}
"""Benches that can still be called by an older name."""

for _bench, _help in BENCHES.items():
    _names = [_bench, FORMER[_bench]] if _bench in FORMER else _bench
    app.command(f"dasmil.bench.{_bench.replace('-', '_')}:main", name=_names, help=_help)
