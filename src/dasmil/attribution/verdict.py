"""Did single pairs decide, or many together? One answer for terminal, page and viewer."""

from __future__ import annotations

from dataclasses import dataclass

from dasmil.attribution.contributions import both_ways
from dasmil.types import Explanation, Pair, PairSum

DECIDES = 0.03
"""A pair decided if it made at least this share of all absolute parts of the pairs."""

SUM_TITLES = {
    "types": "Pairs by kind, added up",
    "neighbourhoods": "Pairs by neighbourhood, added up",
    "distance": "Pairs by distance, added up",
}


@dataclass(frozen=True)
class PairVerdict:
    """pairs: those that decided, strongest first, both directions together; empty where none did, and `text` says so.

    sums: titles with the sums over many pairs, the most telling first.
    """

    pairs: tuple[Pair, ...]
    text: str
    sums: tuple[tuple[str, tuple[PairSum, ...]], ...]

    @property
    def decided(self) -> bool:
        return bool(self.pairs)


def pair_verdict(explanation: Explanation) -> PairVerdict:
    """The pairs that decided; where the strongest of very many is small, that no single pair did."""
    pairs = both_ways(explanation.pairs)
    sums = tuple((SUM_TITLES[name], explanation.sums[name]) for name in SUM_TITLES if explanation.sums.get(name))
    if not pairs:
        return PairVerdict((), "", sums)
    everything = float(explanation.scores["pairs"].double().sum())
    share = abs(pairs[0].contribution) / everything if everything else 0.0
    if share >= DECIDES:
        return PairVerdict(tuple(pairs), "", sums)
    text = (
        f"No single pair decided: the strongest gave {pairs[0].contribution:+.2g} of the logit "
        f"{explanation.logit:+.3g}, {100 * share:.2g} % of all absolute parts."
    )
    return PairVerdict((), text, sums)
