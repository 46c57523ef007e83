"""The doctor's look at cells: positions, spacing and types of bags that come from tables or files of cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.spatial import KDTree

from dasmil.data.checks import Finding, Level, content, grouped
from dasmil.data.columns import FurtherColumns
from dasmil.data.doctor import NEIGHBOURS, Known, check_cohort
from dasmil.data.labels import LabelRow, plain_slide
from dasmil.data.leaks import leaking_columns
from dasmil.data.match import Candidate
from dasmil.tasks import Task
from dasmil.types import Bag

FEW = 20  # cells of a bag that say little of a tissue
SAMPLE = 2000  # cells of a bag whose neighbours are looked for
APART = (1.0, 200.0)  # um from a cell to its nearest neighbour: nuclei are 5 to 20 um wide
ALIKE = 4.0  # spacings of two bags of one cohort differ by a factor below this


def check_cells(
    bags: Sequence[Bag],
    labels: Sequence[LabelRow] | None = None,
    positive: str | None = None,
    sites: FurtherColumns | None = None,
    task: Task | None = None,
    *,
    per_patient: bool = False,
) -> Iterator[Any]:
    """Look at every bag; yields (done, total, bag) while at work and the Checkup at the end, as `check_bags` does."""
    rows: list[dict[str, Any]] = []
    findings: list[Finding] = []
    means: dict[str, np.ndarray] = {}
    for number, bag in enumerate(bags):
        yield number, len(bags), bag.bag_id
        row: dict[str, Any] = {"slide": bag.bag_id, "format": "cells", "tiles": len(bag),
                               "features": bag.features.shape[1],
                               "content": content(bag.features.numpy(), bag.coords.numpy())}  # fmt: skip
        found = list(_check_bag(bag, row))
        findings += [Finding(level, check, message, (bag.bag_id,)) for level, check, message in found]
        means[bag.bag_id] = bag.features.numpy().mean(0, dtype=np.float64)
        rows.append(row)
    findings = grouped(findings) + _check_spacing(rows) + _check_types(bags) + _check_columns(bags)
    rowed = {row.slide: row.label for row in labels or ()}
    texts = [rowed.get(plain_slide(bag.bag_id)) for bag in bags]
    codes = {text: code for code, text in enumerate(dict.fromkeys(filter(None, texts)))}
    findings += leaking_columns(bags, [codes.get(text) if text else None for text in texts])
    candidates = [Candidate(bag.bag_id, label=bag.label, patient=bag.patient_id) for bag in bags]
    rules = Counter(str(bag.metadata.get("coords_rule", bag.unit)) for bag in bags)
    known = Known(labels, positive, sites, task, per_patient)
    yield check_cohort(rows, findings, rules, candidates, known, means)


def _check_bag(bag: Bag, row: dict[str, Any]) -> Iterator[tuple[Level, str, str]]:
    places = bag.coords.double().numpy()
    if len(places) < FEW:
        yield "warning", "few cells", f"{len(places)} cells"
    repeated = len(places) - len(np.unique(places, axis=0))
    if repeated:
        yield "warning", "duplicated coordinates", f"{repeated} of {len(places)} cells share a position"
    row["stride_um"], row["radius_um"] = None, None
    if len(places) < 2:
        return
    some = np.random.default_rng(0).permutation(len(places))[:SAMPLE]
    nearest = min(NEIGHBOURS, len(places) - 1) + 1  # the first neighbour of a cell is itself
    found = np.asarray(KDTree(places).query(places[some], k=nearest)[0])
    spacing = float(np.median(found[:, 1]))
    row["stride_um"] = round(spacing, 3)
    if nearest == NEIGHBOURS + 1:
        row["radius_um"] = float(np.median(found[:, -1]))
    if repeated < len(places) / 2 and not APART[0] <= spacing <= APART[1]:
        yield (
            "warning",
            "spacing",
            f"cells lie {spacing:.3g} um from their nearest neighbour, expected {APART[0]:g} to {APART[1]:g}: are "
            "positions in micrometres (--unit, --mpp)?",
        )


def _check_spacing(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    """Bags of one cohort have cells of one size: a factor between them is a unit that was mixed up."""
    known = [(row["stride_um"], row["slide"]) for row in rows if row["stride_um"]]
    if len(known) < 2:
        return []
    middle = float(np.median([spacing for spacing, _ in known]))
    other = [(spacing, name) for spacing, name in known if max(spacing / middle, middle / spacing) > ALIKE]
    if not other:
        return []
    listed = ", ".join(f"{name} ({spacing:.3g} um)" for spacing, name in other[:3])
    more = f" and {len(other) - 3} more" if len(other) > 3 else ""
    message = f"cells lie about {middle:.3g} um apart in most bags, but not in {listed}{more}: is the unit the same?"
    return [Finding("warning", "mixed scales", message, tuple(name for _, name in other))]


def _check_types(bags: Sequence[Bag]) -> list[Finding]:
    """Types that differ only in how they are written count as several."""
    names = {str(name) for bag in bags[:1] for name in bag.metadata.get("instance_label_names", ())}
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        alike.setdefault("".join(name.casefold().split()).replace("_", "").replace("-", ""), []).append(name)
    return [
        Finding("warning", "cell types",
                f"{' and '.join(map(repr, group))} count as {len(group)} types; write them alike if they are one")
        for group in alike.values() if len(group) > 1
    ]  # fmt: skip


def _check_columns(bags: Sequence[Bag]) -> list[Finding]:
    """Columns of numbers that are the same for every cell tell nothing."""
    if not bags or bags[0].instance_labels is not None:
        return []
    low = np.min([bag.features.numpy().min(0) for bag in bags], axis=0)
    high = np.max([bag.features.numpy().max(0) for bag in bags], axis=0)
    names = bags[0].metadata.get("feature_names") or [str(i) for i in range(len(low))]
    flat = [str(names[i]) for i in np.flatnonzero(low == high)]
    if not flat:
        return []
    listed = ", ".join(flat[:5]) + (f" and {len(flat) - 5} more" if len(flat) > 5 else "")
    return [Finding("warning", "constant features", f"columns with one value for all cells: {listed}")]
