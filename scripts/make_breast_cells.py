"""Make src/dasmil/data/breast_imc/cells.npz from the tables of 100 breast tumours (see the README there).

    python scripts/make_breast_cells.py FOLDER

FOLDER holds cells.parquet (image, x, y in um, metacluster) and images.csv (image_number, patient, age, grade).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

TARGET = Path(__file__).parents[1] / "src/dasmil/data/breast_imc/cells.npz"


def main() -> None:
    """Write the arrays, cells ordered by image and place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    cells = pd.read_parquet(folder / "cells.parquet").sort_values(["image", "y", "x"])
    images = pd.read_csv(folder / "images.csv").sort_values("image_number")
    counts = cells.groupby("image").size()
    assert counts.index.tolist() == images.image_number.tolist()
    np.savez_compressed(
        TARGET,
        half_um=np.round(cells[["x", "y"]].to_numpy().T * 2).astype(np.uint16),
        metacluster=cells.metacluster.to_numpy().astype(np.uint8),
        cells=counts.to_numpy().astype(np.int32),
        image=images.image_number.to_numpy().astype(np.int32),
        patient=images.patient.to_numpy().astype(np.int32),
        age=images.age.to_numpy().astype(np.uint8),
        grade=images.grade.to_numpy().astype(np.uint8),
    )
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
