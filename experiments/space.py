"""p-values of the study of space under nulls, and planted pairs with their lengths.

python experiments/space.py null --cohorts 500
python experiments/space.py planted --cohorts 40

Every finished part is kept in docs/results/space/, so that a run that was stopped goes on with the next part.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import dasmil.space.adds as adds
from dasmil.files import write_json
from dasmil.space import Outcome, Patients, Section, find_pairs, how_much
from dasmil.space.made import made_section, plant
from dasmil.space.units import as_patients, count_part

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "space"
LENGTHS = np.geomspace(12, 120, 6)
NULLS = {
    "plain": {},
    "composition tells the outcome": {"effect": 5.0},
    "all at once": {"effect": 5.0, "patches": 5, "sections": 2, "uneven": True},
}
"""All at once: types cluster, one or two sections a patient, sections of one class smaller, usually by a fifth."""


def cohort(
    seed: int,
    patients: int = 24,
    cells: int = 100,
    effect: float = 0.0,
    patches: int = 0,
    sections: int = 1,
    uneven: bool = False,
    planted: tuple[int, int, float, float] | None = None,
) -> tuple[list[Section], Outcome]:
    """Patients of two classes with four types."""  # fmt: skip
    rng, found, classes = np.random.default_rng(seed), [], []
    for number in range(patients):
        shares = rng.dirichlet(np.full(4, 4.0))
        label = int(rng.random() < 1 / (1 + np.exp(-effect * (shares[0] - shares[1])))) if effect else number % 2
        classes.append(float(label))
        for part in range(int(rng.integers(1, sections + 1))):
            n = int(cells * (0.9 if label else 1.1) * rng.uniform(0.7, 1.3)) if uneven else cells
            side = np.sqrt(1600.0 * n)
            made = made_section(f"{number}.{part}", str(number), shares, n, rng, side=side, patches=patches)
            kinds = plant(made, *planted, rng) if planted and label else made.kinds
            found.append(Section(made.name, made.patient, made.coords, kinds))
    return found, Outcome("classes", np.array(classes)[:, None], ("no", "yes"))


def counted(sections: list[Section], lengths: np.ndarray, draws: int, seed: int) -> Patients:
    """The patients of a cohort of four types."""
    parts = (count_part(one, lengths, 4, draws, seed + 50 * k) for k, one in enumerate(sections))
    return as_patients(sections, parts, 4)[0]


def stored(part: str) -> Path:
    """The file of a part of the experiment."""
    return RESULTS / f"{part.replace(' ', '-')}.json"


def store(part: str, rows: list[dict]) -> None:
    """Keep and print what a part found."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_json(stored(part), rows)
    print("\n".join(map(json.dumps, rows)), flush=True)


def null(cohorts: int, gain: bool) -> None:
    """How often each p-value is at most 5, 20 and 50 %."""
    adds.REPEATS = 1
    for name, options in NULLS.items():
        part = f"null {name}{' gain' if gain else ''}"
        if stored(part).exists():
            continue
        found: dict[str, list[float]] = {"pairs": [], "gain": [], "gain, types permuted": []}
        for seed in range(cohorts):
            sections, outcome = cohort(seed, **options)
            if outcome.too_few() is None:
                patients = counted(sections, LENGTHS, 19 if gain else 0, seed)
                pairs = find_pairs(patients, outcome, LENGTHS, draws=99, resamples=2, seed=seed)
                found["pairs"].append(pairs[0].p_adjusted)
                if gain:
                    one = how_much(patients, outcome, draws=19, seed=seed)
                    found["gain"].append(one.p)
                    found["gain, types permuted"].append(one.p_labelling or 1.0)
        rows = []
        for what, values in found.items():
            if values:
                rates = {f"{level:g}": float((np.array(values) <= level).mean()) for level in (0.05, 0.2, 0.5)}
                rows.append({"null": name, "p of": what, "cohorts": len(values), **rates})
        store(part, rows)


def recovered(cohorts: int) -> None:
    """Whether a planted pair is found, how many others are, and whether its interval holds the planted length."""
    lengths = np.geomspace(10, 160, 9)
    for planted in (20.0, 40.0, 80.0):
        if stored(f"planted {planted:g}").exists():
            continue
        power, length, held, wrong = [], [], [], []
        for seed in range(cohorts):
            sections, outcome = cohort(seed, 40, 200, patches=5, planted=(0, 1, planted, 0.25))
            patients = counted(sections, lengths, 0, seed)
            found = find_pairs(patients, outcome, lengths, draws=199, resamples=100, seed=seed)
            own = next(one for one in found if one.pair == (0, 1))
            power.append(own.p_adjusted <= 0.05)
            wrong.append(any(one.p_adjusted <= 0.05 and not set(one.pair) & {0, 1} for one in found))
            if power[-1]:
                length.append(own.length)
                held.append(own.low <= planted * 1.001 and own.high >= planted / 1.001)
        store(f"planted {planted:g}", [{
            "planted": planted, "cohorts": cohorts, "found": float(np.mean(power)),
            "other pairs": float(np.mean(wrong)),
            "median length": float(np.median(length or [np.nan])),
            "interval holds it": float(np.mean(held or [np.nan])),
        }])  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("null", "planted"))
    parser.add_argument("--cohorts", type=int, default=100)
    parser.add_argument("--gain", action="store_true", help="also test what positions add (slow)")
    given = parser.parse_args()
    null(given.cohorts, given.gain) if given.what == "null" else recovered(given.cohorts)
