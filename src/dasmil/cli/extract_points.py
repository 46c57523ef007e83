"""`dasmil extract --points`: patches around given points."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dasmil.wsi.config import ExtractConfig, RunOptions


def points_command(
    slides: Sequence[str],
    out: Path,
    table: Path,
    unit: str | None,
    patch_um: float | None,
    config: ExtractConfig,
    options: RunOptions,
    mpp_table: Path | None,
    json: bool,
) -> int:
    """Cut and encode the patches, and print a line a slide. Exit code 1 if a slide failed."""
    from dasmil.cli.display import say
    from dasmil.data.labels import plain_slide
    from dasmil.errors import InputError, named
    from dasmil.wsi.batch import find_slides, read_mpp_table
    from dasmil.wsi.pipeline import make_encoder, slide_name
    from dasmil.wsi.points import extract_points, read_points

    if unit is None or patch_um is None:
        raise InputError("--points needs --points-unit (um, or px: level-0 pixels) and --patch-um (edge of a patch)")
    if config.format != "dasmil":
        raise InputError(
            f"--points writes dasmil bags, which keep the names of points: leave --format {config.format} out"
        )
    paths = find_slides(slides)
    known = read_mpp_table(mpp_table, paths, say) if mpp_table else {}
    encoder = make_encoder(config, options)
    mpp = {path: given for path in paths if (given := known.get(slide_name(path), config.mpp)) is not None}
    points = read_points(table)
    rows = extract_points(
        paths, out, points, encoder, unit=unit, patch_um=patch_um, mpp=mpp, force=options.force,  # pyright: ignore[reportArgumentType]
        progress=None if json else lambda name: print(name, file=sys.stderr, flush=True),
    )  # fmt: skip
    lacking = sorted(points.keys() - {plain_slide(slide_name(path)) for path in paths})
    if lacking:
        print(f"Points of {len(lacking):,} slides that were not given: {named(lacking)}", file=sys.stderr)
    if json:
        print(json_module.dumps({"slides": rows, "points_without_slide": lacking}))
    else:
        for row in rows:
            why = f": {row['reason']}" if row["reason"] else ""
            print(f"{row['slide']}: {row['status']}, {row['patches']:,} patches{why}")
        print(f"{sum(row['patches'] for row in rows):,} patches of {patch_um:g} um, encoder {encoder.name}")
        print(out)
    return 1 if any(row["status"] == "failed" for row in rows) else 0
