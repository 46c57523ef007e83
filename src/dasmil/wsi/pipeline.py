"""One slide from file to bag: tiles are read, checked and normalised by threads while the encoder works."""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from dasmil.errors import DasmilError, DataError, InputError, MissingDependencyError
from dasmil.files import json_hash, replacing
from dasmil.types import Bag
from dasmil.wsi import qc
from dasmil.wsi.config import ExtractConfig, RunOptions
from dasmil.wsi.encoders import CallableEncoder, Encoder, create_encoder
from dasmil.wsi.finished import count_tiles, read_marks, remove_leftovers, save_features, slide_lock
from dasmil.wsi.reader import Slide, fingerprint
from dasmil.wsi.slide_work import Progress, SlideResult, SlideWork, worker_count


def slide_name(path: Path) -> str:
    """The name of a slide's bag: the file's name without its ending; for a series of DICOM files, the folder's."""
    if path.suffix.lower() == ".dcm" and len(list(path.parent.glob("*.dcm"))) > 1:
        return path.resolve().parent.name
    stem = path.stem
    return stem[: -len(".ome")] if stem.lower().endswith(".ome") else stem


def make_encoder(config: ExtractConfig, options: RunOptions | None = None) -> Encoder:
    """The encoder that a configuration names, ready to work."""
    options = options or RunOptions()
    function = config.encoder
    if isinstance(function, str):
        px = {"input_px": config.tile_px} if function == "none" and config.tile_px else {}
        encoder = create_encoder(function, config.weights, options.device, **px)
    else:
        if config.weights is not None:
            raise InputError("weights are given, but the encoder is a Python function, which brings its own")
        px = config.tile_px or 224
        dim = np.asarray(function(np.full((1, px, px, 3), 255, np.uint8))).shape[-1]
        name = (
            f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__qualname__)}"
        )
        encoder = CallableEncoder(function, dim=dim, input_px=px, name=name, sha256=_source_sha256(function))
    if options.batch_size is not None:
        encoder.batch_size = options.batch_size
    return encoder


def _source_sha256(function: Callable[..., Any]) -> str:
    """What stands for the weights of a user's function: its source text, where Python has it."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # made at run time, or an object with __call__
        return ""
    return hashlib.sha256(source.encode()).hexdigest()


def extract_slide(
    path: str | Path,
    out_dir: str | Path,
    config: ExtractConfig | None = None,
    *,
    options: RunOptions | None = None,
    encoder: Encoder | None = None,
    progress: Progress | None = None,
    raise_unexpected: bool = False,
) -> SlideResult:
    """Make the bag of one slide, unless it is there already; what goes wrong is in the result, not raised.

    Safe to call from many processes on one folder: a slide that another one works on is left to it ("busy").
    encoder: what make_encoder returned, to share it between slides; else it is made here. raise_unexpected: only what
    is known to be wrong with the slide is in the result; the rest is raised, for a caller that tries again.
    """
    path, out_dir = Path(path), Path(out_dir)
    config, options = config or ExtractConfig(), options or RunOptions()
    name = slide_name(path)
    result = SlideResult(name, str(path))
    if name.startswith("."):
        result.status = "failed"
        result.reason = f"{path}: its bag would be a hidden file ({name}.h5), which is never read: rename the slide"
        return result
    started = time.perf_counter()
    encoder = encoder or make_encoder(config, options)
    out_dir.mkdir(parents=True, exist_ok=True)
    try:
        with slide_lock(out_dir, name) as lock:
            if lock == "busy":
                result.status, result.reason = "busy", "another process works on it"
                return result
            if lock == "unsupported":
                result.warnings.append("this disk has no file locks: run only one extraction at a time on a folder")
            _extract(path, out_dir, config, options, encoder, progress or (lambda done, total: None), result)
    except MissingDependencyError:
        raise  # the same for every slide: nothing is gained by going on
    except DasmilError as error:
        result.status, result.reason = "failed", str(error)
    except Exception as error:  # a slide that breaks a library must not stop the others
        if raise_unexpected:
            raise
        result.status, result.reason = "failed", f"{path}: {type(error).__name__}: {error}"
    finally:
        result.seconds = round(time.perf_counter() - started, 3)
    return result


def finished_slide(path: Path, out_dir: Path, config: ExtractConfig, encoder: Encoder) -> SlideResult | None:
    """The result "skipped" if the slide's bag is there, made with this configuration and from this file; else None."""
    result = SlideResult(slide_name(path), str(path), "skipped")
    target = out_dir / f"{result.slide}.h5"
    if not target.exists() or read_marks(target) != _marks(path, _described(config, encoder)):
        return None
    result.bag = str(target)
    recall(result, out_dir)
    return result


