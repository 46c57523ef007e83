"""The drawing of docs/architecture.md is the law: the linter forbids every arrow that it does not show."""

from __future__ import annotations

import ast
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
    """What each room may import, read without the program that the linter uses."""
    rooms = {path.stem for path in SOURCES.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    rooms -= {"__init__", "__main__"}  # no rooms but doors, the second to cli
    lines = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()
    allowed = {}
    for line in lines:
        if line.startswith("    ") and " <- " in line:
            room, names = line.split("<-")
            named = {name.strip() for name in names.split(",")}
            named |= set(GROUND) if "ground floor" in named else rooms if "(all)" in named else set()
            allowed[room.strip()] = named - {"ground floor", "(all)", "(nothing)", room.strip()}
    assert set(allowed) == rooms
    return allowed


def arrows() -> dict[str, set[str]]:
    """What each room imports."""
    import grimp

    graph, found = grimp.build_graph("dasmil", cache_dir=None), {}
    for module in graph.modules - {"dasmil"}:
        own = module.split(".")[1]
        seen = {name.split(".")[1] for name in graph.find_modules_directly_imported_by(module) if "." in name}
        found[own] = found.get(own, set()) | (seen - {own})
    return found


def test_the_walk_of_a_slide_and_the_table_of_changes_name_what_is_there() -> None:
    text = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    steps = re.findall(r"([a-z_/]+\.py):([a-z_]+)", text)
    assert len(steps) > 20
    for file, name in steps:
        tree = ast.parse((SOURCES / file).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        again = {alias.asname or alias.name for n in tree.body if isinstance(n, ast.ImportFrom) for alias in n.names}
        assert name in functions | again, f"{file} has no function {name}"
    changes = text.partition("## Where a change goes")[2].partition("\n## ")[0]
    files = {file for file in re.findall(r"`([a-z_0-9/]+\.py)`", changes) if "NAME" not in file}
    assert len(files) > 8
    assert not [file for file in files if not (SOURCES / file).is_file()]


def test_every_arrow_of_the_drawing_is_used() -> None:
    above = {room: names - set(GROUND) for room, names in drawing().items() if room not in (*GROUND, "cli")}
    assert {room: arrows()[room] - set(GROUND) for room in above} == above


def test_the_drawing_has_no_circle() -> None:
    left = drawing()
    while free := {room for room, names in left.items() if not names & set(left)}:
        left = {room: names for room, names in left.items() if room not in free}
    assert left == {}


def test_every_forbidden_arrow_makes_the_linter_fail(tmp_path: Path) -> None:
    copy = tmp_path / "dasmil"
    shutil.copytree(SOURCES, copy, ignore=lambda _, names: [n for n in names if n == "__pycache__"])
    for name in ("pyproject.toml", "docs/architecture.md", "scripts/import_contract.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / name, tmp_path / name)
    allowed = drawing()
    forbidden = {(a, b) for a in allowed for b in allowed if a != b and b not in allowed[a]}
    for a, b in forbidden:
        if (copy / a).is_dir():
            (copy / a / f"arrow_{b}.py").write_text(f"import dasmil.{b}\n")
        else:
            with (copy / f"{a}.py").open("a") as file:
                file.write(f"\nimport dasmil.{b}\n")
    (copy / "attic.py").write_text("import dasmil.errors\n")
    program = "import sys; from importlinter import cli; sys.exit(cli.lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "300", "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    found = set(re.findall(r"dasmil\.(\w+)(?:\.arrow_\w+)? -> dasmil\.(\w+)", done.stdout))
    assert len(forbidden) > 150
    assert found == forbidden
    assert "dasmil.attic: the room attic has no row in docs/architecture.md" in done.stdout


def test_every_package_that_is_always_installed_is_imported() -> None:
    needed = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = [re.split(r"[<>=~ ]", package)[0].replace("-", "_") for package in needed]
    modules = [{"pillow": "PIL", "scikit_learn": "sklearn"}.get(name, name) for name in names]
    text = "\n".join(file.read_text(encoding="utf-8") for file in SOURCES.rglob("*.py"))
    assert [name for name in modules if not re.search(rf"^ *(import|from) {name}\b", text, re.MULTILINE)] == []
