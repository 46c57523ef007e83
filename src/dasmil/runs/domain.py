"""Feature moments of the training slides of a run: features.safetensors in its folder."""

from __future__ import annotations

from pathlib import Path

import torch

from dasmil.files import write_tensors
from dasmil.runs import layout
from dasmil.runs.schema import broken
from dasmil.stats.domain import Domain

NAMES = ("centre", "spread", "distances")


def write_domain(run: Path, domain: Domain) -> None:
    """Store it, whole or not at all."""
    write_tensors(run / layout.DOMAIN, {name: torch.as_tensor(getattr(domain, name)) for name in NAMES},
                  {"format": "dasmil-domain"})  # fmt: skip


def read_domain(run: Path) -> Domain | None:
    """What is stored; None for runs without."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    file = run / layout.DOMAIN
    if not file.is_file():
        return None
    try:
        found = load_file(file)
        return Domain(*(found[name].astype("float64") for name in NAMES))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise broken(file, f"it cannot be read ({error})") from None
