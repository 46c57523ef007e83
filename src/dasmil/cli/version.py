"""`dasmil --version --verbose`: what computes here, for an issue or a methods section."""

from __future__ import annotations


def show() -> int:
    from dasmil.devices import choose_device
    from dasmil.ops.device_check import about

    for name, value in about(choose_device("auto")).items():
        print(f"{name}: {value}")
    return 0
