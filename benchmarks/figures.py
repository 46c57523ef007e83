"""What every bench returns: its figures beside their goals (goals.toml), printed as one table or as JSON."""

from __future__ import annotations

import json as json_module
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

GOALS: dict[str, dict[str, dict[str, float]]] = tomllib.loads(
    Path(__file__).with_name("goals.toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Goal:
    """A limit that a figure has to keep, and a better one that we would like."""

    at_most: float | None = None
    at_least: float | None = None
    stretch: float | None = None

    def words(self) -> list[str]:
        """The limit and the better one, for a table."""
        sign, limit = (">= ", self.at_least) if self.at_least is not None else ("<= ", self.at_most)
        return ["" if value is None else sign + number(value) for value in (limit, self.stretch)]

    def met(self, value: float) -> str:
        """How far a figure comes: "missed", "met" or "stretch"."""
        better = self.at_least is not None
        limit = self.at_least if better else self.at_most
        assert limit is not None
        keeps = lambda bound: value >= bound if better else value <= bound  # noqa: E731
        if not keeps(limit):  # NaN too
            return "missed"
        return "stretch" if self.stretch is not None and keeps(self.stretch) else "met"


@dataclass(frozen=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str = ""
    goal: Goal | None = None


@dataclass
class Figures:
    """The figures of one bench, in the order in which they are shown; details: what only the JSON has."""

    bench: str
    title: str
    rows: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def add(
        self, name: str, value: float, unit: str = "", *, goal: str | None = None, stretch: float | None = None
    ) -> None:
        """One more figure; goal: its key in goals.toml; stretch: where it is measured and not written there."""
        wanted = None if goal is None else dict(GOALS[self.bench][goal])
        if wanted is not None and stretch is not None:
            wanted["stretch"] = stretch
        self.rows.append(Figure(name, value, unit, None if wanted is None else Goal(**wanted)))

    def add_errors(self, error: dict[str, dict[str, float]]) -> None:
        """Errors of the operator's backends against float64; the stretch: twice that of plain float32 PyTorch."""
        parts = {"output": "output", "tensors": "gradients of tensors", "scalars": "gradients of scalars and tables"}
        for name in ("native", "chunked"):
            for part, words in parts.items():
                stretch = 2 * error["plain"][part]
                self.add(f"{name}, error of the {words}", error[name][part], goal=f"error_{part}", stretch=stretch)

    @property
    def missed(self) -> list[Figure]:
        return [row for row in self.rows if row.goal is not None and row.goal.met(row.value) == "missed"]

    def show(self, *, json: bool) -> int:
        """Print; the exit code: 1 where a goal is missed."""
        if json:
            print(
                json_module.dumps({"bench": self.bench, "figures": [asdict(row) for row in self.rows]} | self.details)
            )
        else:
            print(self.text())
        return 1 if self.missed else 0

    def text(self) -> str:
        rows = [
            [row.name, number(row.value), row.unit, *(("", "", "") if row.goal is None else _goal_cells(row))]
            for row in self.rows
        ]
        return "\n".join([self.title, "", table(("", "measured", "", "goal", "stretch", ""), rows), *self.notes])


def _goal_cells(row: Figure) -> Sequence[str]:
    assert row.goal is not None
    return *row.goal.words(), row.goal.met(row.value)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns wide enough for their cells; the first to the left, the others to the right."""
    cells = [header, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def number(value: float) -> str:
    """Three significant digits, without an exponent where it can be helped."""
    if value == 0 or 0.001 <= abs(value) < 100_000:
        return f"{value:#.3g}".rstrip(".") if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.1e}"
