"""`dasmil encoders`: the encoders that `dasmil extract` can use."""

from __future__ import annotations

import json as json_module
from typing import Annotated

from cyclopts import App, Parameter

app = App(
    name="encoders",
    help_epilogue="Example: dasmil extract slides/*.svs -o bags/ --encoder ctranspath --weights ctranspath.pth",
)


@app.default
def encoders(*, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """List the encoders that `extract` can use: features per tile, input, licence, where their weights come from.

    Example: dasmil encoders --json

    Parameters
    ----------
    json
        Print everything as JSON instead of a table.
    """
    from dataclasses import asdict

    from dasmil.wsi.encoders import list_encoders

    rows = list_encoders()
    if json:
        print(json_module.dumps([asdict(row) for row in rows], indent=2))
        return 0
    head = ("Encoder", "Features", "Input px", "Licence", "Installed", "Weights")
    lines = [
        (
            row.name,
            "" if row.dim is None else str(row.dim),
            "" if row.input_px is None else str(row.input_px),
            row.licence,
            "yes" if row.installed else "no",
            row.weights,
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head))]
    for line in (head, *lines):
        cells = (text.rjust(n) if i in (1, 2) else text.ljust(n) for i, (text, n) in enumerate(zip(line, widths)))
        print("  ".join(cells).rstrip())
    print()
    for row in rows:
        if row.note:
            print(f"{row.name}: {row.note}")
    if not all(row.installed for row in rows if row.weights != "elsewhere"):
        print("\nInstall what is missing with: pip install 'dasmil[slides,timm]'")
    return 0
