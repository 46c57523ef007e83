"""What a study of space found, and the sentences that say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dasmil.space.adds import Adds
from dasmil.space.classical import ClassicalTest
from dasmil.space.outcome import Outcome
from dasmil.space.pairs import PairFinding
from dasmil.space.patients import Patients
from dasmil.space.power import PlantedPower
from dasmil.space.sections import Array, Section, type_pairs

LEVEL = 0.05
PAGE = "report.html"


@dataclass(frozen=True, eq=False)
class SpaceStudy:
    """What `dasmil space` found; ``str(study)`` is its answer.

    types: names; lengths in ``unit``; adds, pairs, classical, power: None or empty where no outcome could be tested
    (why stands in ``notes``). per_section: statistics of every section by name, stacked; folder: of the files.
    """

    types: tuple[str, ...]
    lengths: Array
    unit: str
    sections: Sequence[Section]
    patients: Patients
    names: Sequence[str]
    outcome: Outcome | None
    adds: Adds | None
    pairs: Sequence[PairFinding]
    classical: Sequence[ClassicalTest]
    power: Sequence[PlantedPower]
    per_section: Mapping[str, Array]
    notes: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    @property
    def report(self) -> Path | None:
        """The page."""
        return None if self.folder is None else self.folder / PAGE

    @property
    def found(self) -> list[PairFinding]:
        """The pairs whose adjusted p is at most 5 %."""
        return [pair for pair in self.pairs if pair.p_adjusted <= LEVEL]

    @property
    def sentence(self) -> str:
        """Whether positions add to composition."""
        if self.adds is None:
            return f"No outcome was tested: {self.notes[-1] if self.notes else 'there is none'}."
        return adds_sentence(self.adds)

    @property
    def sentences(self) -> list[str]:
        """The answer, then one line for each pair that was found."""
        if self.adds is None:
            return [self.sentence]
        if self.found:
            return [self.sentence, *(self.finding_text(pair) for pair in self.found)]
        return [self.sentence, f"No pair of types goes with the outcome (smallest adjusted p {self._smallest()})."]

    def _smallest(self) -> str:
        return p_text(self.pairs[0].p_adjusted) if self.pairs else "none"

    def pair_name(self, pair: tuple[int, int]) -> str:
        """The two types of a pair."""
        return f"{self.types[pair[0]]} - {self.types[pair[1]]}"

    def finding_text(self, pair: PairFinding) -> str:
        """One finding as a sentence."""
        assert self.outcome is not None
        a, b = (self.types[k] for k in pair.pair)
        who = self.outcome.directions[pair.target]
        more = "more often" if pair.z > 0 else "less often"
        where = f"in {who}" if self.outcome.kind == "classes" else f"with {who}"
        return (
            f"{a} within {pair.length:.3g} {self.unit} [{pair.low:.3g}, {pair.high:.3g}] of {b}: {more} {where}, "
            f"{np.exp(pair.effect):.2f} times the contacts [{np.exp(pair.effect_low):.2f}, "
            f"{np.exp(pair.effect_high):.2f}], adjusted p {_equals(pair.p_adjusted)}."
        )

    def as_json(self) -> dict[str, Any]:
        """All figures, by name."""
        adds = None
        if self.adds is not None:
            adds = {k: v for k, v in asdict(self.adds).items() if k != "null"}
        named = lambda one: {**asdict(one), "pair": [self.types[k] for k in one.pair]}  # noqa: E731
        targets = () if self.outcome is None else self.outcome.directions
        return {
            "sentences": self.sentences, "adds": adds, "unit": self.unit, "lengths": self.lengths.tolist(),
            "types": list(self.types), "sections": len(self.sections), "patients": len(self.names),
            "pairs": [{**named(pair), "target": targets[pair.target]} for pair in self.pairs],
            "classical": [named(one) for one in self.classical], "power": [named(one) for one in self.power],
            "notes": list(self.notes), "settings": dict(self.settings),
        }  # fmt: skip

    def pair_rows(self) -> list[dict[str, Any]]:
        """One row for each pair and target, for a table."""
        assert self.outcome is not None
        usual = {one.pair: one for one in self.classical}
        rows = []
        for pair in self.pairs:
            a, b = (self.types[k] for k in pair.pair)
            rows.append({
                "first": a, "second": b, "target": self.outcome.directions[pair.target],
                f"length_{self.unit}": pair.length,
                "length_low": pair.low, "length_high": pair.high, "ratio": float(np.exp(pair.effect)),
                "ratio_low": float(np.exp(pair.effect_low)), "ratio_high": float(np.exp(pair.effect_high)),
                "z": pair.z, "p": pair.p, "p_adjusted": pair.p_adjusted, "cross_l_p": usual[pair.pair].p,
                "cross_l_p_adjusted": usual[pair.pair].p_adjusted,
            })  # fmt: skip
        return rows

    def section_rows(self) -> list[dict[str, Any]]:
        """One row for each section, pair and length: contacts, what chance expects, and the classical statistics."""
        rows = []
        for number, section in enumerate(self.sections):
            for k, (a, b) in enumerate(type_pairs(len(self.types))):
                for at, length in enumerate(self.lengths):
                    value = {name: float(self.per_section[name][number, at, k])
                             for name in ("observed", "expected", "enrichment", "outside", "l")}  # fmt: skip
                    rows.append({
                        "section": section.name, "patient": section.patient, "first": self.types[a],
                        "second": self.types[b], f"length_{self.unit}": float(length), "contacts": value["observed"],
                        "expected": value["expected"], "enrichment_z": value["enrichment"],
                        "outside_envelope": value["outside"], f"cross_l_{self.unit}": value["l"],
                    })  # fmt: skip
        return rows


def adds_sentence(adds: Adds) -> str:
    """The first question in one sentence."""
    low, high = adds.interval
    gap = f"{adds.difference:+.2f} {adds.metric} [{low:.2f}, {high:.2f}]"
    if adds.p <= LEVEL:
        return f"Positions add {gap} over composition; p {_equals(adds.p)} ({adds.draws} permutations)."
    could = f"this cohort could have shown about {adds.detectable:+.2f} or more (power 80 %)"
    return f"No evidence that positions add: {gap} over composition, p {_equals(adds.p)}; {could}."


def p_text(p: float) -> str:
    """A p-value to two digits."""
    return f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def _equals(p: float) -> str:
    return f"= {p_text(p)}"
