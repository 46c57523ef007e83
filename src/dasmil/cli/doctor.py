"""`dasmil doctor`: find what is wrong with a folder of features before training on it, or with a device."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

MOST_RULES = 8

app = App(name="doctor", help="Check a folder of features, and its label table, before training.")


@app.default
def doctor(
    bags: Path | None = None,
    *,
    labels: Path | None = None,
    slide_table: Path | None = None,
    slide_column: str | None = None,
    label_column: str | None = None,
    patient_column: str | None = None,
    split_column: str | None = None,
    site_column: str | None = None,
    positive: str | None = None,
    mpp: str | None = None,
    tile_um: float | None = None,
    scale_table: Path | None = None,
    device: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Check a folder of features, and its label table, before training. Exit code 1 if anything is wrong.

    Example: dasmil doctor features/ --labels labels.csv --mpp 0.25

    With --device instead of a folder: is the attention operator right on this device, and how fast is it? Prints one
    block to paste into an issue. Example: dasmil doctor --device cuda

    Parameters
    ----------
    bags
        Folder of feature files (dasmil, CLAM, TRIDENT, STAMP, marugoto, slideflow; told apart automatically).
    labels
        CSV with slide, label, and optionally patient and split; also CLAM's and STAMP's tables.
    slide_table
        STAMP's slide table (patient, file name), when --labels is its table of patients.
    site_column
        Name of the column of --labels with the site (hospital, scanner) of a slide: says how well the site can be told
        from mean features alone, and how label and site go together.
    positive
        Of two classes the positive one (default: by the usual words, as in training).
    mpp
        Micrometres per level-0 pixel, where the files do not say; 'nominal' takes 10 um / magnification.
    tile_um
        Edge of a tile in micrometres, where the files do not say.
    scale_table
        CSV with slide and any of mpp, tile_um, width_px, height_px, for slides that differ.
    device
        Check this device (cuda, cuda:1, mps, cpu) instead of a folder: every backend of the operator against chunked in
        float64, output and gradients, and a table of speeds. Takes a few minutes, most of them to compile kernels.
    json
        Print everything as JSON instead of a table.
    """
    if device is not None:
        return _check_device(device, bags, json)
    from dasmil.cli.display import Display
    from dasmil.data.doctor import Checkup, check_bags
    from dasmil.data.labels import read_labels
    from dasmil.data.scale import read_scales
    from dasmil.data.tables import is_table
    from dasmil.errors import InputError

    if bags is None:
        raise InputError("nothing to check: give a folder of features, or --device cuda to check a GPU")
    if is_table(bags):
        raise InputError(
            f"{bags} is a table of cells, but the doctor checks folders of feature files: give it to dasmil train as "
            "--bags, with --bag-column and --unit, which checks positions, features and labels before it trains"
        )
    rows = sites = None
    if site_column is not None:
        from dasmil.data.columns import read_columns

        if labels is None:
            raise InputError("--site-column names a column of the label table: give --labels too")
        sites = read_columns(labels, [site_column], slide_table=slide_table, slide_column=slide_column,
                             patient_column=patient_column, option="--site-column")  # fmt: skip
    if labels is not None:
        rows = read_labels(
            labels, slide_table=slide_table, slide_column=slide_column, label_column=label_column,
            patient_column=patient_column, split_column=split_column,
        )  # fmt: skip
    scales = read_scales(mpp, tile_um, scale_table)
    checkup = None
    with Display("Checking ", quiet=json) as display:
        for checkup in check_bags(bags, rows, scales, positive, sites):
            if isinstance(checkup, tuple):
                done, total, slide = checkup
                display.line(f"{done}/{total} {slide}")
    assert isinstance(checkup, Checkup)
    if json:
        print(json_module.dumps(checkup.as_json(), indent=2))
    else:
        _print(checkup)
    return 0 if checkup.healthy else 1


def _check_device(device: str, bags: Path | None, json: bool) -> int:
    from dasmil.bench.device import check_device
    from dasmil.devices import choose_device
    from dasmil.errors import InputError

    if bags is not None:
        raise InputError(f"--device checks a device, {bags} is a folder of features: give one of them")
    report = check_device(choose_device(device))
    print(json_module.dumps(report.as_json(), indent=2) if json else f"```\n{report.text()}\n```")
    return 0 if report.agrees else 1


def _print(checkup) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, width=None if sys.stdout.isatty() else 160)  # names may hold square brackets
    tiles = [row["tiles"] for row in checkup.rows if row["tiles"]]
    table = Table("slide", "format", "tiles", "features", "tile um", "stride um", box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    shown = checkup.rows if len(checkup.rows) <= 30 else [*checkup.rows[:29], None]
    for row in shown:
        if row is None:
            table.add_row(f"... {len(checkup.rows) - 29} more (--json lists all)")
            continue
        cells = (row.get(name) for name in ("format", "tiles", "features", "tile_um", "stride_um"))
        table.add_row(row["slide"], *("-" if cell is None else _cell(cell) for cell in cells))
    console.print(table)
    console.print()
    if tiles:
        console.print(f"{len(checkup.rows)} files, {sum(tiles):,} tiles, largest bag {max(tiles):,}", highlight=False)
    rules = list(checkup.rules.items())
    for rule, count in rules[:MOST_RULES]:
        console.print(f"{count} files read as {rule}", highlight=False)
    if len(rules) > MOST_RULES:
        console.print(f"... {len(rules) - MOST_RULES} more rules, for slides with scales of their own (--json)")
    if checkup.radius_um is not None:
        from dasmil.data.doctor import NEIGHBOURS

        told = f"A radius of {checkup.radius_um:g} um holds about {NEIGHBOURS} neighbours of a tile"
        console.print(f"{told} (--set radius={checkup.radius_um:g}, for sa and das-mil)", highlight=False)
    for line in checkup.cohort:
        console.print(line, highlight=False)
    for finding in checkup.findings:
        console.print(f"{finding.level}: {finding.check}: {finding.message}", highlight=False)
    if not checkup.findings:
        console.print("Nothing wrong found.")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
