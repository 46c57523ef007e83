"""`dasmil doctor`: find what is wrong with a folder of features before training on it, or with a device."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from dasmil.cli.cohort_arguments import HEADINGS
from dasmil.cli.options import filled, options
from dasmil.study.spec import CohortSpec

if TYPE_CHECKING:
    from rich.console import Console

    from dasmil.data.doctor import Checkup

MOST_RULES = 8
MOST_ROWS = 10

app = App(name="doctor", help="Check a folder of features, and its label table, before training.")
_OF_TRAINING = (
    "survival", "time_bins", "times", "number_loss", "max_instances", "strict", "covariates",
    "accept", "roi", "roi_class", "exclude", "exclude_class",
)  # fmt: skip


@options(leave_out=("bags", *_OF_TRAINING), groups=HEADINGS)
class CheckedCohort(CohortSpec):
    """Labels, and what the files do not say themselves."""


@app.default
def doctor(
    bags: Path | None = None,
    *,
    cohort: CheckedCohort = CheckedCohort(),  # noqa: B008
    device: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Check a folder of features, and its label table, before training. Exit code 1 if anything is wrong.

    Examples:

        dasmil doctor features/ --labels labels.csv --mpp 0.25

        dasmil doctor cells.csv --bag-column patient --one-hot cell_type --unit um --labels labels.csv

        dasmil doctor features/ --labels clini.csv --time-column days --event-column dead --per-patient

        dasmil doctor --device cuda

    The last one asks instead: is the attention operator right on this device, and how fast is it? It prints one block
    to paste into an issue.

    Parameters
    ----------
    bags
        Folder of feature files (dasmil, CLAM, TRIDENT, STAMP, marugoto, slideflow or slide2vec; the format is
        recognised), or cells: a table (.csv, .parquet, .h5ad), or a folder of files (QuPath, GeoJSON, Xenium, zarr).
    device
        Check this device (cuda, cuda:1, mps, cpu) instead of a folder: every backend of the operator against chunked in
        float64, output and gradients, and a table of speeds. Takes a few minutes, most of them to compile kernels.
    json
        Print everything as JSON instead of a table.
    """
    if device is not None:
        return _check_device(device, bags, json)
    from dasmil.cli.display import Display
    from dasmil.data.doctor import Checkup
    from dasmil.errors import InputError
    from dasmil.study.checkup import examine

    if bags is None:
        raise InputError("nothing to check: give a folder of features, or --device cuda to check a GPU")
    spec = filled(CohortSpec, cohort, bags=bags)
    checkup = None
    with Display("Checking ", quiet=json) as display:
        for checkup in examine(spec):
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
    from dasmil.devices import choose_device
    from dasmil.errors import InputError
    from dasmil.ops.device_check import check_device

    if bags is not None:
        raise InputError(f"--device checks a device, {bags} is a folder of features: give one of them")
    report = check_device(choose_device(device))
    print(json_module.dumps(report.as_json(), indent=2) if json else f"```\n{report.text()}\n```")
    return 0 if report.agrees else 1


def _print(checkup: Checkup) -> None:
    """What was found in all files, then what is wrong, the verdict last."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 160)  # names have brackets
    _print_rows(console, checkup)
    if tiles := [row["tiles"] for row in checkup.rows if row["tiles"]]:
        what = f"{len(checkup.rows)} bags, {sum(tiles):,} cells" if checkup.of_cells else (
            f"{len(checkup.rows)} files, {sum(tiles):,} tiles")  # fmt: skip
        console.print(f"{what}, {min(tiles):,} to {max(tiles):,} in a bag")
    rules = list(checkup.rules.items())
    for rule, count in rules[:MOST_RULES]:
        console.print(f"{count} {'bags' if checkup.of_cells else 'files'} read as {rule}")
    if len(rules) > MOST_RULES:
        console.print(f"... {len(rules) - MOST_RULES} more rules, for slides with scales of their own (--json)")
    if checkup.radius_um is not None:
        from dasmil.data.doctor import NEIGHBOURS

        told = f"A radius of {checkup.radius_um:g} um holds about {NEIGHBOURS} neighbours of a "
        told += "cell" if checkup.of_cells else "tile"
        console.print(f"{told} (--set radius={checkup.radius_um:g}, for sa and das-mil)")
    for line in checkup.cohort:
        console.print(line)
    for finding in checkup.findings:
        console.print(f"{finding.level}: {finding.check}: {finding.message}")
    errors = sum(finding.level == "error" for finding in checkup.findings)
    warnings = len(checkup.findings) - errors
    counts = [f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((errors, "error"), (warnings, "warning")) if n]
    console.print(f"Found {' and '.join(counts)}." if counts else "Nothing wrong found.")


def _print_rows(console: Console, checkup: Checkup) -> None:
    """The slides of a small folder, of a large one those with something wrong: a few, never a screen of them."""
    from rich.table import Table

    wrong = {slide for finding in checkup.findings for slide in finding.slides}
    few = len(checkup.rows) <= MOST_ROWS
    listed = checkup.rows if few else [row for row in checkup.rows if row["slide"] in wrong]
    if not listed:
        return
    names = ("tiles", "features", "tile um", "stride um")
    columns = ("format", "tiles", "features", "tile_um", "stride_um")
    if checkup.of_cells:
        names, columns = ("cells", "features", "spacing um"), ("tiles", "features", "stride_um")
    table = Table("slide", *(() if checkup.of_cells else ("format",)), *names, box=None, pad_edge=False)
    for column in table.columns[-len(names) :]:
        column.justify = "right"
    for row in listed[:MOST_ROWS]:
        cells = (row.get(name) for name in columns)
        table.add_row(row["slide"], *("-" if cell is None else _cell(cell) for cell in cells))
    if len(listed) > MOST_ROWS:
        table.add_row(f"... {len(listed) - MOST_ROWS} more with something wrong (--json lists all)")
    console.print(table)
    console.print()


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
