"""`dasmil extract`: slides in, bags out."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from dasmil.cli.engine_arguments import EngineArguments
from dasmil.cli.options import filled, options
from dasmil.wsi.config import DEFAULT_ENCODER, ExtractConfig, RunOptions, TissueConfig

app = App(name="extract")
TISSUE = Group("What counts as tissue", sort_key=1)


@options(leave_out=("encoder", "tissue", "roi", "exclude", "masks"))
class Tiles(ExtractConfig):
    """Tiles, stain and files."""


@options(flags={"fraction": "--tissue-fraction"}, groups={one.name: TISSUE for one in fields(TissueConfig)})
class Tissue(TissueConfig):
    """What counts as tissue."""


@options()
class Running(RunOptions):
    """How it runs."""


@app.default
def extract(
    *slides: str,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    encoder: str | None = None,
    layers: str | None = None,
    points: Path | None = None,
    points_unit: Literal["um", "px"] | None = None,
    patch_um: float | None = None,
    mpp_table: Path | None = None,
    tiles: Tiles = Tiles(),  # noqa: B008
    tissue: Tissue = Tissue(),  # noqa: B008
    running: Running = Running(),  # noqa: B008
    json: Annotated[bool, Parameter(negative="")] = False,
    roi: Path | None = None,
    exclude: Path | None = None,
    masks: Path | None = None,
    engine: EngineArguments = EngineArguments(),  # noqa: B008
) -> int:
    """Turn slides into bags of features, one file per slide. Exit code 1 if a slide failed.

    Finished slides are skipped, so a run that was stopped goes on where it was, on whatever engine; several runs may
    share a folder. --jobs, --engine and --gpus spread the slides over processes or machines.

    Example: dasmil extract slides/*.svs -o bags/ --encoder ctranspath --weights ctranspath.pth

    Parameters
    ----------
    slides
        Slide files, folders (searched to the bottom) or patterns.
    out
        Folder for the bags, the QC pictures (qc/index.html) and summary.json.
    encoder
        Name of the encoder, see `dasmil encoders`; the default is for trying out.
    layers
        Blocks of the encoder whose outputs are averaged over the tile and set side by side, instead of its last
        layer, counted from 0: --layers 4,10. Good for small patches.
    points
        Instead of tiles of tissue: patches around the points of this table (slide, x, y, and id if there is one), as
        they are, without stain normalisation; needs --points-unit and --patch-um.
    points_unit
        What x and y of --points count: um, or px (level-0 pixels).
    patch_um
        Edge of a patch around a point, in micrometres.
    mpp_table
        CSV with the columns slide and mpp, for slides that differ.
    json
        Print the summary as JSON.
    roi
        Annotations: only tiles at least half inside are kept. A folder of files named after their slides (QuPath's
        GeoJSON, ASAP's XML, CSV with x, y and class in level-0 px), or one CSV with a column slide. Slides without a
        file are used whole.
    exclude
        Annotations, as --roi: tiles at least half inside are left out.
    masks
        Folder with the tissue that another program found, in place of our own search: for each slide TRIDENT's contours
        (GeoJSON), a PNG or TIFF mask (SLIDE.png, SLIDE_mask.png), or the patches of CLAM and TRIDENT (SLIDE.h5 with
        coords). A slide without a mask fails.
    """
    if not slides:
        print("Error: no slides given. Example: dasmil extract slides/*.svs -o bags/", file=sys.stderr)
        return 2
    from dasmil.cli.extract_display import SlideDisplay, print_table
    from dasmil.wsi.batch import extract as extract_all
    from dasmil.wsi.encoders import list_encoders

    chosen = (encoder or DEFAULT_ENCODER) + (f"[{layers}]" if layers is not None else "")
    files = {"roi": roi, "exclude": exclude, "masks": masks}
    regions = {name: None if path is None else str(path) for name, path in files.items()}
    settings = filled(ExtractConfig, tiles, encoder=chosen, tissue=filled(TissueConfig, tissue), **regions)
    spread = engine.options()  # refuses what does not go together, also where no workers are needed
    how = filled(RunOptions, running, workers=running.workers or engine.threads or 0)
    if points is not None or points_unit is not None or patch_um is not None:
        from dasmil.cli.extract_points import points_command
        from dasmil.errors import InputError

        if points is None or not engine.in_this_process:
            raise InputError("--points-unit and --patch-um are for --points TABLE, without --jobs and --engine")
        return points_command(slides, out, points, points_unit, patch_um, settings, how, mpp_table, json)
    if encoder is None:
        note = next(info.note for info in list_encoders() if info.name == DEFAULT_ENCODER)
        print(f"Encoder {DEFAULT_ENCODER}: {note}. Choose another with --encoder.", file=sys.stderr)
    if engine.in_this_process:
        engine.use_threads()
    try:
        with SlideDisplay(quiet=json) as reporter:
            where = None if engine.in_this_process else spread
            summary = extract_all(
                slides, out, settings, mpp_table=mpp_table, options=how, reporter=reporter, engine=where
            )
    except KeyboardInterrupt:
        again = "the same command without --force" if how.force else "the same command"
        print(f"Stopped. Finished slides are kept; {again} goes on with the rest.", file=sys.stderr)
        return 130
    if json:
        print(json_module.dumps(summary.as_dict()))
    else:
        print_table(summary, how.qc)
    return 0 if summary.ok else 1
