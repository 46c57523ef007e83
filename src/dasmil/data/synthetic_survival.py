"""A made survival cohort: slides of patients whose hazard depends on a distance, and on nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dasmil.data.store import write_bag
from dasmil.data.synthetic import MadeCohort
from dasmil.errors import InputError
from dasmil.files import write_text

Array = NDArray[np.float64]
COLUMNS = ("slide", "patient", "days", "dead", "true_hazard")


@dataclass(frozen=True)
class MadeFollowUp:
    """How patients are made: a slide each, as ``slides`` makes them, and a time until death.

    The hazard is 1 / ``mean_days``, and ``ratio`` times that where a tile of the first tissue type lies within the
    planted distance of one of the second. Patients leave at a time drawn evenly from 0 on, up to where this share
    (``censored``) leaves before death.
    """

    slides: MadeCohort = field(default_factory=MadeCohort)
    ratio: float = 32.0
    mean_days: float = 1000.0
    censored: float = 0.3

    def __post_init__(self) -> None:
        if self.ratio <= 0 or self.mean_days <= 0:
            raise InputError(f"ratio is {self.ratio:g} and mean_days {self.mean_days:g}, expected numbers above 0")
        if not 0 <= self.censored < 1:
            raise InputError(f"censored is {self.censored:g}, expected a share from 0 to below 1")

    def follow_up(self, near: NDArray[np.bool_], seed: int) -> tuple[Array, NDArray[np.bool_], Array]:
        """Times in days, whether death was seen, and the true hazard a day, of patients with these slides."""
        rng = np.random.default_rng((seed, len(near)))
        hazard = np.where(near, self.ratio, 1.0) / self.mean_days
        death, share = rng.exponential(1 / hazard), rng.uniform(0, 1, len(near))
        wanted = round(self.censored * len(near))
        if wanted == 0:
            return death, np.ones(len(near), dtype=bool), hazard
        # A patient is censored when share * longest < death: this many are, if longest lies between two quotients.
        quotients = np.sort(death / share)[::-1]
        longest = float(np.sqrt(quotients[wanted - 1] * quotients[wanted]))
        return np.minimum(death, share * longest), death <= share * longest, hazard


def write_made_follow_up(
    folder: Path, n: int, seed: int = 0, design: MadeFollowUp | None = None, splits: Sequence[str] | None = None
) -> Path:
    """Write n slides as bag files and their table (with a split for each, if given); returns the table's path.

    Half of the patients have the higher hazard; the column true_hazard is for the ceiling, no model is shown it.
    """
    design = design or MadeFollowUp()
    bags = folder / "bags"
    bags.mkdir(parents=True, exist_ok=True)
    near = np.arange(n) % 2 == 1
    days, dead, hazard = design.follow_up(near, seed)
    lines = [",".join((*COLUMNS, *([] if splits is None else ["split"])))]
    for i in range(n):
        bag = design.slides.slide(f"made-{i:04d}", int(near[i]), (seed, i))
        write_bag(bags / f"{bag.bag_id}.h5", bag, dtype="float16")
        split = "" if splits is None else f",{splits[i]}"
        lines.append(f"{bag.bag_id},{bag.patient_id},{days[i]:.3f},{int(dead[i])},{hazard[i]:.6g}{split}")
    table = folder / "labels.csv"
    write_text(table, "\n".join(lines) + "\n")
    return table
