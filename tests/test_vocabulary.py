"""One vocabulary: every score that is computed and every metric that is printed has its words in one place."""

import re
from pathlib import Path

import pytest
import torch

import dasmil
from dasmil.errors import InputError
from dasmil.models import create_model
from dasmil.types import Bag
from dasmil.vocabulary import METRICS, SCORES, score

DOCS = Path(__file__).parent.parent / "docs"


def test_every_score_of_an_explanation_has_words():
    bag = Bag(torch.randn(12, 4), torch.rand(12, 2) * 100, "um", "b")
    found = set()
    for name in ("das-mil", "ab-mil", "gcn"):
        found |= set(dasmil.explain(create_model(name, in_features=4, unit="um"), bag, attention=True).scores)
    assert found == set(SCORES)


def test_the_docs_list_the_scores_in_the_same_words():
    table = DOCS.joinpath("explain.md").read_text()
    for s in SCORES.values():
        row = next(line for line in table.splitlines() if line.startswith(f"| `{s.name}` |"))
        assert f"| {s.title} |" in row
        assert f"| {'yes' if s.signed else ''} |" in row.replace("|  |", "|  |").replace("| |", "|  |")


def test_no_other_place_writes_its_own_titles():
    source = Path(dasmil.__file__).parent
    titles = [s.title for s in SCORES.values()] + [m.title for m in METRICS.values() if " " in m.title]
    for file in [*source.rglob("*.py"), *source.rglob("viewer/static/[a-np-z]*.js")]:
        text = file.read_text()
        written = [t for t in titles if re.search(f"[\"']{re.escape(t)}[\"']", text)]
        assert not written or file.name == "vocabulary.py", f"{file} writes {written}"


def test_an_unknown_score_is_refused_by_name():
    with pytest.raises(InputError, match="unknown score 'contributions'"):
        score("contributions")
