"""Maps in the report: the surest right and wrong bags, with the contributions of the model that explains them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import dasmil
from dasmil.errors import DataError
from dasmil.files import write_tensors
from dasmil.report import write_report
from dasmil.runs import MapFacts, Predictions, StoredMap, read_maps, write_maps
from dasmil.study.maps import surest


def test_the_report_shows_maps_of_surest_bags(made: Path, tmp_path: Path) -> None:
    spec = dasmil.CohortSpec(bags=made / "bags", labels=made / "labels.csv")
    run = dasmil.cross_validate(spec, "mean-pool", out=tmp_path / "run", folds=3, seeds=1, epochs=2, lr=1e-2)
    found, scored = read_maps(tmp_path / "run"), run.ensemble(run.splits[0])
    assert scored is not None
    assert 2 <= len(found) <= 4
    page = run.report.read_text()
    for one in found:
        k = scored.bag_ids.index(one.facts.bag_id)
        verdict = "right" if scored.predictions[k] == scored.labels[k] else "wrong"
        assert one.facts.words.endswith(verdict)
        assert one.facts.words in page
        assert "in its test set" in one.facts.model, "the fold that held the bag out explains it"
        answer = dasmil.explain_bag(run.path, one.facts.bag_id)
        torch.testing.assert_close(one.contributions, answer.explanation.contributions.float())
        torch.testing.assert_close(one.centres, answer.bag.coords)
    assert "rightly and wrongly" in page
    (tmp_path / "run" / "maps.safetensors").unlink()
    assert "rightly and wrongly" not in write_report(tmp_path / "run").read_text()


def test_the_surest_of_each_class_are_chosen() -> None:
    p = np.array([0.9, 0.99, 0.2, 0.05, 0.8, 0.3, 0.6])
    labels = np.array([1, 1, 0, 0, 0, 1, -1])
    ids = [f"b{k}" for k in range(7)]
    found = Predictions(ids, labels, np.zeros(7), p, (p > 0.5).astype(np.int64), [None] * 7)
    assert surest(found) == [1, 3, 4, 5]
    right = Predictions(ids[:2], labels[:2], np.zeros(2), p[:2], np.array([1, 1]), [None] * 2)
    assert surest(right) == [1]


def test_stored_maps_are_checked(tmp_path: Path) -> None:
    facts = MapFacts("b", "b: x, predicted x (0.9), right", "seed 0", "um", 100.0, (0.0, 0.0, 900.0, 900.0), 0.5)
    one = StoredMap(facts, torch.rand(5, 2) * 900, torch.randn(5))
    write_maps(tmp_path, [one])
    (read,) = read_maps(tmp_path)
    assert read.facts.words == facts.words
    torch.testing.assert_close(read.contributions, one.contributions)
    wrong = [
        StoredMap(facts, torch.rand(4, 2), torch.randn(5)),
        StoredMap(facts, torch.rand(5, 2), torch.full((5,), torch.nan)),
        StoredMap(MapFacts("b", "w", "m", "um", -1.0, (0.0, 0.0, 9.0, 9.0)), one.centres, one.contributions),
    ]
    for bad in wrong:
        write_maps(tmp_path, [bad])
        with pytest.raises(DataError, match="its maps cannot be read"):
            read_maps(tmp_path)
    for words in ({}, {"maps": "[1]"}, {"maps": '[{"bag_id": "b"}]'}, {"maps": "{" * 9}):
        write_tensors(tmp_path / "maps.safetensors", {"0/centres": one.centres}, words)
        with pytest.raises(DataError, match="its maps cannot be read"):
            read_maps(tmp_path)
