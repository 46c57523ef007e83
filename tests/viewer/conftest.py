"""A viewer on a free port of the loopback interface, over real collages and a made slide."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import uvicorn
from playwright.sync_api import Browser, Page

from dasmil.attribution.ground import CollageGround
from dasmil.data import load_dataset
from dasmil.errors import DataError
from dasmil.models import create_model
from dasmil.types import Bag
from dasmil.viewer.server import create_app
from dasmil.viewer.shelf import Entry, Picture, Shelf


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1200, "height": 800}, accept_downloads=True)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.problems = []  # pyright: ignore[reportAttributeAccessIssue]
    page.on("pageerror", lambda error: page.problems.append(str(error)))  # pyright: ignore[reportAttributeAccessIssue]
    page.requests = []  # pyright: ignore[reportAttributeAccessIssue]
    page.on("request", lambda request: page.requests.append(request.url))  # pyright: ignore[reportAttributeAccessIssue]
    yield page
    assert page.problems == []  # pyright: ignore[reportAttributeAccessIssue]
    context.close()


@dataclass
class Viewer:
    shelf: Shelf
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


def serve(shelf: Shelf) -> Iterator[Viewer]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(create_app(shelf, port), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield Viewer(shelf, port)
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="session")
def collages() -> Iterator[Viewer]:
    """Four collages, one without its picture, one that does not fit the model; random weights, fixed."""
    torch.manual_seed(3)
    model = create_model("das-mil", preset="mnist-collage")
    bags = list(load_dataset("mnist-collage", split="test"))[:4]

    def broken(_bag: Bag) -> Picture:
        raise DataError("no slide named lost is in slides")

    entries = [
        Entry(b.bag_id, lambda b=b: b, lambda b: Picture(CollageGround(b), 1.0), b.label, 1, 0.25 * k, "test")
        for k, b in enumerate(bags)
    ]
    entries[2] = replace(entries[2], picture=broken)
    wrong = Bag(torch.zeros(3, 7), torch.zeros(3, 2), "px", "does-not-fit")
    entries.append(Entry("does-not-fit", lambda: wrong))
    yield from serve(Shelf("das-mil on collages", "for tests", model, entries))


class Checkered:
    """A ground of 4,000 x 3,000 um: blue squares of 500 um on white."""

    width, height = 4000.0, 3000.0

    def tile(self, x: float, y: float, side: float, side_px: int) -> np.ndarray:
        at = (np.arange(side_px) + 0.5) * side / side_px
        px, py = np.meshgrid(x + at, y + at)
        blue = ((px // 500 + py // 500) % 2 == 0) & (px >= 0) & (py >= 0) & (px < self.width) & (py < self.height)
        return np.where(blue[..., None], np.array([40, 60, 200]), 255).astype(np.uint8)

    def thumbnail(self, per_px: float) -> np.ndarray:
        return self.tile(0, 0, self.width, round(self.width / per_px))[: round(self.height / per_px)]


@pytest.fixture(scope="session")
def slide() -> Iterator[Viewer]:
    """3,000 tiles of 50 um on a slide of 0.5 um per pixel."""
    torch.manual_seed(4)
    y, x = torch.meshgrid(torch.arange(50), torch.arange(60), indexing="ij")
    coords = torch.stack([x, y], -1).reshape(-1, 2) * 50.0 + 225.0
    bag = Bag(torch.randn(3000, 16), coords, "um", "slide-1", 1, metadata={"tile_um": 50.0, "mpp": 0.5})
    model = create_model("das-mil", in_features=16, out_features=8, unit="um", distance_scale=200.0)
    yield from serve(
        Shelf(
            "das-mil on slides",
            "for tests",
            model,
            [Entry("slide-1", lambda: bag, lambda _b: Picture(Checkered(), 2.0))],
        )
    )


@pytest.fixture(scope="session")
def plain() -> Iterator[Viewer]:
    """A grid of 40 x 30 tiles without a slide; the strongest of them, 777, speaks against the class."""
    torch.manual_seed(6)
    model = create_model("mean-pool", in_features=4, unit="um")
    y, x = torch.meshgrid(torch.arange(30), torch.arange(40), indexing="ij")
    coords = torch.stack([x, y], -1).reshape(-1, 2) * 112.3
    features = torch.randn(1200, 4)
    features[777] = -3 * features[277]  # of which the contribution is the highest
    bag = Bag(features, coords, "um", "grid", metadata={"tile_um": 112.3})
    yield from serve(Shelf("without a slide", "for tests", model, [Entry("grid", lambda: bag)]))


@pytest.fixture(scope="session")
def three_classes() -> Iterator[Viewer]:
    """Four bags of three classes; a bag's probability is that of the class it was taken for."""
    torch.manual_seed(5)
    model = create_model("mean-pool", in_features=4, n_classes=3, unit="um")
    bag = Bag(torch.randn(5, 4), torch.rand(5, 2) * 100, "um", "any")
    known = {"surely-right": (0, 0, 0.95), "nearly-right": (1, 2, 0.4), "hardly-right": (2, 2, 0.5)}
    known["surely-wrong"] = (2, 0, 0.9)
    entries = [
        Entry(name, lambda: bag, label=label, prediction=taken_for, probability=probability)
        for name, (label, taken_for, probability) in known.items()
    ]
    yield from serve(Shelf("three classes", "for tests", model, entries, ("A", "B", "C")))
