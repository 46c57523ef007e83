"""`dasmil bench viewer`: one very large bag in the viewer, in a real browser: waiting times, frames, bytes, memory."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from benchmarks.figures import Figures

if TYPE_CHECKING:
    from playwright.sync_api import Page

TILES, FEATURES = 100_000, 768
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
SCREEN = {"width": 1440, "height": 900}
SHOWN = {
    "first_picture": ("first picture: tiles in their places", "s"),
    "contributions": ("coloured by contribution: forward pass over all pairs, and attribution", "s"),
    "again": ("the same bag again: attribution kept by the server", "s"),
    "started_anew": ("the viewer started anew: attribution kept with the run", "s"),
    "click": ("click on a tile, until its partners are shown", "s"),
    "click_server": ("the server's part of it", "s"),
    "next_score": ("another score", "s"),
    "hover_ms": ("tile under the mouse", "ms"),
    "transferred_mb": ("transferred", "MB"),
    "server_gb": ("memory of the server, peak", "GB"),
    "page_mb": ("script objects of the page", "MB"),
}

FRAMES = """() => { window.frames_seen = []; let last = performance.now(); window.frames_on = true;
    const step = (now) => { window.frames_seen.push(now - last); last = now;
        if (window.frames_on) requestAnimationFrame(step); };
    requestAnimationFrame(step); }"""
HOVER = """([x, y]) => { const stage = document.querySelector('#stage'); const start = performance.now();
    for (let k = 0; k < 200; k++) stage.dispatchEvent(
        new MouseEvent('mousemove', {clientX: x + k, clientY: y + k % 37, bubbles: true}));
    return (performance.now() - start) / 200; }"""


@dataclass(frozen=True)
class Frames:
    """Milliseconds between frames while the view moves."""

    median: float
    p95: float
    longest: float
    count: int


def main(*, tiles: int = TILES, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Open one bag in the viewer with Chromium and measure what a user waits for.

    Example: dasmil bench viewer --tiles 100000

    The bag is a made slide of 768 features a tile on a plain ground. Needs Playwright (pip install playwright) and
    Chromium; without them it says so and measures nothing.

    Parameters
    ----------
    tiles
        Instances of the bag.
    json
        Print the figures as JSON.
    """
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    missing = "Chromium (apt-get install chromium)" if browser is None else None
    try:
        import playwright.sync_api  # noqa: F401 # pyright: ignore[reportUnusedImport]
    except ImportError:
        missing = "Playwright (pip install playwright)"
    if browser is None or missing:
        print(f"Not measured: the bench drives a real browser and needs {missing}.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make(folder, tiles)
        with _viewer(folder) as (url, process):
            found, frames = measure(url, browser, lambda: _peak_gb(process.pid))
        with _viewer(folder) as (url, _):
            found["started_anew"] = first_colours(url, browser)
    title = f"{tiles:,} tiles, {FEATURES} features, window {SCREEN['width']} x {SCREEN['height']}, software rendering"
    figures = Figures("viewer", title, details={name: asdict(one) for name, one in frames.items()})
    for name, (words, unit) in SHOWN.items():
        figures.add(words, found[name], unit)
    for name, one in frames.items():
        figures.add(f"frames, {name}, median", one.median, "ms")
        figures.add(f"frames, {name}, 95 % within", one.p95, "ms")
    return figures.show(json=json)


def _make(folder: Path, tiles: int) -> None:
    import torch

    from dasmil.data.store import write_bag
    from dasmil.data.synthetic import MadeCohort
    from dasmil.models import create_model
    from dasmil.runs import Seed

    bags = folder / "bags"
    bags.mkdir()
    bag = MadeCohort(tiles=(tiles, tiles), in_features=FEATURES).slide("large", 1, (0,))
    write_bag(bags / "large.h5", bag, dtype="float16")
    torch.manual_seed(0)
    model = create_model("das-mil", in_features=FEATURES, preset="camelyon16", distance_scale=2000.0, unit="um")
    seed = Seed.of(folder / "run", 0)  # in a run accounts are kept
    model.save(seed.model_file)
    seed.predictions_file.write_text("bag_id,split,label,prediction,probability\n")


@contextmanager
def _viewer(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    from dasmil.runs import Seed

    command = [sys.executable, "-c", "import sys; from dasmil.cli import main; sys.exit(main())", "view"]
    command += [
        "--model",
        str(Seed.of(folder / "run", 0).model_file),
        "--bags",
        str(folder / "bags"),
        "--no-open",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert process.stdout is not None
        url = next((line.strip() for line in process.stdout if line.startswith("http://")), None)
        if url is None:
            from dasmil.errors import DasmilError

            raise DasmilError("the viewer did not start: see its message above")
        yield url, process
    finally:
        process.terminate()
        process.wait()


def _peak_gb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return float("nan")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 2**20


def measure(url: str, browser_path: str, memory: Callable[[], float]) -> tuple[dict[str, float], dict[str, Frames]]:
    """One page: open, open again, click, other score, hover, then pan and zoom."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=list(FLAGS))
        page = browser.new_page(viewport=SCREEN)  # pyright: ignore[reportArgumentType]
        page.set_default_timeout(600_000)
        received: list[float] = []
        server: list[float] = []
        page.on("response", lambda r: received.append(float(r.headers.get("content-length", 0))))
        page.on("requestfinished", lambda r: server.append(r.timing["responseEnd"]) if "/partners/" in r.url else None)
        first = _timed(lambda: (page.goto(url), page.wait_for_selector("body[data-placed]")))
        coloured = first + _timed(lambda: page.wait_for_selector("body[data-ready]"))
        transferred = sum(received) / 1e6
        again = min(_timed(lambda: (page.reload(), page.wait_for_selector("body[data-ready]"))) for _ in range(3))
        page.wait_for_timeout(500)
        frames = {"still": _frames(page, lambda: page.wait_for_timeout(1000))}
        middle = (SCREEN["width"] - 360) / 2, SCREEN["height"] / 2
        clicks = []
        for k in range(5):
            page.keyboard.press("Escape")
            page.wait_for_selector("#tile h2", state="detached")
            page.wait_for_timeout(400)  # two quick clicks at one place would zoom
            clicks.append(_timed(lambda k=k: _click(page, middle[0] + 23 * k, middle[1] + 11 * k)))
        scores = []
        for name in page.locator("#score option").evaluate_all("all => all.map(o => o.value)")[:4]:
            scores.append(_timed(lambda name=name: _choose(page, name)))
        hover = page.evaluate(HOVER, [middle[0] - 100, middle[1]])
        frames["panning, whole"] = _frames(page, lambda: _pan(page, *middle))
        frames["zooming in"] = _frames(page, lambda: _zoom(page, middle, -240, 14))
        frames["panning, close"] = _frames(page, lambda: _pan(page, *middle))
        frames["zooming out"] = _frames(page, lambda: _zoom(page, middle, 240, 14))
        heap = page.evaluate("() => performance.memory ? performance.memory.usedJSHeapSize / 1e6 : NaN")
        browser.close()
    found = {
        "first_picture": first,
        "contributions": coloured,
        "again": again,
        "click": min(clicks),
        "click_server": min(server) / 1000,
        "next_score": min(scores[1:]),
        "hover_ms": hover,
        "transferred_mb": transferred,
        "server_gb": memory(),
        "page_mb": heap,
    }
    return found, frames


def first_colours(url: str, browser_path: str) -> float:
    """Seconds from the address to the coloured tiles in a viewer that has just been started."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=list(FLAGS))
        page = browser.new_page(viewport=SCREEN)  # pyright: ignore[reportArgumentType]
        page.set_default_timeout(600_000)
        return _timed(lambda: (page.goto(url), page.wait_for_selector("body[data-ready]")))


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _click(page: Page, x: float, y: float) -> None:
    page.mouse.click(x, y)
    page.wait_for_selector("#tile h2")


def _choose(page: Page, name: str) -> None:
    """Switch the overlay and wait until the page has drawn it."""
    page.evaluate("() => { document.body.dataset.shown = ''; }")
    page.select_option("#score", name)
    page.wait_for_selector(f"body[data-shown='{name}']")


def _pan(page: Page, x: float, y: float) -> None:
    page.mouse.move(x, y)
    page.mouse.down()
    for k in range(60):
        page.mouse.move(x + 180 * ((k % 20) / 20 - 0.5), y + 120 * ((k % 15) / 15 - 0.5))
        page.wait_for_timeout(16)
    page.mouse.up()
    page.wait_for_timeout(600)


def _zoom(page: Page, at: tuple[float, float], by: float, times: int) -> None:
    page.mouse.move(*at)
    for _ in range(times):
        page.mouse.wheel(0, by)
        page.wait_for_timeout(120)
    page.wait_for_timeout(600)


def _frames(page: Page, action: Callable[[], object]) -> Frames:
    page.evaluate(FRAMES)
    action()
    seen = page.evaluate("() => { window.frames_on = false; return window.frames_seen; }")[1:]
    ordered = sorted(seen)
    return Frames(statistics.median(seen), ordered[int(0.95 * (len(ordered) - 1))], ordered[-1], len(seen))
