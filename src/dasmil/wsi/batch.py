"""Many slides, one after the other or spread over workers: nothing that goes wrong with one stops the rest."""

from __future__ import annotations

import glob
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from dasmil import __version__
from dasmil.data.annotations import find_annotations
from dasmil.data.labels import plain_slide
from dasmil.data.match import shortened
from dasmil.data.scale import read_scales
from dasmil.engine import EngineOptions, Progress
from dasmil.errors import DataError, InputError, StorageError, is_text, named
from dasmil.files import replacing
from dasmil.wsi.config import ExtractConfig, RunOptions
from dasmil.wsi.contact_sheet import write_contact_sheet
from dasmil.wsi.encoders import Encoder
from dasmil.wsi.finished import clear_killed
from dasmil.wsi.masks import find_mask
from dasmil.wsi.pipeline import SlideResult, extract_slide, make_encoder, recall, slide_name
from dasmil.wsi.reader import SUFFIXES
from dasmil.wsi.resolution import MAX_MPP, MIN_MPP
from dasmil.wsi.slide_units import extract_units


class Reporter(Protocol):
    """Who is told how it goes: slide by slide in this process, or by how many units of an engine are done."""

    def start(self, slides: Sequence[Path]) -> None: ...

    def slide(self, path: Path, number: int) -> None: ...

    def tiles(self, done: int, total: int) -> None: ...

    def result(self, result: SlideResult) -> None: ...

    def units(self, progress: Progress) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass
class BatchSummary:
    """What became of all slides; ``ok`` is False if one failed."""

    results: list[SlideResult]
    config: dict[str, Any]
    seconds: float
    out_dir: str
    dasmil_version: str = field(default=__version__)

    @property
    def ok(self) -> bool:
        """Whether no slide failed."""
        return not any(result.status == "failed" for result in self.results)

    def counts(self) -> dict[str, int]:
        """Slides by what became of them."""
        states = [result.status for result in self.results]
        return {state: states.count(state) for state in ("done", "skipped", "busy", "failed")}

    def as_dict(self) -> dict[str, Any]:
        """For summary.json and --json."""
        return {
            "dasmil_version": self.dasmil_version,
            "out": self.out_dir,
            "counts": self.counts(),
            "seconds": round(self.seconds, 3),
            "config": self.config,
            "slides": [asdict(result) for result in self.results],
        }


def find_slides(inputs: Sequence[str | Path]) -> list[Path]:
    """The slide files that files, folders (searched to the bottom) and patterns stand for, in order, each once."""
    found: dict[Path, Path] = {}
    for item in inputs:
        path = Path(item)
        if path.is_dir():
            matches = _in_folder(path)
            if not matches:
                raise InputError(f"{path} holds no slides: expected files ending in {', '.join(SUFFIXES)}")
        elif path.exists():
            matches = [path]
        else:
            matches = sorted(Path(match) for match in glob.glob(str(item), recursive=True))
            if not matches:
                raise InputError(f"no slide {item}: expected a file, a folder or a pattern such as 'slides/*.svs'")
        for match in matches:
            found.setdefault(Path(os.path.realpath(match)), match)  # of links in a circle: as it is
    slides = list(found.values())
    names: dict[str, Path] = {}
    for slide in slides:
        if not is_text(slide.name):
            raise InputError(f"the name of {slide} is not UTF-8 text, so no table or page can hold it: rename it")
        other = names.setdefault(slide_name(slide), slide)
        if other is not slide:
            raise InputError(
                f"{other} and {slide} would both become {slide_name(slide)}.h5: rename one, or extract them into "
                "different folders"
            )
    return slides


