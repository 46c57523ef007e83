"""`dasmil models`: the models that can be trained, and what they are."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any

from cyclopts import App, Parameter

app = App(name="models", help_epilogue="Example: dasmil train --data mnist-collage --model das-mil --out runs/collage")


@app.default
def models(name: str | None = None, /, *, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """List the models: their paper, what they know of positions, and their parameters at the paper's settings.

    Examples: dasmil models; dasmil models das-mil (its options); dasmil models --json

    Parameters
    ----------
    name
        A model: print its options and their defaults instead.
    json
        Print as JSON instead of a table.
    """
    from dasmil.errors import unknown_name
    from dasmil.models import MODELS

    if name is None:
        rows = [describe(model) for model in MODELS]
        print(json_module.dumps(rows, indent=2) if json else table(rows))
        return 0
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    row = describe(name) | {"options": MODELS[name].options(), "presets": MODELS[name].presets}
    if json:
        print(json_module.dumps(row, indent=2))
        return 0
    print(f"{name}: {row['paper']}\n\nOption            Default     Expected")
    for option in MODELS[name].schema().values():
        default = "none" if option.default is None else option.default
        print(f"{option.name:<16}  {default!s:<10}  {option.meaning}")
    for preset, options in row["presets"].items():
        settings = ", ".join(f"{option} = {value}" for option, value in options.items())
        print(f"\nPreset {preset}: {row['parameters'][preset]:,} parameters{'; ' + settings if settings else ''}")
    return 0


def describe(name: str) -> dict[str, Any]:
    """One row: the parameters are counted on the model itself, without allocating it."""
    from dasmil.models import MODELS, PRESETS, create_model
    from dasmil.models.sizes import sizes_only

    cls = MODELS[name]
    parameters: dict[str, int | None] = {}
    for preset in PRESETS:
        if preset in cls.presets:
            with sizes_only():
                parameters[preset] = sum(p.numel() for p in create_model(name, preset=preset).parameters())
        else:
            parameters[preset] = None
    return {
        "name": name,
        "paper": cls.paper,
        "position": cls.position,
        "permutation_invariant": cls.permutation_invariant,
        "stackable": cls.stackable,
        "multiple_instance_assumption": "monotone=true" if "monotone" in cls.schema() else "no",
        "parameters": parameters,
    }


def table(rows: list[dict[str, Any]]) -> str:
    presets = list(rows[0]["parameters"])
    lines = [["Model", "Position", *presets, "MI assumption", "Paper"]]
    for row in rows:
        counts = ["-" if row["parameters"][p] is None else f"{row['parameters'][p]:,}" for p in presets]
        lines.append([row["name"], row["position"], *counts, row["multiple_instance_assumption"], row["paper"]])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    right = range(2, 2 + len(presets))
    text = [
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    ]
    notes = [
        "Parameters: at the settings of the paper's two tables, the encoder included.",
        "MI assumption: whether no instance can lower the logit of a bag, and the option that ensures it.",
    ]
    return "\n".join([*text, "", *notes])
