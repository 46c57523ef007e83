"""`dasmil --version --verbose`: what computes here, for an issue or a methods section."""

from __future__ import annotations


def show() -> int:
    from dasmil.bench.device import about
    from dasmil.devices import choose_device

    for name, value in about(choose_device("auto")).items():
        print(f"{name}: {value}")
    return 0
