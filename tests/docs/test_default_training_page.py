"""The tables of docs/results/default-training.md are those of the stored cells."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_are_made_of_the_stored_cells() -> None:
    spec = importlib.util.spec_from_file_location("experiment", ROOT / "experiments" / "default_training.py")
    assert spec is not None
    assert spec.loader is not None
    experiment = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(experiment)
    text = (ROOT / "docs" / "results" / "default-training.md").read_text(encoding="utf-8")
    tables = experiment.page(ROOT / "docs" / "results" / "default-training")
    assert text.split(experiment.BEGIN)[1].split(experiment.END)[0].strip() == tables.strip()
    assert "| mean | 1 development |" in tables