def _in_folder(folder: Path) -> list[Path]:
    files = [p for p in sorted(folder.rglob("*")) if p.suffix.lower() in SUFFIXES and p.is_file()]
    files = [p for p in files if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    series: dict[Path, Path] = {}
    for path in files:  # a DICOM slide is a folder of files, one per level: the largest stands for all
        if path.suffix.lower() == ".dcm":
            best = series.get(path.parent)
            series[path.parent] = path if best is None or path.stat().st_size > best.stat().st_size else best
    return [p for p in files if p.suffix.lower() != ".dcm" or series[p.parent] == p]


def read_mpp_table(path: Path, slides: Sequence[Path], note: Callable[[str], None] | None = None) -> dict[str, float]:
    """Resolutions by slide name from a CSV with the columns slide and mpp; names may carry the file's ending.

    note: is told of rows that name no slide.
    """
    rows = read_scales(table=path).table
    by_file = {plain_slide(slide.name): slide_name(slide) for slide in slides}
    by_file |= {plain_slide(slide_name(slide)): slide_name(slide) for slide in slides}
    table = {by_file[name]: row.mpp for name, row in rows.items() if name in by_file and row.mpp is not None}
    for name, mpp in table.items():
        if not MIN_MPP <= mpp <= MAX_MPP:
            raise DataError(f"{path}, slide {name!r}: mpp is {mpp:g}, expected {MIN_MPP:g} to {MAX_MPP:g} um per pixel")
    if not table:
        raise InputError(
            f"{path} has no mpp for any of the {len(slides)} slides: its first rows are {named(list(rows)[:3])}; "
            f"expected names such as {slide_name(slides[0])}"
        )
    unknown = [name for name in rows if name not in by_file]
    if unknown and note:
        note(f"Warning: {len(unknown)} rows of {path} name no slide of this call: {shortened(unknown)}")
    return table


def extract(
    slides: Sequence[str | Path],
    out_dir: str | Path,
    config: ExtractConfig | None = None,
    *,
    mpp_table: Mapping[str, float] | Path | None = None,
    options: RunOptions | None = None,
    reporter: Reporter | None = None,
    engine: EngineOptions | None = None,
) -> BatchSummary:
    """Make the bags of all slides; writes summary.json and the contact sheet qc/index.html beside them.

    engine: spread the slides over processes or machines; without it they are done here, one after the other. reporter:
    is told how it goes; without one nothing is shown. mpp_table: um per pixel by slide name, or a CSV with them.
    """
    paths = find_slides(slides)
    config, options = config or ExtractConfig(), options or RunOptions()
    if isinstance(mpp_table, Path):
        mpp_table = read_mpp_table(mpp_table, paths, reporter.note if reporter else None)
    table = mpp_table or {}
    out_dir = Path(out_dir)
    if out_dir.exists() and not out_dir.is_dir():
        raise InputError(f"{out_dir} is a file, expected a folder for the bags")
    started = time.perf_counter()
    regions = {name: _annotation_files(getattr(config, name)) for name in ("roi", "exclude")}
    work = {
        path: config.for_slide(
            table.get(slide_name(path)),
            **{name: files.get(plain_slide(slide_name(path)), files.get("")) for name, files in regions.items()},
            masks=_mask_of(config.masks, slide_name(path)),
        )
        for path in paths
    }
    for name, files in regions.items():
        if files and reporter:
            here = sum(getattr(settings, name) is not None for settings in work.values())
            reporter.note(f"--{name}: {here} of {len(paths)} slides have regions; the others are used whole")
    if engine is not None:
        # A coordinator needs the encoder only to know what finished bags look like, and to refuse a wrong one at once.
        encoder = make_encoder(config, replace(options, device="cpu"))
        _make_folder(out_dir)
        results = extract_units(work, out_dir, options, encoder, engine, reporter)
    else:
        encoder = make_encoder(config, options)
        _make_folder(out_dir)
        results = _one_by_one(work, out_dir, options, encoder, reporter)
    described = config.described(encoder.name, encoder.sha256, config.tile_px or encoder.input_px)
    summary = BatchSummary([results[p] for p in paths], described, time.perf_counter() - started, str(out_dir))
    with replacing(out_dir / "summary.json") as temporary:
        temporary.write_text(json.dumps(summary.as_dict(), indent=1))
    if options.qc:
        write_contact_sheet(out_dir, [*summary.results, *_earlier(out_dir, summary.results)])
    return summary


def _mask_of(folder: str | None, slide: str) -> Path | None:
    """The slide's own mask, whose content belongs to the settings; the folder where there is none: the slide fails."""
    if folder is None:
        return None
    try:
        return find_mask(folder, slide)
    except DataError:
        return Path(folder)


def _annotation_files(path: str | None) -> dict[str, Path]:
    """Files of annotations by plain slide name; a CSV with a column slide is that of all slides ("")."""
    if path is None:
        return {}
    if Path(path).suffix.lower() == ".csv" and Path(path).is_file():
        return {"": Path(path)}
    return find_annotations(path)


def _make_folder(path: Path) -> None:
    """The folder of the bags, free of what killed runs left, and a first try to write there: better refused now."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise StorageError(f"{path}: nothing can be written there ({error.strerror}); choose another folder") from error
    clear_killed(path)


def _earlier(out_dir: Path, results: Sequence[SlideResult]) -> list[SlideResult]:
    """What other calls put into this folder: training takes all of its bags, so the contact sheet shows all."""
    now = {result.slide for result in results}
    found = []
    for note in sorted((out_dir / "qc").glob("*.json")):
        if note.stem not in now and (out_dir / f"{note.stem}.h5").exists():
            result = SlideResult(note.stem, "", "skipped")
            recall(result, out_dir)
            found.append(result)
    return found


def _one_by_one(
    work: Mapping[Path, ExtractConfig], out_dir: Path, options: RunOptions, encoder: Encoder, reporter: Reporter | None
) -> dict[Path, SlideResult]:
    results: dict[Path, SlideResult] = {}
    if reporter:
        reporter.start(list(work))

    def one(path: Path) -> None:
        progress = reporter.tiles if reporter else None
        results[path] = extract_slide(path, out_dir, work[path], options=options, encoder=encoder, progress=progress)
        if reporter:
            reporter.result(results[path])

    for number, path in enumerate(work, 1):
        if reporter:
            reporter.slide(path, number)
        one(path)
    # What another process had in work may be done by now, or may have been left by one that died.
    for path in [p for p in work if results[p].status == "busy"]:
        one(path)
    return results
