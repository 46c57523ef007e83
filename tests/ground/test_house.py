"""The house stays easy to walk through: small modules and functions, nouns for classes, rooms that mind their own."""

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

import dasmil

SOURCES = Path(dasmil.__file__).parent
FILES = sorted(SOURCES.rglob("*.py"))
TREES = {file.relative_to(SOURCES).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in FILES}
LINES = {file.relative_to(SOURCES).as_posix(): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
COMMANDS = ("cli/", "bench/")  # whose functions have the options of a command as signature and docstring
OPERATORS = ("ops/",)  # written for the machine

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield name, node


def length(function: Function, *, signature: bool) -> int:
    """Lines of a function; without its signature and docstring where they are a command's options."""
    body = function.body
    if not signature and ast.get_docstring(function) is not None:
        body = body[1:]
    begin = function.lineno if signature or not body else body[0].lineno
    return (function.end_lineno or begin) - begin + 1


def test_modules_are_small() -> None:
    assert {name: lines for name, lines in LINES.items() if lines > 350} == {}
    assert statistics.median(LINES.values()) <= 130


def test_functions_are_small() -> None:
    found = {
        f"{name}: {function.name}": length(function, signature=not name.startswith(COMMANDS))
        for name, function in functions()
        if not name.startswith(OPERATORS)
    }
    assert {where: lines for where, lines in found.items() if lines > 60} == {}


def test_a_long_function_is_seen() -> None:
    text = 'def f(\n    a,\n):\n    """One."""\n' + "    a += 1\n" * 61
    (function,) = ast.parse(text).body
    assert isinstance(function, Function)
    assert length(function, signature=True) == 65
    assert length(function, signature=False) == 61


def test_classes_are_nouns() -> None:
    nouns = {"Feed", "Seed", "Speed"}
    allowed = {"Aggregated", "Compared"}  # what models of one's own return; what several runs were found to be
    names = {node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    assert "Bag" in names
    assert {name for name in names if re.fullmatch(r"[A-Z][a-z]+ed", name)} - nouns - allowed == set()


RUN_FILES = ("config.json", "data.json", "versions.json", "status.json", "metrics.csv", "predictions.csv",
             "checkpoint.safetensors", "checkpoint.json", "report.html")  # fmt: skip
OWN_MEANING = {
    "models/storage.py": {"config.json"},  # beside model.safetensors, for model hubs
    "study/hub.py": {"config.json"},  # the same
    "study/compare.py": {"report.html"},  # the page of several runs, beside none of them
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
    "data/inspect_hdf5.py": "the answers of a child process",
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
