"""What default training (auto) tried: every candidate with its out-of-fold loss, over all seeds and folds of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasmil.runs.run import Run

LEVEL = 0.05


@dataclass(frozen=True)
class TriedCandidate:
    """A candidate over the models of a run. loss: out of fold, as a share of that of a constant guess; score: how often
    two patients are ordered rightly; kept: in how many models it was selected.
    """

    name: str
    title: str
    spatial: bool
    loss: float
    score: float
    kept: int
    models: int
    seconds: float


@dataclass(frozen=True)
class LibrarySummary:
    """The candidates of a run in their order, and the permutation tests of its models."""

    candidates: list[TriedCandidate]
    models: int
    p_values: list[float]

    @property
    def kept(self) -> list[TriedCandidate]:
        """Those that were selected, the most frequent first."""
        return sorted((c for c in self.candidates if c.kept), key=lambda c: -c.kept)

    @property
    def kept_text(self) -> str:
        """Which candidates the run uses, in one sentence."""
        if self.models == 1:
            return f"Selected model: {self.kept[0].title}."
        return "Selected models: " + ", ".join(f"{c.title} ({c.kept} of {self.models})" for c in self.kept) + "."

    @property
    def evidence_text(self) -> str:
        """What the permutation tests say, in one sentence."""
        shown = [p for p in self.p_values if p <= LEVEL]
        middle = float(np.median(self.p_values))
        p = f"p = {middle:.3f}" if middle > 0 else "p < 0.005"
        if self.models == 1:
            found = "Better than chance" if shown else "No signal detected"
            return f"{found}: permutation test over the training patients, {p}."
        return (
            f"Permutation test over the training patients: better than chance in {len(shown)} of {self.models} models "
            f"(median {p})."
        )

    @property
    def positions_text(self) -> str:
        """Whether candidates that use positions predict better than those that do not, in one sentence."""
        spatial = [c for c in self.candidates if c.spatial and c.models == self.models]
        plain = [c for c in self.candidates if not c.spatial]
        if not spatial or not plain:
            return ""
        near, far = (min(own, key=lambda c: c.loss) for own in (spatial, plain))
        used = sum(c.kept for c in self.candidates if c.spatial)
        return (
            f"Positions: {used} of {self.models} selected models use them. The best candidate with positions "
            f"({near.title}) has an out-of-fold loss of {near.loss:.3f} of a constant guess, the best without "
            f"({far.title}) {far.loss:.3f}."
        )


def read_library(run: Run) -> LibrarySummary | None:
    """The candidates of a run of default training; None of other runs."""
    records = [seed.status.get("library") for part in run.folds or [run] for seed in part.seeds.values()]
    known = [record for record in records if isinstance(record, Mapping)]
    if not known:
        return None
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for record in known:
        for row in record["candidates"]:
            rows.setdefault(row["name"], []).append(row)
    kept = [record["selected"] for record in known]
    candidates = [
        TriedCandidate(
            name, own[0]["title"], bool(own[0]["spatial"]),
            float(np.mean([row["loss"] for row in own])), float(np.nanmean([row["score"] for row in own])),
            kept.count(name), len(own), float(sum(row["seconds"] for row in own)),
        )
        for name, own in rows.items()
    ]  # fmt: skip
    return LibrarySummary(candidates, len(known), [float(record["evidence"]["p"]) for record in known])
