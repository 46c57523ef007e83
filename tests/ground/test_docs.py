"""Pages are written for reading in a terminal and in a diff: lines of at most 120 characters."""

from pathlib import Path

PROJECT = Path(__file__).parents[2]
PRINTED = ("published.md", "key-instances-all.md")
"""Pages that a command writes."""


def too_long(text: str) -> list[str]:
    """Lines of prose above 120 characters; tables, code and pictures may be wider."""
    fenced, found = False, []
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        prose = not fenced and not line.startswith(("|", "    ", "!["))
        found += [line] if prose and len(line) > 120 else []
    return found


def test_prose_is_told_from_tables_and_code() -> None:
    long = "word " * 30
    assert too_long(f"{long}\n| {long} |\n    {long}\n```\n{long}\n```\n- {long}") == [long, f"- {long}"]


def test_every_page_is_wrapped_at_120_columns() -> None:
    pages = [*PROJECT.glob("*.md"), *(p for d in ("docs", "src", "tests") for p in (PROJECT / d).rglob("*.md"))]
    assert len(pages) > 25
    found = {
        str(p.relative_to(PROJECT)): too_long(p.read_text(encoding="utf-8")) for p in pages if p.name not in PRINTED
    }
    assert {page: lines for page, lines in found.items() if lines} == {}
