"""The docs site builds offline without a warning, a new page needs no line of its own, and nothing is fetched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="needs the extra docs")
pytest.importorskip("material", reason="needs the extra docs")

import dasmil
from dasmil.cli import VERBS

PROJECT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "modulepreload"}


class Assets(HTMLParser):
    """Collects what a browser fetches with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in LOADED and given.get(LOADED[tag]):
            self.found.append(given[LOADED[tag]] or "")
        if tag == "link" and LOADED_LINKS & set((given.get("rel") or "").split()):
            self.found.append(given.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources with one more page, as a colleague would add it."""
    place = tmp_path_factory.mktemp("docs")
    for name in ("docs", "scripts"):
        ignored = shutil.ignore_patterns("__pycache__", "*.npz")
        shutil.copytree(PROJECT / name, place / name, ignore=ignored)
    (place / "src").symlink_to(PROJECT / "src", target_is_directory=True)
    for name in ("mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, place / name)
    new = "# A new page\n\nSee [training](training.md), [the sources](../src/dasmil/types.py) and [all](results).\n"
    (place / "docs" / "new-page.md").write_text(new)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", place / "site"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(PROJECT / "src")}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return place / "site"


def test_the_site_is_whole(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    assert "images/viewer.png" in home
    assert "dasmil demo" in home
    new = (site / "new-page.html").read_text(encoding="utf-8")  # in the navigation, its links mended
    assert re.search(r'href="[^"]*new-page\.html"', home)
    assert "<code>src/dasmil/types.py</code>" in new
    assert 'href="results/index.html"' in new
    commands = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    assert [verb for verb in VERBS if f"dasmil {verb}" not in commands] == []
    assert "--seeds" in commands
    python = (site / "reference" / "api.html").read_text(encoding="utf-8")
    homes = {f"{getattr(dasmil, name).__module__}.{name}" for name in dasmil._HOMES}
    assert {home for home in homes if f'id="{home}"' not in python} == set()
    learn = (site / "learn" / "first-model.html").read_text(encoding="utf-8")
    assert "A first model" in learn
    assert "load_dataset" in learn
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    fetched = {}
    for page in pages:
        assets = Assets()
        assets.feed(page.read_text(encoding="utf-8"))
        fetched |= dict.fromkeys(assets.found, page.name)
    assert any(asset.endswith(".css") for asset in fetched)
    assert {asset: page for asset, page in fetched.items() if re.match(r"(https?:)?//", asset)} == {}
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", text) == [], sheet.name
