"""`dasmil space`: does space matter, at which length, and how sure are we?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from dasmil.cli.cohort_arguments import CohortArguments
from dasmil.cli.engine_arguments import EngineArguments

app = App(name="space", help="Test whether positions matter, for which types of instances, at which length.")


@app.default
def space(
    *,
    out: Path,
    cohort: CohortArguments = CohortArguments(),  # noqa: B008
    types: int | None = None,
    lengths: str | None = None,
    permutations: int = 199,
    no_power: Annotated[bool, Parameter(negative="")] = False,
    no_write_back: Annotated[bool, Parameter(negative="")] = False,
    seed: int = 0,
    engine: EngineArguments = EngineArguments(),  # noqa: B008
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Test how much positions add to composition, and which pairs of types, at which length, go with the outcome.

    Instances are tiles with features, or cells with types (--one-hot) or markers. The outcome is that of the label
    table: classes, survival or a number. Patients are never split. Writes report.html, pairs.csv, sections.csv,
    instances.csv.gz, cells.h5ad (AnnData), space.json and figures as SVG and PDF. Repeat the command after an
    interruption: sections that are counted are not counted again.

    Examples: dasmil space --bags cells.csv --labels labels.csv --bag-column image --one-hot cell_type --unit um
    --out space; dasmil space --bags features --labels clini.csv --time-column days --event-column dead --out space

    Parameters
    ----------
    out
        Folder for the page, the tables and the figures.
    types
        Types of instances to find by k-means on the features. Default: the cohort's own categories, else 8.
    lengths
        Lengths to test, in the unit of the positions, separated by commas. Default: 12, from the spacing of
        instances to a quarter of the extent of a section.
    permutations
        Number of permutations of each kind; everything is fitted again in each.
    no_power
        Skip the power analysis (planted differences).
    no_write_back
        Do not write instances.csv.gz and cells.h5ad.
    seed
        Seed of all random numbers.
    json
        Print all figures as JSON.
    """
    from dasmil.cli.display import Display
    from dasmil.errors import InputError
    from dasmil.study.space import space_study

    if cohort.bags is None:
        raise InputError("no bags: give --bags FOLDER (feature files) or --bags TABLE (cells)")
    engine.use_threads()
    with Display(quiet=json) as display:
        found = space_study(
            cohort, out=out, types=types, lengths=_numbers(lengths), permutations=permutations, power=not no_power,
            write_back=not no_write_back, seed=seed, engine=None if engine.in_this_process else engine.options(),
            note=display.note, line=display.line,
        )  # fmt: skip
    if json:
        import json as json_module

        from dasmil.files import finite

        print(json_module.dumps(finite(found.as_json()), indent=2))
    else:
        print(found)
        print(found.report)
    return 0


def _numbers(text: str | None) -> list[float] | None:
    from dasmil.errors import InputError

    if text is None:
        return None
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"--lengths is {text!r}, expected numbers separated by commas: 10,20,40") from None
