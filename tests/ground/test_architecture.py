"""The drawing of docs/architecture.md is the law: the linter forbids every arrow that it does not show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dasmil

SOURCES = Path(dasmil.__file__).parent
PROJECT = Path(__file__).parents[2]
GROUND = ("errors", "types", "files", "devices", "stats", "vocabulary")

pytest.importorskip("importlinter")


def drawing() -> dict[str, set[str]]:
    """What each room may import: the ground floor as the text says, the rooms above it as drawn."""
    text = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^    (\w+) +<- (.+)$", text, flags=re.MULTILINE)
    rooms = {room: set() if names.startswith("(") else set(names.split(", ")) for room, names in drawn}
    allowed = {room: names | set(GROUND) for room, names in rooms.items()}
    allowed |= {room: {"errors"} - {room} for room in GROUND}
    above = set(allowed)
    return allowed | {"bench": above, "cli": above | {"bench"}}


def contracts() -> dict[str, set[str]]:
    """What the linter lets each room import."""
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    rooms = {path.stem for path in SOURCES.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    rooms -= {"__init__", "__main__"}  # no rooms but doors, the second to cli
    found = {room: rooms - {room} for room in rooms}
    for contract in tomllib.loads(text)["tool"]["importlinter"]["contracts"]:
        for room in contract["source_modules"]:
            found[room.removeprefix("dasmil.")] -= {
                name.removeprefix("dasmil.") for name in contract["forbidden_modules"]
            }
    return found


def arrows() -> dict[str, set[str]]:
    """What each room imports."""
    import grimp

    graph, found = grimp.build_graph("dasmil", cache_dir=None), {}
    for module in graph.modules - {"dasmil"}:
        own = module.split(".")[1]
        seen = {name.split(".")[1] for name in graph.find_modules_directly_imported_by(module) if "." in name}
        found[own] = found.get(own, set()) | (seen - {own})
    return found


def test_the_contracts_are_the_drawing_and_every_arrow_of_it_is_used() -> None:
    assert contracts() == drawing()
    above = {room: names - set(GROUND) for room, names in drawing().items() if room not in (*GROUND, "bench", "cli")}
    assert {room: arrows()[room] - set(GROUND) for room in above} == above


def test_every_forbidden_arrow_makes_the_linter_fail(tmp_path: Path) -> None:
    copy = tmp_path / "dasmil"
    shutil.copytree(SOURCES, copy, ignore=lambda _, names: [n for n in names if n == "__pycache__"])
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    allowed = drawing()
    forbidden = {(a, b) for a in allowed for b in allowed if a != b and b not in allowed[a]}
    for a, b in forbidden:
        if (copy / a).is_dir():
            (copy / a / f"arrow_{b}.py").write_text(f"import dasmil.{b}\n")
        else:
            with (copy / f"{a}.py").open("a") as file:
                file.write(f"\nimport dasmil.{b}\n")
    program = "import sys; from importlinter import cli; sys.exit(cli.lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "300", "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    found = set(re.findall(r"dasmil\.(\w+)(?:\.arrow_\w+)? -> dasmil\.(\w+)", done.stdout))
    assert len(forbidden) > 150
    assert forbidden - found == set()


def test_every_package_that_is_always_installed_is_imported() -> None:
    needed = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = [re.split(r"[<>=~ ]", package)[0].replace("-", "_") for package in needed]
    modules = [{"pillow": "PIL", "scikit_learn": "sklearn"}.get(name, name) for name in names]
    text = "\n".join(file.read_text(encoding="utf-8") for file in SOURCES.rglob("*.py"))
    assert [name for name in modules if not re.search(rf"^ *(import|from) {name}\b", text, re.MULTILINE)] == []
