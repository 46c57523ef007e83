"""A small made cohort on disk, and CAMELYON16's files in miniature."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from dasmil.data.synthetic import MadeCohort, make_cohort, write_made_cohort

sys.path.insert(0, str(Path(__file__).parent))  # for calls.py
DESIGN = MadeCohort(tiles=(60, 90), islands=(1, 1), island_tiles=(2, 3), in_features=8, distance_um=800)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_made_cohort(folder, 30, seed=1, design=DESIGN)
    return folder


@pytest.fixture(scope="session")
def camelyon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features as the paper's authors kept them: feats and coords, stride 224 for 256 um; a few slides of each kind."""
    folder = tmp_path_factory.mktemp("camelyon16")
    design = MadeCohort(tiles=(40, 60), islands=(1, 1), island_tiles=(2, 3), in_features=768, distance_um=800)
    names = ["normal_001", "tumor_001", "normal_002", "tumor_002", "normal_003", "tumor_003", "normal_086"]
    names += ["test_003", "test_001", "test_005", "test_002", "test_049"]
    for name, bag in zip(names, make_cohort(len(names), seed=3, design=design)):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["feats"] = bag.features.numpy().astype(np.float16)
            file["coords"] = np.rint((bag.coords.numpy() - 128) * 224 / 256).astype(np.int64)
    return folder
