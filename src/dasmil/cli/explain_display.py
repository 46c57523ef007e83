"""What `dasmil explain` prints about one bag."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from dasmil.attribution.verdict import PairVerdict
    from dasmil.types import Bag, Explanation

SHOWN_PAIRS, SHOWN_SUMS = 8, 6


def show_explanation(
    bag: Bag,
    model: str,
    explanation: Explanation,
    classes: Sequence[str],
    files: Sequence[Path],
    origin: str = "",
    caveat: str = "",
    of: str = "",
) -> None:
    """The sum, what came from distance, the pairs (or, where none decided, sums over many), and the files last.

    origin: which model of the run explains, and what the bag was to it; caveat: what the run has not shown;
    of: what is explained, where it is no class.
    """
    from rich.console import Console

    from dasmil.attribution.verdict import pair_verdict
    from dasmil.report.words import class_name

    console = Console(markup=False, highlight=False)  # names may hold square brackets
    total = float(explanation.contributions.double().sum())
    console.print(f"{bag.bag_id}: {len(bag):,} instances, {model}, method {explanation.method}")
    if origin:
        console.print(origin)
    if caveat:
        console.print(f"Caveat of the run: {caveat}", soft_wrap=True)
    what = of[0].upper() + of[1:] if of else f"Logit of class {class_name(explanation.target, classes)}"
    console.print(
        f"{what} {explanation.logit:+.4f} = {explanation.bias:+.4f} "
        f"{total:+.4f} from instances (rest {explanation.residual:+.1e})"
    )
    if explanation.distance_share:
        console.print(f"{100 * explanation.distance_share:.0f} % of all absolute parts came from distance")
    if explanation.pairs:
        verdict = pair_verdict(explanation)
        if verdict.decided:
            _pairs(console, bag, explanation)
        else:
            console.print(verdict.text)
            _sums(console, verdict)
    for file in files:
        console.print(str(file), soft_wrap=True)


def _pairs(console: Console, bag: Bag, explanation: Explanation) -> None:
    from rich.table import Table

    from dasmil.attribution.names import InstanceNames
    from dasmil.vocabulary import UNIT_SYMBOL

    names = InstanceNames(bag)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("i", "looks at j", "contribution", "from distance", "attention", f"distance, {UNIT_SYMBOL[bag.unit]}"):
        table.add_column(name, justify="right")
    for p in explanation.pairs[:SHOWN_PAIRS]:
        far = "other section" if p.distance is None else f"{p.distance:,.1f}"
        ends = (names.label(p.i), names.label(p.j))
        table.add_row(*ends, f"{p.contribution:+.4f}", f"{p.distance_part:+.4f}", f"{p.weight:.3f}", far)
    console.print(table)


def _sums(console: Console, verdict: PairVerdict) -> None:
    from rich.table import Table

    for title, parts in verdict.sums:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column(title)
        table.add_column("contribution", justify="right")
        for part in parts if len(parts[0].between) == 1 else parts[:SHOWN_SUMS]:
            table.add_row(" with ".join(part.between), f"{part.contribution:+.4f}")
        console.print(table)
