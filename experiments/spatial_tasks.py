"""Tasks of the spatial benchmark: bags from the folders of others' data, or made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from cells import Task

from dasmil.data.contact import ContactTask, contact_crops
from dasmil.data.synthetic import MadeCohort, make_cohort
from dasmil.data.tables import read_table
from dasmil.files import read_csv
from dasmil.types import Bag

MADE = MadeCohort(
    tiles=(120, 240), islands=(2, 4), island_tiles=(1, 2), distance_um=1200, in_features=256, noise=1.0, separation=0.6,
    shift=0.2,
)  # fmt: skip
"""As the slides of `dasmil demo --slides`, with fewer tiles and features."""


def contact(folder: Path) -> Task:
    """Is a CD8 T cell within 15 um of a vessel cell? As experiments/tnbc.py; at most 12 crops a patient and class."""
    task = ContactTask(per_patient_and_class=12)
    fields = read_table(folder / "cells.csv.gz", bag="patient", unit="px", um_per_unit=800 / 2048, one_hot="cell_type")
    return Task("contact", contact_crops(fields, task))


def response(folder: Path, most: int = 200) -> Task:
    """Does a patient respond? 35 markers (arsinh, standardised over all cells) of at most 200 random cells a field."""
    from pandas import read_parquet

    table = read_parquet(folder / "cells.parquet")
    samples = sorted(read_csv(folder / "samples.csv"), key=lambda row: row["sample"])
    markers = [name for name in table.columns if name not in ("sample", "x_um", "y_um")]
    values = np.arcsinh(table[markers].to_numpy(np.float32))
    values = (values - values.mean(0)) / values.std(0).clip(1e-6)
    places, names = table[["x_um", "y_um"]].to_numpy(np.float32), table["sample"].astype(str).to_numpy()
    bags = []
    for number, row in enumerate(samples):
        rows = np.random.default_rng(number).permutation(np.flatnonzero(names == row["sample"]))[:most]
        bag = Bag(
            features=torch.from_numpy(values[rows]), coords=torch.from_numpy(places[rows]), unit="um",
            bag_id=f"sample {number}", label=int(row["response"] == "Responder"), patient_id=f"patient {number}",
        )  # fmt: skip
        bags.append(bag)
    return Task("melanoma", bags, epochs=60)


def made_slides(count: int = 100) -> Task:
    """Do two rare types of tiles come within 1,200 um of each other? Slides that anyone can make again."""
    return Task("made", make_cohort(count, seed=5, design=MADE))


def survival(folder: Path, most: int = 300) -> Task:
    """How long do patients live? Six 0/1 types of at most 300 random cells a patient; fields are sections."""
    from pandas import read_csv as read_frame

    cells = read_frame(folder / "cells.csv.gz", dtype={"patient": str, "image": str})
    types = [name for name in cells.columns if name not in ("image", "patient", "x_um", "y_um")]
    bags = []
    for number, row in enumerate(sorted(read_csv(folder / "patients.csv"), key=lambda row: row["patient"])):
        own = cells[cells["patient"] == row["patient"]]
        own = own.iloc[np.random.default_rng(number).permutation(len(own))[:most]]
        fields = np.unique(own["image"].to_numpy(), return_inverse=True)[1]
        bag = Bag(
            features=torch.from_numpy(own[types].to_numpy(np.float32)), unit="um", bag_id=f"patient {number}",
            coords=torch.from_numpy(own[["x_um", "y_um"]].to_numpy(np.float32)), section=torch.from_numpy(fields),
            patient_id=f"patient {number}",
            targets={"time": float(row["survival_days"]), "event": float(row["death"])},
        )  # fmt: skip
        bags.append(bag)
    return Task("lung", bags, keep_scores=False, survival=True)
