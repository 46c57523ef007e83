"""The one place where timm is imported, and with it torchvision."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType

import torch

from dasmil.errors import MissingDependencyError

_keep: list[torch.library.Library] = []  # an operator's schema lives as long as its library object


def installed() -> bool:
    """Whether timm is there, without importing it."""
    return find_spec("timm") is not None


def import_timm() -> ModuleType:
    """timm, with torchvision's import repaired where it would fail."""
    if not installed():
        raise MissingDependencyError("timm", "timm", "this encoder")
    _repair_torchvision()
    import timm

    return timm


def _repair_torchvision() -> None:
    """Declare two operators if torchvision's compiled ones do not load, as beside a CPU build of torch.

    torchvision registers functions for them while it is imported and fails without their schemas; encoders use neither.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _keep.append(library)
        import torchvision  # noqa: F401
