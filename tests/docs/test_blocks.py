"""What stands in README and docs works: commands are read by the real parser, Python is executed or at least bound."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import dasmil
from dasmil.cli import app

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").rglob("*.md"))]
NAMES = {page: page.relative_to(PROJECT).as_posix() for page in PAGES}


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, text) of fenced and of indented blocks; an indented one after a list item belongs to the item."""
    fence, language, held, before = "", "", [], ""
    for line in [*text.splitlines(), "end"]:
        mark = re.match(r"\s*(```+)(\w*)", line)
        if fence:
            if line.strip() == fence:
                yield language, "\n".join(held)
                fence, held = "", []
            else:
                held.append(line)
            continue
        if line.startswith("    ") and (held or not before.strip()):
            held.append(line[4:])
            continue
        if not line.strip() and held:
            held.append("")
        elif held:
            yield "", "\n".join(held).rstrip()
            held = []
        if mark:
            fence, language, held = mark[1], mark[2], []
        before = line


def commands(text: str) -> Iterator[str]:
    """Lines of a shell block that call dasmil, continued lines joined, without comments and what stands before."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in line.split("&&"):
            words = re.match(r"^\s*(?:\S+/bin/|torchrun .* --no-python )?(dasmil\s.*)$", part)
            if words and not re.match(r"dasmil\s+(=|import)", words[1]):
                yield words[1]


def is_python(language: str, text: str) -> bool:
    if language:
        return language == "python"
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Import | ast.ImportFrom | ast.Call | ast.Assign) for node in ast.walk(tree))


SHELL = [
    pytest.param(command, id=f"{NAMES[page]}: {command[:60]}")
    for page in PAGES
    for language, text in blocks(page.read_text(encoding="utf-8"))
    if language in ("", "console", "bash", "sh") and not is_python(language, text)
    for command in commands(text)
]
PYTHON = [
    pytest.param(text, id=f"{NAMES[page]}: {text.strip().splitlines()[0][:50]}")
    for page in PAGES
    for language, text in blocks(page.read_text(encoding="utf-8"))
    if is_python(language, text)
]


def test_blocks_are_found() -> None:
    text = (
        "a\n\n    dasmil train --x  # why\n\n```python\nimport dasmil\n```\n- item\n    more of the item\n\n    b = 1\n"
    )
    found = list(blocks(text))
    assert found == [("", "dasmil train --x  # why"), ("python", "import dasmil"), ("", "b = 1")]
    assert [is_python(*block) for block in found] == [False, True, True]
    assert list(commands("cd x && .venv/bin/dasmil demo --a \\\n  b\nls")) == ["dasmil demo --a    b"]
    assert len(SHELL) > 60
    assert len(PYTHON) > 15


@pytest.mark.parametrize("command", SHELL)
def test_the_parser_takes_every_command(command: str) -> None:
    words = shlex.split(command, comments=True)[1:]
    if sorted(words) == ["--verbose", "--version"] or words[-1:] == ["--help"]:
        return
    if {"COMMAND", "..."} & set(words):  # not a whole command
        return
    app.parse_args(words, exit_on_error=False, print_error=False)


def test_a_wrong_option_is_seen() -> None:
    with pytest.raises(Exception, match="--sedes"):
        app.parse_args(["train", "--out", "x", "--sedes", "5"], exit_on_error=False, print_error=False)


def imported(tree: ast.AST) -> dict[str, object]:
    """The modules and names of ours that a block imports; one that is not there fails."""
    found: dict[str, object] = {"dasmil": dasmil}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dasmil":
            module = importlib.import_module(node.module or "")
            found |= {name.asname or name.name: getattr(module, name.name) for name in node.names}
    return found


def resolved(node: ast.expr, names: dict[str, object]) -> object | None:
    """What a dotted name of ours is, None for others."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (inner := resolved(node.value, names)) is not None:
        if inspect.ismodule(inner):
            return getattr(inner, node.attr)
        return getattr(inner, node.attr, None)
    return None


@pytest.mark.parametrize("text", PYTHON)
def test_every_call_in_a_python_block_fits_what_it_calls(text: str) -> None:
    tree = ast.parse(text)
    names = imported(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or (called := resolved(node.func, names)) is None or not callable(called):
            continue
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            continue
        given = {k.arg: None for k in node.keywords if k.arg}
        inspect.signature(called).bind(*[None] * len(node.args), **given)


def test_a_call_that_does_not_fit_is_seen() -> None:
    with pytest.raises(TypeError, match="unexpected keyword"):
        test_every_call_in_a_python_block_fits_what_it_calls("import dasmil\ndasmil.load_model('x', colour=1)")
    with pytest.raises(AttributeError):
        test_every_call_in_a_python_block_fits_what_it_calls("import dasmil\ndasmil.fitt('x')")
