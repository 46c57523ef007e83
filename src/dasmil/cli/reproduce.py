"""`dasmil reproduce`: the paper's tables and figures, made again beside the printed figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from dasmil.cli.engine_arguments import EngineArguments

app = App(
    name="reproduce",
    help_epilogue="Example: dasmil reproduce collage --models das-mil,sa --out runs/reproduce",
)

Target = Literal["collage", "ablations", "tuned", "grid", "attention-figure", "all"]


@app.default
def reproduce(
    target: Target | None = None,
    *,
    protocol: Literal["published", "clean"] = "published",
    seeds: int | None = None,
    models: str | None = None,
    data: str | None = None,
    quick: Annotated[bool, Parameter(negative="")] = False,
    out: Path = Path("runs/reproduce"),
    results: Path | None = None,
    tables: Annotated[bool, Parameter(negative="")] = False,
    check: Annotated[bool, Parameter(negative="")] = False,
    engine: EngineArguments = EngineArguments(),  # noqa: B008
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Make the paper's tables and figures again and set them beside the printed ones.

    Cells that are already in --results are not trained again, so the same command goes on where it was stopped. Tables
    are written from what is there; what is missing is marked as not yet run. Exit code 1 if a cell failed.

    Example: dasmil reproduce collage --models das-mil,sa --out runs/reproduce

    Parameters
    ----------
    target
        collage (the main tables), ablations, tuned (a better recipe for all models), grid (the search for settings),
        attention-figure, or all of them.
    protocol
        Training bags and 100-bag test set: those of the paper (which leak), or clean ones. The 2,000-bag test set
        is always clean.
    seeds
        Runs per cell; default 5, and 10 for das-mil in the table tuned.
    models
        Only these rows, separated by commas: models, or rows of the ablation table.
    data
        Only this data set: mnist-collage or mnist-collage-inv.
    quick
        A small run for trying out: 8 epochs, 2 seeds, few rows; kept apart from results.
    out
        Folder for the run directories, one per cell.
    results
        Folder for what is kept: predictions, manifests, tables. Default: docs/results in a checkout of dasmil, else
        OUT/results.
    tables
        Train nothing; write the tables and the page from the cells that are there.
    check
        Train nothing; recompute every figure in --results from the stored predictions. Exit code 1 if one differs.
    json
        Print the results as JSON.
    """
    from dasmil.cli.assignments import check_counts
    from dasmil.cli.display import Display
    from dasmil.paper import reproduce as paper

    check_counts(seeds=seeds)
    folders = paper.Folders.choose(out, results, quick=quick)
    if check:
        return _print_check(paper.check(folders.results), folders.results, json)
    if target is None:
        print(
            "Error: nothing to reproduce given. Example: dasmil reproduce collage (see dasmil reproduce --help)",
            file=sys.stderr,
        )
        return 2
    rows = [name.strip() for name in models.split(",") if name.strip()] if models else None
    asked = paper.ReproductionRequest(target, protocol, rows, [data] if data else None, seeds, quick, train=not tables)
    with Display() as display:
        outcome = paper.reproduce(asked, folders, engine.options(), display.units)
    if json:
        import json as json_module

        print(json_module.dumps(outcome.as_dict(), indent=2))
    else:
        for text in outcome.texts:
            print(text)
        for path in outcome.files:
            print(path)
    for key, reason in outcome.failed.items():
        print(f"Failed: {key}: {reason}", file=sys.stderr)
    return 1 if outcome.failed else 0


def _print_check(found: dict[str, Any], results: Path, json: bool) -> int:
    if json:
        import json as json_module

        print(json_module.dumps(found, indent=2))
    else:
        for path, reasons in found["wrong"].items():
            for reason in reasons[:3]:
                print(f"{path}: {reason}")
        parts = f" and {found['grid_units']} parts of the grid" if found["grid_units"] else ""
        verdict = f"{len(found['wrong'])} differ" if found["wrong"] else "all agree"
        print(f"{found['cells']} cells{parts} recomputed from their predictions: {verdict}")
        print(results)
    return 1 if found["wrong"] else 0
