"""docs/results/mil-tests.md shows what experiments/mil_tests.py stored, and the models that should pass do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STORED: dict[str, Any] = json.loads((ROOT / "docs" / "results" / "mil-tests.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", [name for name in STORED["results"] if name.endswith("monotone")])
def test_monotone_models_pass(model: str) -> None:
    for test, found in STORED["results"][model].items():
        assert min(found["test"]) >= 0.95, test


def test_the_page_shows_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import mil_tests  # pyright: ignore[reportMissingImports]

    page = (ROOT / "docs" / "results" / "mil-tests.md").read_text(encoding="utf-8")
    assert "\n".join(mil_tests.rows(STORED)) in page
    sys.modules.pop("mil_tests")
