"""One small real cell: trained, scored and stored as `dasmil reproduce` does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dasmil.paper.cells import GridCell, make_cell
from dasmil.paper.reproduce import Folders, cell_units
from dasmil.paper.stored import cell_path


@pytest.fixture(scope="session")
def cell() -> GridCell:
    made = make_cell("collage", "max-pool", "mnist-collage", "published", seeds=2)
    made.training["epochs"] = 1
    return made


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, cell: GridCell) -> Folders:
    """Folders with that one cell finished."""
    from dasmil.paper.cells import run_cell

    folders = Folders(tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("results"))
    (unit,) = cell_units([cell], folders)
    run_cell(**unit.arguments)
    return folders


@pytest.fixture
def stored(trained: Folders, cell: GridCell, tmp_path: Path) -> Path:
    """A copy of the results that a test may damage."""
    import shutil

    shutil.copytree(trained.results, tmp_path / "results")
    assert cell_path(tmp_path / "results", cell.key).exists()
    return tmp_path / "results"
