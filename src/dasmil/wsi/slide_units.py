"""Slides as units of work, for several processes or machines."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasmil.engine import EngineOptions, Unit, run_units
from dasmil.engine.locks import mark_folder, own_mark
from dasmil.errors import DataError, InputError
from dasmil.files import replacing
from dasmil.wsi.config import ExtractConfig, RunOptions, TissueConfig
from dasmil.wsi.encoders import Encoder
from dasmil.wsi.pipeline import extract_slide, finished_slide, make_encoder, slide_name
from dasmil.wsi.slide_work import SlideResult

if TYPE_CHECKING:
    from dasmil.wsi.batch import Reporter

LEAN_BATCH = 8  # tiles at once after a unit ran out of memory
LOOKS = 16  # finished bags looked at in parallel: the time goes into waiting for the disk


def extract_units(
    work: Mapping[Path, ExtractConfig],
    out_dir: Path,
    options: RunOptions,
    encoder: Encoder,
    engine: EngineOptions,
    reporter: Reporter | None = None,
) -> dict[Path, SlideResult]:
    """Extract slides on an engine; those whose bags are finished are never handed out."""
    results: dict[Path, SlideResult] = {}
    if any(not isinstance(config.encoder, str) for config in work.values()):
        raise InputError("an encoder that is a Python function stays in its own process: name one, or use no engine")
    if not options.force:
        with ThreadPoolExecutor(LOOKS) as pool:
            found = pool.map(lambda path: finished_slide(path, out_dir, work[path], encoder), work)
            results = {path: result for path, result in zip(work, found, strict=True) if result is not None}
    rest = [path for path in work if path not in results]
    logs = out_dir / "logs"
    for _ in range(2):  # what another process had in work may be done by now, or left by one that died
        if rest:
            logs.mkdir(exist_ok=True)
            with own_mark(logs, "slides") as mark:
                notes = mark_folder(mark)
                notes.mkdir()
                if reporter and len(rest) < len(work):
                    reporter.note(f"{len(work) - len(rest)} slides were finished earlier")
                results |= _round(rest, work, out_dir, notes, options, engine, reporter)
        rest = [path for path in rest if results[path].status == "busy"]
    return results


def _round(
    paths: Sequence[Path],
    work: Mapping[Path, ExtractConfig],
    out_dir: Path,
    notes: Path,
    options: RunOptions,
    engine: EngineOptions,
    reporter: Reporter | None,
) -> dict[Path, SlideResult]:
    options = replace(options, workers=options.workers or engine.threads)
    units = [
        Unit(
            slide_name(path), "dasmil.wsi.slide_units:extract_unit",
            {
                "slide": str(path), "out": str(out_dir), "config": _plain(work[path]), "options": asdict(options),
                "batch_size": options.batch_size, "result": str(notes / f"{slide_name(path)}.json"),
            },
            str(notes / f"{slide_name(path)}.json"), lean={"batch_size": LEAN_BATCH},
        )
        for path in paths
    ]  # fmt: skip
    results = {}
    failed = run_units(units, out_dir, engine, reporter.units if reporter else None).failed
    for path, unit in zip(paths, units, strict=True):
        file = Path(unit.result)
        if file.exists():
            results[path] = SlideResult(**json.loads(file.read_text()))
        else:
            results[path] = SlideResult(unit.key, str(path), "failed", f"{path}: {failed[unit.key]}")
    return results


def extract_unit(
    slide: str, out: str, config: dict[str, Any], options: dict[str, Any], batch_size: int | None, result: str
) -> None:
    """In a worker: make one bag and note what became of it; a slide that cannot be read is an error of the unit."""
    settings = _from_plain(config)
    run = RunOptions(**{**options, "batch_size": batch_size})
    encoder = _encoder(settings.encoder, settings.weights, settings.tile_px, run.device, batch_size)
    found = extract_slide(slide, out, settings, options=run, encoder=encoder, raise_unexpected=True)
    print(json.dumps(asdict(found)))
    with replacing(Path(result)) as temporary:
        temporary.write_text(json.dumps(asdict(found)))
    if found.status == "failed":
        raise DataError(found.reason or "failed")


@functools.lru_cache(maxsize=1)
def _encoder(name: str, weights: Path | None, tile_px: int | None, device: str, batch_size: int | None) -> Encoder:
    """The encoder of this worker, loaded once for all its slides."""
    config = ExtractConfig(encoder=name, weights=weights, tile_px=tile_px)
    return make_encoder(config, RunOptions(device=device, batch_size=batch_size))


def _plain(config: ExtractConfig) -> dict[str, Any]:
    return {**asdict(config), "weights": None if config.weights is None else str(config.weights)}


def _from_plain(values: dict[str, Any]) -> ExtractConfig:
    weights = None if values["weights"] is None else Path(values["weights"])
    return ExtractConfig(**{**values, "weights": weights, "tissue": TissueConfig(**values["tissue"])})
