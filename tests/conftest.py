"""Tests run in parallel processes: each keeps to one thread unless it asks for more; Ctrl-C reaches its children."""

import os
import shutil
import signal
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parent))  # for label_loss.py

# A shell that starts the tests with & or nohup makes them ignore Ctrl-C, and every process they start would inherit it:
# the tests of interrupted commands would wait forever. A handler of Python's own is not inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser():
    """The one browser of a process: while a playwright session is open, a second cannot be started beside it."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=flags)


@pytest.fixture
def recomputed(monkeypatch):
    """The backward pass computes parts again in small bags too, as it does in large ones."""
    monkeypatch.setattr("dasmil.nn.recompute.SMALL", 0)