def _described(config: ExtractConfig, encoder: Encoder) -> dict[str, Any]:
    return config.described(encoder.name, encoder.sha256, config.tile_px or encoder.input_px)


def _marks(path: Path, described: Mapping[str, Any]) -> tuple[str, str]:
    return json_hash(described), fingerprint(path) if path.is_file() else ""


def _extract(
    path: Path,
    out_dir: Path,
    config: ExtractConfig,
    options: RunOptions,
    encoder: Encoder,
    progress: Progress,
    result: SlideResult,
) -> None:
    target = out_dir / f"{result.slide}.h5"
    described = _described(config, encoder)
    marks = _marks(path, described)
    remove_leftovers(out_dir, result.slide)
    if target.exists() and not options.force:
        _check_same(path, target, marks)
        result.status, result.bag = "skipped", str(target)
        recall(result, out_dir)
        return
    with Slide(path, config.mpp) as slide, ThreadPoolExecutor(worker_count(slide, config, encoder, options)) as pool:
        try:
            work = SlideWork(slide, config, encoder, options, pool, progress, result)
            coords, features = work.run()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    if options.qc:
        folder = out_dir / "qc"
        folder.mkdir(exist_ok=True)
        result.qc = str(folder / f"{result.slide}.jpg")
        qc.save(work.checked(), Path(result.qc))
    if not len(coords):
        _remember(result, out_dir, options)
        raise DataError(f"{path}: {work.why_empty()}; look at the QC picture, and see the tissue options")
    import torch

    metadata = {
        "tile_um": config.tile_um,
        "tile_px": described["tile_px"],
        "mpp": slide.mpp,
        "mpp_origin": slide.mpp_origin,
        "slide_width_px": slide.width,
        "slide_height_px": slide.height,
        "encoder": encoder.name,
        "encoder_sha256": encoder.sha256,
        "stain": config.stain,
        "tissue": asdict(config.tissue),
        "config": described,
        "config_hash": marks[0],
        "source_fingerprint": marks[1],
        "source": path.name,
    }
    bag = Bag(torch.from_numpy(features), torch.from_numpy(coords), "um", result.slide, metadata=metadata)
    _remember(replace(result, status="done", bag=str(target)), out_dir, options)
    save_features(target, bag, config.format)  # last: a slide that has a bag is not looked at again
    result.status, result.bag = "done", str(target)


def _check_same(path: Path, target: Path, marks: tuple[str, str]) -> None:
    """Refuse to take a bag for finished that is not what this slide and these settings give."""
    found = read_marks(target)
    if found == marks:
        return
    if found is None:
        difference = "which is damaged or was made by another program"
    else:
        difference = "made from another file" if found[0] == marks[0] else "made with other settings"
    raise DataError(f"{path}: there is already {target}, {difference}; use --force to make it again, or another folder")


def _remember(result: SlideResult, out_dir: Path, options: RunOptions) -> None:
    """Keep the counts beside the QC picture, for the contact sheet of a later run that skips this slide."""
    path = out_dir / "qc" / f"{result.slide}.json"
    if not options.qc:  # what an earlier run drew would show other tiles
        path.unlink(missing_ok=True)
        path.with_suffix(".jpg").unlink(missing_ok=True)
        return
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(asdict(result)))


def recall(result: SlideResult, out_dir: Path) -> None:
    """The counts of the run that made the bag, where they are known."""
    try:
        kept = json.loads((out_dir / "qc" / f"{result.slide}.json").read_text())
    except (OSError, ValueError):  # made without QC: the bag itself says the little that it knows
        result.tiles, result.mpp = count_tiles(out_dir / f"{result.slide}.h5")
        return
    names = (
        "tiles",
        "grid_tiles",
        "blank",
        "out_of_focus",
        "stain_unchanged",
        "mpp",
        "mpp_origin",
        "reader",
        "warnings",
    )
    for name in names:
        setattr(result, name, kept.get(name, getattr(result, name)))
    picture = out_dir / "qc" / f"{result.slide}.jpg"
    result.qc = str(picture) if picture.is_file() else None
