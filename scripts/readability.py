"""Print how readable the guides are: mean sentence length and Flesch reading ease of every page.

    python scripts/readability.py README.md docs/*.md

Flesch reading ease = 206.835 - 1.015 x words per sentence - 84.6 x syllables per word (Flesch, 1948). Syllables are
counted by the hyphenation patterns of pyphen. Only prose counts: no code, tables, headings or pictures.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pyphen

SYLLABLES = pyphen.Pyphen(lang="en_US")
BLOCKS = (r"```.*?```", r"<!--.*?-->", r"^    .*$", r"^\|.*$", r"^#.*$", r"!\[[^\]]*\]\([^)]*\)")


@dataclass(frozen=True)
class Readability:
    sentences: int
    words: int
    syllables: int

    @property
    def sentence_length(self) -> float:
        return self.words / max(1, self.sentences)

    @property
    def flesch(self) -> float:
        return 206.835 - 1.015 * self.sentence_length - 84.6 * self.syllables / max(1, self.words)


def prose(markdown: str) -> list[str]:
    """The sentences of a page."""
    for pattern in BLOCKS:
        markdown = re.sub(
            pattern, "\n\n", markdown, flags=re.DOTALL | re.MULTILINE if "```" in pattern else re.MULTILINE
        )
    markdown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    markdown = re.sub(r"`[^`]*`", "code", markdown)
    markdown = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", markdown, flags=re.MULTILINE)
    paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", markdown)]
    sentences = [s for p in paragraphs for s in re.split(r"(?<=[.!?:])\)? +(?=[A-Z\"(*c])", p)]
    return [s for s in sentences if len(re.findall(r"[A-Za-z]+", s)) >= 3]


def readability(markdown: str) -> Readability:
    sentences = prose(markdown)
    words = [w for s in sentences for w in re.findall(r"[A-Za-z][A-Za-z']*", s)]
    return Readability(len(sentences), len(words), sum(len(SYLLABLES.positions(w)) + 1 for w in words))


def main(paths: list[str]) -> None:
    found = {path: readability(Path(path).read_text(encoding="utf-8")) for path in paths}
    print("  words  words/sentence  Flesch  page")
    for path, r in sorted(found.items(), key=lambda item: -item[1].words):
        print(f"{r.words:7,d}  {r.sentence_length:14.1f}  {r.flesch:6.1f}  {path}")
    parts = list(found.values())
    total = Readability(sum(r.sentences for r in parts), sum(r.words for r in parts), sum(r.syllables for r in parts))
    print(f"{total.words:7,d}  {total.sentence_length:14.1f}  {total.flesch:6.1f}  all")


if __name__ == "__main__":
    main(sys.argv[1:])
