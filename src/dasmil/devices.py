"""Where to compute."""

from __future__ import annotations

import torch

from dasmil.errors import BackendError, InputError


def choose_device(device: str | torch.device) -> torch.device:
    """The device of that name; "auto" takes CUDA, then MPS, then the CPU."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if device == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise InputError(f"device is {str(device)!r}, expected auto, cpu, cuda, cuda:N or mps") from None
    there = {"cpu": True, "cuda": cuda and (chosen.index or 0) < max(torch.cuda.device_count(), 1), "mps": mps}
    if not there.get(chosen.type, False):
        have = ", ".join(name for name, usable in (("cuda", cuda), ("mps", mps), ("cpu", True)) if usable)
        raise BackendError(f"device {str(device)!r} is not available here (available: {have}): use auto or cpu")
    return chosen
