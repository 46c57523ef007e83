"""Explanations against known evidence, and what removing instances does to the logit."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import dasmil
from dasmil.attribution import explain
from dasmil.attribution.faithfulness import (
    HIGHEST,
    LOWEST,
    RANDOM,
    REMOVED,
    FlippingCurves,
    flipping_curves,
    summarise,
)
from dasmil.cli import app
from dasmil.data.store import write_bag
from dasmil.data.yardsticks import EVIDENCE_TESTS, evidence_test
from dasmil.errors import InputError
from dasmil.models import create_model
from dasmil.types import Bag


def quiet(text: str) -> None:
    pass


@pytest.mark.parametrize("name", EVIDENCE_TESTS)
def test_evidence_is_what_the_label_depends_on(name: str) -> None:
    for bag in evidence_test(name, 40):
        evidence, types = np.array(bag.metadata["evidence"]), bag.instance_labels.numpy()
        assert evidence.shape[1] == len(bag)
        if name == "positive-negative":
            assert (evidence[1].sum() > 0) == (bag.label == 1)
            assert (evidence[0] == -evidence[1]).all()
        elif name == "four-bags":
            assert evidence[3].sum() == np.isin(types, (8, 9)).sum()
            assert not (evidence[bag.label] == -1).any()
        else:
            assert (evidence[1] == 1).any() == (bag.label == 1)
            paired = set(types[evidence[1] == 1].tolist())
            assert all({k - 1, k + 1} & paired for k in paired)
    again = evidence_test(name, 3, seed=4)
    assert all(torch.equal(a.features, b.features) for a, b in zip(again, evidence_test(name, 3, seed=4), strict=True))


@pytest.mark.parametrize(
    ("name", "model"), [("positive-negative", "mean-pool"), ("four-bags", "ab-mil"), ("adjacent-pairs", "sa")]
)
def test_exact_contributions_rank_the_true_evidence_with_its_sign(name: str, model: str) -> None:
    train, test = evidence_test(name, 200), evidence_test(name, 24, seed=1)
    run = dasmil.fit(model, train, epochs=15, lr=5e-3, restarts=0, progress=False, note=quiet)[0]
    speaks_for, speaks_against, curves = [], [], []
    for bag in test:
        explanation = explain(run.model, bag, target=bag.label)
        evidence, values = np.array(bag.metadata["evidence"][bag.label]), explanation.contributions.numpy()
        if 0 < (evidence == 1).sum() < len(bag):
            speaks_for.append(roc_auc_score(evidence == 1, values))
        if 0 < (evidence == -1).sum() < len(bag):
            speaks_against.append(roc_auc_score(evidence == -1, -values))
        if name != "four-bags" or bag.label == 3:
            curves.append(flipping_curves(run.model, bag, explanation))
    assert np.mean(speaks_for) > 0.95
    assert not speaks_against or np.mean(speaks_against) > 0.95
    found = {one.order: one for one in summarise(curves)}
    if name != "adjacent-pairs":  # of negative bags there is no evidence to remove
        assert found[HIGHEST].low > 0
        assert found[LOWEST].high < 0


def pooled() -> tuple[dasmil.models.base.MILModel, Bag]:
    """Mean pooling of one feature, logit = mean: removal can be computed by hand."""
    model = create_model("mean-pool", in_features=1, encoder="identity").double()
    with torch.no_grad():
        model.classifier.weight.fill_(1.0)  # pyright: ignore
        model.classifier.bias.fill_(0.0)  # pyright: ignore
    return model, Bag(torch.tensor([[4.0], [-2.0], [1.0], [1.0]]).double(), torch.zeros(4, 2), "um", "a")


def test_a_curve_is_the_logit_of_what_is_left() -> None:
    model, bag = pooled()
    found = flipping_curves(model, bag, explain(model, bag))
    removed = [int(share * 4) for share in REMOVED]  # 0, 1, 2 or 3 of four
    highest, lowest = {0: 0, 1: 0, 2: -0.5, 3: -2.0}, {0: 0, 1: 2.0, 2: 2.5, 3: 4.0}
    np.testing.assert_allclose(found.changes[HIGHEST], [highest[k] - (k > 0) for k in removed])
    np.testing.assert_allclose(found.changes[LOWEST], [lowest[k] - (k > 0) for k in removed])
    assert found.gap(HIGHEST) == pytest.approx((found.changes[RANDOM] - found.changes[HIGHEST]).mean())


def test_wrong_contributions_are_not_faithful() -> None:
    model, bag = pooled()
    true = explain(model, bag)
    wrong = flipping_curves(model, bag, replace(true, contributions=-true.contributions))
    assert wrong.gap(HIGHEST) < 0 < flipping_curves(model, bag, true).gap(HIGHEST)


def test_patients_are_the_unit_of_the_interval() -> None:
    def curves(patient: str, gap: float) -> FlippingCurves:
        return FlippingCurves("b", patient, 3, 1, 0.0, {RANDOM: np.zeros(20), HIGHEST: np.full(20, -gap)})

    (one,) = summarise([curves("p", 1.0), curves("p", 3.0)])
    assert one.gap == 2.0
    assert np.isnan(one.low)
    (two,) = summarise([curves("p", 1.0), curves("p", 3.0), curves("q", 5.0)])
    assert (two.low, two.high) == (2.0, 5.0)


def test_the_command_writes_page_and_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bags").mkdir()
    rows = ["slide,label,patient"]
    for number, bag in enumerate(evidence_test("positive-negative", 24)):
        write_bag(tmp_path / "bags" / f"{bag.bag_id}.h5", replace(bag, metadata={}, label=None))
        rows.append(f"{bag.bag_id},{bag.label},p{number}")
    (tmp_path / "labels.csv").write_text("\n".join(rows), encoding="utf-8")
    spec = dasmil.CohortSpec(bags=tmp_path / "bags", labels=tmp_path / "labels.csv")
    dasmil.train_cohort(spec, "mean-pool", out=tmp_path / "run", epochs=4, baselines=False)
    capsys.readouterr()
    arguments = ["explain", tmp_path / "run", "--faithfulness", "-o", tmp_path / "out"]
    assert app(map(str, [*arguments, "--json"]), exit_on_error=False, result_action="return_value") == 0
    printed = json.loads(capsys.readouterr().out)
    with open(printed["table"], newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    first = [row for row in table if row["order"] == HIGHEST]
    bags = {row["bag"] for row in first}
    assert len(first) == len(bags) * len(REMOVED)
    assert all(float(row["change"]) == 0 for row in first if row["removed"] == "0")
    gaps = []
    for name in bags:
        each = {
            o: [float(r["change"]) for r in table if r["bag"] == name and r["order"] == o] for o in (HIGHEST, RANDOM)
        }
        gaps.append(np.mean(each[RANDOM]) - np.mean(each[HIGHEST]))
    assert printed["cohort"][0]["gap"] == pytest.approx(np.mean(gaps), abs=1e-4)
    page = Path(printed["page"]).read_text(encoding="utf-8")
    assert f"{len(bags)} bags held out from training" in page
    assert 'aria-label="Flipping curves"' in page
    assert app([*map(str, arguments)], exit_on_error=False, result_action="return_value") == 0
    assert "logits" in capsys.readouterr().out
    with pytest.raises(InputError, match="different questions"):
        app([*map(str, arguments), "--distances"], exit_on_error=False, result_action="return_value")
