"""`dasmil extract`: slides in, bags out."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from dasmil.cli.engine_arguments import EngineArguments

if TYPE_CHECKING:
    pass

app = App(name="extract")


@app.default
def extract(
    *slides: str,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    tile_um: float = 256.0,
    tile_px: int | None = None,
    stain: Literal["macenko", "macenko-slide", "none"] = "macenko",
    encoder: str | None = None,
    weights: Path | None = None,
    layers: str | None = None,
    points: Path | None = None,
    points_unit: Literal["um", "px"] | None = None,
    patch_um: float | None = None,
    mpp: float | None = None,
    mpp_table: Path | None = None,
    format: Literal["dasmil", "stamp", "trident", "clam"] = "dasmil",
    dtype: Literal["float16", "float32"] = "float16",
    workers: int = 0,
    batch_size: int | None = None,
    device: str = "auto",
    force: Annotated[bool, Parameter(negative="")] = False,
    qc: bool = True,
    json: Annotated[bool, Parameter(negative="")] = False,
    engine: EngineArguments = EngineArguments(),  # noqa: B008
    tissue_fraction: float | None = None,
    mask_um: float | None = None,
    saturation_low: float | None = None,
    saturation_high: float | None = None,
    dark: float | None = None,
    pen: bool | None = None,
    close_um: float | None = None,
    min_area_mm2: float | None = None,
    max_hole_mm2: float | None = None,
    blank_share: float | None = None,
    blank_level: int | None = None,
    sharpness: float | None = None,
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
    tile_um
        Edge of a tile in micrometres on the slide, whatever the scanner.
    tile_px
        Edge of a tile in pixels; the encoder's own input size if not given.
    stain
        Macenko's normalisation of every tile by itself (the paper's), fitted once per slide, or none.
    encoder
        Name of the encoder, see `dasmil encoders`; the default is for trying out.
    weights
        File with the encoder's weights (.safetensors, or .pth read without running code).
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
    mpp
        Micrometres per pixel of all slides, in place of what the files say.
    mpp_table
        CSV with the columns slide and mpp, for slides that differ.
    format
        Layout of the files: the product's own, or that of another tool.
    dtype
        Type of the features in the product's own files.
    workers
        Threads that read and prepare tiles of one slide; 0 takes as many as --threads, else one per core up to eight.
    batch_size
        Tiles encoded at once; found automatically if not given.
    device
        auto, cpu, cuda, cuda:1, mps.
    force
        Make again what is there, whatever it was made with.
    qc
        Draw QC pictures and the contact sheet.
    json
        Print the summary as JSON.
    tissue_fraction
        A tile is kept when at least this share of it is tissue.
    mask_um
        Pixel size in micrometres of the picture on which tissue is found.
    saturation_low
        Otsu's threshold of the saturation is not taken below this.
    saturation_high
        Otsu's threshold of the saturation is not taken above this.
    dark
        Pixels darker than this share of white are borders or black pen.
    pen
        Leave out green, blue and red pen.
    close_um
        Gaps in the tissue up to this width are closed.
    min_area_mm2
        Smaller pieces of tissue are dust.
    max_hole_mm2
        Smaller holes are filled.
    blank_share
        A tile with fewer stained pixels than this share is blank.
    blank_level
        A pixel is stained when its green value (0 to 255) is below this.
    sharpness
        A tile is out of focus when the variance of its Laplacian is below this; 0 keeps all.
    """
    if not slides:
        print("Error: no slides given. Example: dasmil extract slides/*.svs -o bags/", file=sys.stderr)
        return 2
    from dasmil.cli.display import say
    from dasmil.cli.extract_display import SlideDisplay, print_table
    from dasmil.wsi.batch import extract as extract_all
    from dasmil.wsi.batch import find_slides, read_mpp_table
    from dasmil.wsi.config import ExtractConfig, RunOptions, TissueConfig
    from dasmil.wsi.encoders import DEFAULT_ENCODER, list_encoders

    given = {
        "fraction": tissue_fraction,
        "mask_um": mask_um,
        "saturation_low": saturation_low,
        "saturation_high": saturation_high,
        "dark": dark,
        "pen": pen,
        "close_um": close_um,
        "min_area_mm2": min_area_mm2,
        "max_hole_mm2": max_hole_mm2,
        "blank_share": blank_share,
        "blank_level": blank_level,
        "sharpness": sharpness,
    }
    tissue = TissueConfig(**{name: value for name, value in given.items() if value is not None})
    chosen = (encoder or DEFAULT_ENCODER) + (f"[{layers}]" if layers is not None else "")
    config = ExtractConfig(tile_um, tile_px, stain, chosen, weights, mpp, dtype=dtype, format=format, tissue=tissue)
    paths = find_slides(slides)
    table = read_mpp_table(mpp_table, paths, say) if mpp_table else {}
    spread = engine.options()  # refuses what does not go together, also where no workers are needed
    options = RunOptions(workers or engine.threads or 0, batch_size, device, force, qc)
    if points is not None or points_unit is not None or patch_um is not None:
        from dasmil.cli.extract_points import points_command
        from dasmil.errors import InputError

        if points is None or not engine.in_this_process:
            raise InputError("--points-unit and --patch-um are for --points TABLE, without --jobs and --engine")
        return points_command(paths, out, points, points_unit, patch_um, config, options, table, json)
    if encoder is None:
        note = next(info.note for info in list_encoders() if info.name == DEFAULT_ENCODER)
        print(f"Encoder {DEFAULT_ENCODER}: {note}. Choose another with --encoder.", file=sys.stderr)
    if engine.in_this_process:
        engine.use_threads()
    try:
        with SlideDisplay(quiet=json) as reporter:
            where = None if engine.in_this_process else spread
            summary = extract_all(
                paths, out, config, mpp_table=table, options=options, reporter=reporter, engine=where
            )  # fmt: skip
    except KeyboardInterrupt:
        again = "the same command without --force" if force else "the same command"
        print(f"Stopped. Finished slides are kept; {again} goes on with the rest.", file=sys.stderr)
        return 130
    if json:
        print(json_module.dumps(summary.as_dict()))
    else:
        print_table(summary, qc)
    return 0 if summary.ok else 1
