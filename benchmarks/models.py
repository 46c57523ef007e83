"""`dasmil bench models`: memory and time of one large bag, forward and backward, for the models that attend."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from benchmarks.figures import Figures
from benchmarks.measure import in_fresh_process, peak_extra_mib

MODELS = (
    "das-mil", "sa", "disc-rel-sa", "clam-sb", "clam-mb", "dsmil", "dtfd-mil", "ilra-mil", "sm-abmil", "patch-gcn",
    "camil", "psa-mil", "wikg", "rrt-mil", "long-mil", "transformer-mil", "stamp-vit", "gcn", "gat", "sa-alibi",
    "sa-rope", "transmil", "mean-mlp", "feather", "acmil", "aem", "nnmil", "abmilx", "gabmil", "snuffy",
    "mamba-mil", "2dmamba-mil", "span", "dgr-mil",
)  # fmt: skip
FEATURES, FIELD_UM, SCALE_UM = 768, 20_000.0, 500.0


def main(
    *, instances: int = 20_000, models: str | None = None, json: Annotated[bool, Parameter(negative="")] = False
) -> int:
    """Measure one large bag, forward and backward in training mode, on one thread: extra memory and CPU time.

    The settings are those of the preset camelyon16 where a model has it, else its own defaults with 768 features.
    Attention of all pairs takes minutes.

    Examples: dasmil bench models --instances 5000; dasmil bench models --models clam-sb,wikg

    Parameters
    ----------
    instances
        Instances of the bag.
    models
        Names of models, separated by commas; all that are built for large bags where none is given.
    json
        Print as JSON instead of a table.
    """
    from dasmil.errors import unknown_name
    from dasmil.models import MODELS as KNOWN

    names = models.split(",") if models else MODELS
    if unknown := [name for name in names if name not in KNOWN]:
        raise unknown_name("model", unknown[0], KNOWN)
    title = f"One bag of {instances:,} instances, {FEATURES} features, forward and backward, one thread"
    figures = Figures("models", title)
    rows = []
    for name in names:
        rows.append(row := in_fresh_process("benchmarks.models", name, instances))
        print(f"{name}: {row['extra_mib']:,.0f} MiB, {row['seconds']:.1f} CPU s", file=sys.stderr, flush=True)
        figures.add(f"{name}, extra memory", row["extra_mib"], "MiB", goal="extra_mib")
        figures.add(f"{name}, time", row["seconds"], "CPU s")
    figures.details = {"instances": instances, "models": rows}
    return figures.show(json=json)


def measure(name: str, instances: int) -> dict[str, Any]:
    """One model in this process, after a small bag that loads what is loaded on first use."""
    import time

    import torch

    from dasmil.models import MODELS as KNOWN
    from dasmil.models import create_model

    torch.manual_seed(0)
    settings: dict[str, Any] = {"in_features": FEATURES, "distance_scale": SCALE_UM}
    if "camelyon16" in KNOWN[name].presets:
        settings["preset"] = "camelyon16"
    model = create_model(name, **settings).train()
    seconds = 0.0

    def step(features: torch.Tensor, coords: torch.Tensor) -> None:
        nonlocal seconds
        start = time.process_time()
        output = model(features, coords)
        loss = output.logit
        for more in (output.aux_loss, output.side_logits, output.label_losses):
            loss = loss if more is None else loss + more.sum()
        loss.backward()
        seconds = time.process_time() - start

    step(torch.randn(50, FEATURES), torch.rand(50, 2) * FIELD_UM)
    features, coords = torch.randn(instances, FEATURES), torch.rand(instances, 2) * FIELD_UM
    extra = peak_extra_mib(lambda: step(features, coords))
    return {"model": name, "extra_mib": extra, "seconds": seconds}


if __name__ == "__main__":
    print(json_module.dumps(measure(sys.argv[1], int(sys.argv[2]))))
