"""The house stays easy to walk through: nouns for classes, rooms that mind their own. Complexity is ruff's to limit."""

import ast
import re
from pathlib import Path

import pytest

import dasmil

SOURCES = Path(dasmil.__file__).parent
FILES = sorted(SOURCES.rglob("*.py"))
TREES = {file.relative_to(SOURCES).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in FILES}
COMMANDS = ("cli/",)  # whose functions have the options of a command as signature and docstring


def test_classes_are_nouns() -> None:
    nouns = {"Feed", "Seed", "Speed"}
    allowed = {"Aggregated", "Compared"}  # what models of one's own return; what several runs were found to be
    names = {node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    assert "Bag" in names
    assert {name for name in names if re.fullmatch(r"[A-Z][a-z]+ed", name)} - nouns - allowed == set()


RUN_FILES = ("config.json", "data.json", "versions.json", "status.json", "metrics.csv", "predictions.csv",
             "checkpoint.safetensors", "checkpoint.json", "report.html", "bags.json")  # fmt: skip
OWN_MEANING = {
    "models/storage.py": {"config.json"},  # beside model.safetensors, for model hubs
    "study/hub.py": {"config.json"},  # the same
    "study/compare.py": {"report.html"},  # the page of several runs, beside none of them
    "space/result.py": {"report.html"},  # the page of a study of space
    "cli/predict.py": {"predictions.csv"},  # the table that is written where the user wants it
}


@pytest.mark.parametrize("file", RUN_FILES)
def test_only_runs_names_the_files_of_a_run(file: str) -> None:
    """In code; a sentence or a docstring may tell the user of them."""
    found = {
        name
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value == file and file not in OWN_MEANING.get(name, ())
    }
    assert found == {"runs/layout.py"}


def test_there_is_one_display_of_progress() -> None:
    """Lines that rich renews on a terminal."""
    found = {
        name
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "status")
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("rich.live", "rich.progress")))
    }
    assert found == {"cli/display.py"}


PRINTERS = {
    "data/inspect_files.py": "the answers of a child process",
    "train/plan.py": "the answer of a child process",
    "train/progress.py": "what fit shows on standard error where nobody listens; progress=False is silent",
    "engine/units.py": "the log of a unit",
    "study/progress.py": "the log of a unit",
    "study/units.py": "the log of a unit",
    "wsi/slide_units.py": "the log of a unit",
}


def test_library_code_prints_nothing() -> None:
    found = {
        name
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print")
        or (isinstance(node, ast.Attribute) and node.attr in ("stderr", "stdout") and ast.unparse(node.value) == "sys")
    }
    assert {name for name in found if not name.startswith(COMMANDS)} == set(PRINTERS)
