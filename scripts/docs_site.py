"""Hooks of the docs site (mkdocs.yml): pages from notebooks, the parser and files outside docs, and their links."""

from __future__ import annotations

import inspect
import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PROJECT = Path(__file__).parents[1]
COPIES = {  # page of the site: the file that it is
    "know/operator.md": "src/dasmil/ops/das_attention/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
WHERE_NEW_PAGES_GO = "How to"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages that the navigation does not name at the end of one section."""
    assert config.nav is not None
    named = set(re.findall(r"[\w./-]+\.md", json.dumps(config.nav)))
    docs = Path(config.docs_dir)
    new = sorted(p.name for p in docs.glob("*.md") if p.name not in named)
    for section in config.nav:
        if WHERE_NEW_PAGES_GO in section:
            section[WHERE_NEW_PAGES_GO] += new
        if "Background" in section:
            section["Background"] += [page for page in COPIES if page not in named]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from something else."""
    for page, source in COPIES.items():
        files.append(File.generated(config, page, content=(PROJECT / source).read_text(encoding="utf-8")))
    for notebook in sorted((PROJECT / "docs" / "learn").glob("*.ipynb")):
        files.append(File.generated(config, f"learn/{notebook.stem}.md", content=notebook_page(notebook)))
    files.append(File.generated(config, "reference/cli.md", content=command_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files that the site does not have become their names; those to copied files go to the copies."""
    here = page.file.src_uri
    if here == "reference/api.md":
        markdown = with_public_names(markdown)
    source = PROJECT / COPIES.get(here, f"docs/{here}")

    def follow(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if ":" in target:
            return match[0]
        aim = Path(os.path.normpath(source.parent / target))
        if (aim / "index.md").exists():
            aim = aim / "index.md"
        copy = next((p for p, s in COPIES.items() if PROJECT / s == aim), None)
        place = copy or (aim.relative_to(PROJECT / "docs").as_posix() if aim.is_relative_to(PROJECT / "docs") else None)
        if place is None or aim.is_dir():
            name = aim.relative_to(PROJECT).as_posix() if aim.is_relative_to(PROJECT) else target
            return f"`{name}`" if text.strip("`") in (target, name) else f"{text} (`{name}`)"
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{anchor})"

    return LINK.sub(follow, markdown)


def with_public_names(markdown: str) -> str:
    """Every public name by its home, those that the page does not place yet at its end."""
    import dasmil

    missing = sorted(name for name in dasmil._HOMES if f"::: dasmil.{name}\n" not in markdown)
    if missing:
        markdown += "\n## More\n\n" + "".join(f"::: dasmil.{name}\n" for name in missing)

    def home(match: re.Match[str]) -> str:
        found = getattr(dasmil, match[1])
        return f"::: {found.__module__}.{found.__qualname__}"

    return re.sub(r"^::: dasmil\.(\w+)$", home, markdown, flags=re.M)


def notebook_page(path: Path) -> str:
    """The cells of a notebook as Markdown, with the notebook to take away."""
    parts: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    title, _, rest = parts[0].partition("\n")
    note = f"*This page is the notebook `docs/learn/{path.name}` of the sources; CI executes it on every change.*"
    return "\n\n".join([title, note, rest.strip(), *parts[1:]]) + "\n"


def command_page() -> str:
    """Every command with its options, from the parser itself."""
    from dasmil.cli import VERBS, app

    parts = [
        "# Command line",
        "Made from the parser of this version: what `dasmil COMMAND --help` shows. Exit codes: 0, 1 (failed, or "
        "something was found wrong), 2 (wrong use), 130 (interrupted).",
    ]
    for verb, line in sorted(VERBS.items()):
        command = app[verb]
        text = command.generate_docs(heading_level=2, usage_name=f"dasmil {verb}")
        text = re.sub(r"^## .*$", f"## dasmil {verb}", text, count=1, flags=re.M)
        parts.append(_without_contents(_with_examples(text, command, line)))
    return "\n\n".join(parts) + "\n"


def _with_examples(text: str, command: Any, line: str) -> str:
    """The examples of the docstring below the command's sentence."""
    function = command.default_command
    told = inspect.getdoc(function) or "" if function is not None else ""
    examples = [
        e.rstrip(";")
        for e in re.findall(
            r"^(?:\s*(?:Examples?: )?|.*Example: )(dasmil [^\n]+)$", told.split("Parameters\n")[0], re.M
        )
    ]
    block = "\n\n```console\n" + "\n".join(examples) + "\n```\n" if examples else ""
    return text.replace(line, line + block, 1) if block else text


def _without_contents(text: str) -> str:
    return re.sub(r"#+ Table of Contents\n.*?(?=\n\*\*Commands|\n#)", "", text, flags=re.S)
