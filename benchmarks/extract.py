"""`dasmil bench extract`: the pipeline beside a bare OpenSlide loop, its memory, and Macenko beside torchstain.

Every part runs in a process of its own with one numerical thread, and both sides of a ratio alternate in it.
"""

from __future__ import annotations

import json as json_module
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from benchmarks.figures import Figures
from benchmarks.measure import in_fresh_process

SIDE_PX = 20_480
TILE_UM, TILE_PX, MPP = 256.0, 224, 0.5
ME = "benchmarks.extract"


def main(
    *,
    slide: Path | None = None,
    side_px: int = SIDE_PX,
    repeats: int = 3,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare the extraction pipeline with a bare OpenSlide loop, and Macenko with torchstain's NumPy version.

    Example: dasmil bench extract --slide CMU-1-Small-Region.svs

    Parameters
    ----------
    slide
        A real slide; without it, the one that the project's own tests use, where the source tree is at hand.
    side_px
        Width and height of the made-up slide (a tiled, pyramidal JPEG TIFF in a temporary folder).
    repeats
        Both sides run this often in turn; the best time of each counts.
    json
        Print the figures as JSON.
    """
    real = slide or _test_slide()
    with tempfile.TemporaryDirectory(prefix="dasmil-bench-") as folder:
        made, small = Path(folder) / "made.tif", Path(folder) / "made-small.tif"
        make_slide(made, side_px)
        make_slide(small, side_px // 2)
        pipelines = {"made-up slide": in_fresh_process(ME, "pipeline", made, repeats)}
        if real:
            pipelines["real slide"] = in_fresh_process(ME, "pipeline", real, 4 * repeats)
        memory = [in_fresh_process(ME, "memory", path, 1) for path in (small, made)]
        stain = in_fresh_process(ME, "stain", real or made, repeats)
    details = {"pipelines": pipelines, "memory": memory, "stain": stain}
    return _figures(pipelines, memory, stain, details).show(json=json)


def _figures(
    pipelines: dict[str, dict[str, Any]], memory: list[dict[str, Any]], stain: dict[str, Any], details: dict[str, Any]
) -> Figures:
    figures = Figures("extract", "The extraction pipeline beside a bare OpenSlide loop", details=details)
    for slide, row in pipelines.items():
        figures.notes.append(
            f"{slide}: {row['width']:,} x {row['height']:,} px, {row['tiles']:,} tiles, best of {row['repeats']}"
        )
        names = {"bare": "bare loop", "pipeline": f"pipeline, {row['workers']} workers", "one_worker": "one worker"}
        for key, words in names.items():
            figures.add(f"{slide}, {words}", row[key], "s")
            figures.add(f"{slide}, {words}, processor time", row["processor"][key], "s")
        figures.add(f"{slide}, pipeline relative to the bare loop", row["pipeline"] / row["bare"], "x", goal="time")
        used = row["processor"]["pipeline"] / row["processor"]["bare"]
        figures.add(f"{slide}, the same in processor time", used, "x")
    if "real slide" not in pipelines:
        figures.notes.append("real slide: not measured, give one with --slide")
    for row in memory:
        size = f"{row['width']:,} x {row['height']:,} px"
        figures.add(f"{size}, peak memory of the pipeline", row["peak_gb"], "GB", goal="memory_gb")
        figures.add(f"{size}, memory before the first tile", row["start_gb"], "GB")
    figures.add(f"Macenko, {stain['tiles']} tiles of {TILE_PX} px, one thread", stain["dasmil"], "tiles/s")
    if stain["torchstain"] is None:
        figures.notes.append("torchstain is not installed: not measured")
    else:
        figures.add("the same by torchstain, NumPy", stain["torchstain"], "tiles/s")
        figures.add("relative to torchstain", stain["dasmil"] / stain["torchstain"], "x", goal="stain_gain")
        figures.add("largest difference between them", stain["largest_difference"], "grey levels")
    return figures


def make_slide(path: Path, side_px: int) -> None:
    """Write a made-up H&E slide: an ellipse of cells on glass, three levels, JPEG, in memory of a few megabytes."""
    import numpy as np
    import tifffile

    tile = 256
    texture = _texture(2048)
    half = side_px / 2

    def blocks(factor: int) -> Iterator[np.ndarray]:
        pattern = texture.reshape(2048 // factor, factor, 2048 // factor, factor, 3).mean(axis=(1, 3)).astype(np.uint8)
        count = -(-(side_px // factor) // tile)
        position = (np.arange(tile) + 0.5) * factor
        for row in range(count):
            for column in range(count):
                y, x = row * tile * factor + position, column * tile * factor + position
                inside = ((y[:, None] - half) / (0.44 * side_px)) ** 2 + ((x - half) / (0.4 * side_px)) ** 2 < 1
                block = np.full((tile, tile, 3), 244, np.uint8)
                if inside.any():
                    rows = (np.arange(tile) + row * tile) % len(pattern)
                    columns = (np.arange(tile) + column * tile) % len(pattern)
                    block[inside] = pattern[rows[:, None], columns[None, :]][inside]
                yield block

    with tifffile.TiffWriter(path, bigtiff=True) as file:
        for factor in (1, 4, 16):
            size = side_px // factor
            file.write(
                blocks(factor),
                shape=(size, size, 3),
                dtype="uint8",
                tile=(tile, tile),
                photometric="rgb",
                compression="jpeg",
                compressionargs={"level": 80},
                resolution=(1e4 / MPP / factor, 1e4 / MPP / factor),
                resolutionunit="CENTIMETER",
                subfiletype=1 if factor > 1 else 0,
                metadata=None,
            )


def _texture(side: int) -> Any:
    """Cells in pink ground: purple nuclei at random places, and noise as a camera has it."""
    import numpy as np
    from scipy import ndimage

    rng = np.random.default_rng(0)
    nuclei = np.zeros((side, side), np.float32)
    nuclei[rng.integers(0, side, side * side // 300), rng.integers(0, side, side * side // 300)] = 1
    nuclei = np.clip(ndimage.gaussian_filter(nuclei, 4, mode="wrap") * 90, 0, 1)
    fibres = ndimage.gaussian_filter(rng.standard_normal((side, side)).astype(np.float32), (1, 6), mode="wrap")
    fibres = np.clip(0.5 + fibres / fibres.std() / 4, 0, 1)
    density = nuclei[..., None] * np.array([1.0, 1.2, 0.6]) + fibres[..., None] * np.array([0.1, 0.6, 0.3])
    noise = rng.normal(0, 4, (side, side, 3))
    return np.clip(240 * np.exp(-density) + noise, 0, 255).astype(np.uint8)


def _test_slide() -> Path | None:
    path = Path(__file__).resolve().parents[1] / "tests" / "data" / "CMU-1-Small-Region.svs"
    return path if path.is_file() else None


def _measure_pipeline(path: Path, repeats: int) -> dict[str, Any]:
    import numpy as np
    import openslide

    from dasmil.data.store import read_coords
    from dasmil.wsi.config import ExtractConfig, RunOptions
    from dasmil.wsi.pipeline import extract_slide, make_encoder
    from dasmil.wsi.reader import Slide

    config = ExtractConfig(tile_um=TILE_UM, tile_px=TILE_PX, stain="none", encoder="null")
    encoder = make_encoder(config)
    with tempfile.TemporaryDirectory(prefix="dasmil-bench-") as folder:

        def pipeline(workers: int) -> None:
            result = extract_slide(
                path, folder, config, options=RunOptions(workers=workers, force=True), encoder=encoder
            )
            if result.status != "done":
                raise SystemExit(result.reason)

        pipeline(0)
        corners = read_coords(Path(folder) / f"{path.stem}.h5") - TILE_UM / 2
        with Slide(path) as slide:
            level = slide.best_level(TILE_UM / TILE_PX)
            size = int(np.ceil(TILE_UM / slide.mpp / slide.levels[level].downsample))
            places = [(round(x), round(y)) for x, y in (corners / slide.mpp).tolist()]
            found = {"width": slide.width, "height": slide.height, "tiles": len(places), "level": level}

        def bare() -> None:
            with openslide.OpenSlide(str(path)) as slide:
                for place in places:
                    np.asarray(slide.read_region(place, level, (size, size)).convert("RGB"))

        jobs = {"bare": bare, "pipeline": lambda: pipeline(0), "one_worker": lambda: pipeline(1)}
        times, processor = _alternate(jobs, repeats)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4
    return {**found, **times, "processor": processor, "repeats": repeats, "workers": min(8, cores)}


def _measure_memory(path: Path, repeats: int) -> dict[str, Any]:
    from dasmil.wsi.config import ExtractConfig
    from dasmil.wsi.pipeline import extract_slide
    from dasmil.wsi.reader import Slide

    with Slide(path) as slide:
        found = {"width": slide.width, "height": slide.height, "start_gb": _peak_gb()}
    with tempfile.TemporaryDirectory(prefix="dasmil-bench-") as folder:
        result = extract_slide(path, folder, ExtractConfig(tile_um=TILE_UM, tile_px=TILE_PX, encoder="null"))
    if result.status != "done":
        raise SystemExit(result.reason)
    return {**found, "peak_gb": _peak_gb()}


def _measure_stain(path: Path, repeats: int) -> dict[str, Any]:
    import importlib.util

    import numpy as np

    from dasmil.wsi.reader import Slide
    from dasmil.wsi.stain import fit_stains, normalise_tile
    from dasmil.wsi.tiling import make_grid

    with Slide(path) as slide:
        corners = make_grid(slide.width_um, slide.height_um, TILE_UM).corners()
        places = np.stack(corners, axis=1).tolist()
        step = max(1, len(places) // 60)
        tiles = [slide.read_tile(x, y, TILE_UM, TILE_PX) for x, y in places[::step]]
    tiles = [tile for tile in tiles if fit_stains(tile) is not None]
    jobs: dict[str, Callable[[], Any]] = {"dasmil": lambda: [normalise_tile(tile) for tile in tiles]}
    largest = None
    if importlib.util.find_spec("torchstain"):
        from torchstain.numpy.normalizers import NumpyMacenkoNormalizer

        other = NumpyMacenkoNormalizer()
        # Without the two single-stain pictures, which we do not make either.
        jobs["torchstain"] = lambda: [other.normalize(tile, stains=False)[0] for tile in tiles]
        pairs = [(normalise_tile(tile)[0].astype(int), other.normalize(tile, stains=False)[0]) for tile in tiles]
        largest = max(int(np.abs(ours - theirs).max()) for ours, theirs in pairs)
    _, processor = _alternate(jobs, 3 * repeats)
    rates = {name: len(tiles) / seconds for name, seconds in processor.items()}
    return {"tiles": len(tiles), "torchstain": None, **rates, "largest_difference": largest}


def _alternate(jobs: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """The best time of each job and its best processor time (all threads), in seconds.

    The jobs take turns, so that what else the machine does hits all alike.
    """
    wall, processor = dict.fromkeys(jobs, float("inf")), dict.fromkeys(jobs, float("inf"))
    for _ in range(repeats):
        for name, job in jobs.items():
            started, used = time.perf_counter(), time.process_time()
            job()
            wall[name] = min(wall[name], time.perf_counter() - started)
            processor[name] = min(processor[name], time.process_time() - used)
    return wall, processor


def _peak_gb() -> float:
    """The most memory that this process held so far, in GB (10^9 bytes)."""
    status = Path("/proc/self/status")
    if status.is_file():
        lines = status.read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e9
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9


if __name__ == "__main__":
    _, _part, _path, _repeats = sys.argv
    _measures = {"pipeline": _measure_pipeline, "memory": _measure_memory, "stain": _measure_stain}
    print(json_module.dumps(_measures[_part](Path(_path), int(_repeats))))
