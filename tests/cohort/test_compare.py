"""`dasmil compare` on a small cohort: the same folds for all, files, the answer, the space test, and going on."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import dasmil
from dasmil.cli.compare import compare as compare_verb
from dasmil.errors import InputError
from dasmil.study.compare import Comparison
from dasmil.study.scored import shuffled
from dasmil.types import Bag

MODELS = ["sa-axial", "sa"]
RATES = [1e-4, 2e-2]
HOW = {"folds": 3, "epochs": 2, "grid": {"lr": RATES}}


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> dasmil.CohortSpec:
    folder = tmp_path_factory.mktemp("cohort")
    rng = np.random.default_rng(0)
    rows = ["slide,label,patient"]
    for i in range(24):
        label = i % 2
        features = torch.from_numpy(rng.normal(label * 0.8, 1, (12, 4))).float()
        bag = Bag(
            features,
            torch.from_numpy(rng.random((12, 2)) * 500),
            "um",
            f"s{i:02d}",
            label=label,
            patient_id=f"p{i:02d}",
        )
        dasmil.write_bag(folder / f"s{i:02d}.h5", bag)
        rows.append(f"s{i:02d},{label},p{i:02d}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return dasmil.CohortSpec(bags=folder, labels=folder / "labels.csv")


@pytest.fixture(scope="module")
def found(cohort: dasmil.CohortSpec, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return dasmil.compare(cohort, MODELS, out=tmp_path_factory.mktemp("out"), space_test=True, **HOW)


def test_all_models_have_the_same_folds(found: Comparison) -> None:
    assert list(found.runs) == MODELS
    ids = [[seed.predictions("test").bag_ids for seed in run.all_seeds] for run in found.runs.values()]
    assert ids[0] == ids[1]
    assert (found.compared.bags, found.compared.folds, len(found.compared.gaps)) == (24, 3, 1)
    for name, run in found.runs.items():
        score = next(m for m in found.compared.models if m.name == name)
        assert score.score == pytest.approx(run.summary["splits"]["test"]["mean"]["auroc"])


def test_every_fold_of_every_model_chooses_among_the_same_by_its_validation_bags(found: Comparison) -> None:
    for name, run in found.runs.items():
        rounds = json.loads((run.path / "search.json").read_text())["rounds"]
        assert [part["chosen"] for part in rounds] == list(found.chosen[name])
        for part, trained in zip(rounds, run.parts, strict=True):
            scores = {trial["settings"]["lr"]: trial["score"] for trial in part["trials"]}
            assert sorted(scores) == RATES
            assert scores[part["chosen"]["lr"]] == min(scores.values())  # the loss
            assert trained.config["training"]["lr"] == part["chosen"]["lr"]
    page = found.report.read_text()
    lr = found.chosen["sa"][0]["lr"]
    assert f"lr {lr:g} (" in page


def test_a_setting_that_is_given_is_not_chosen(cohort: dasmil.CohortSpec, tmp_path: Path) -> None:
    same = dasmil.compare(cohort, ["mean-pool", "max-pool"], out=tmp_path, folds=2, epochs=1, lr=0.003)
    assert same.chosen == {}
    assert {part.config["training"]["lr"] for run in same.runs.values() for part in run.parts} == {0.003}


def test_files(found: Comparison) -> None:
    record = json.loads((found.folder / "comparison.json").read_text())
    assert record["sentence"] == found.sentence
    rows = list(csv.DictReader((found.folder / "table.csv").read_text().splitlines()))
    assert [float(row["difference"]) for row in rows] == [g.difference for g in found.compared.gaps]
    markdown = (found.folder / "table.md").read_text()
    names = [line.split("|")[1].strip() for line in markdown.splitlines()[2:4]]
    assert names == [m.name for m in found.compared.models]
    assert (found.folder / "table.tex").read_text().count(r"\\") == 3
    assert found.sentence in found.report.read_text().replace("&#39;", "'")


def test_the_space_test_says_who_uses_positions(found: Comparison) -> None:
    space = {s.name: s for s in found.compared.space}
    assert space["sa"].coords.low == space["sa"].coords.high == 0  # knows no positions
    assert space["sa"].rows.difference == pytest.approx(0, abs=1e-9)
    assert space["sa-axial"].coords.low < 0 < space["sa-axial"].coords.high  # other places, other scores
    assert space["sa-axial"].rows.difference == pytest.approx(0, abs=1e-9)
    assert "Does it use space?" in found.report.read_text()


def test_what_is_trained_is_not_trained_again(found: Comparison, cohort: dasmil.CohortSpec) -> None:
    again = dasmil.compare(cohort, MODELS, out=found.folder, **HOW)
    for name, run in found.runs.items():
        for seed, same in zip(run.all_seeds, again.runs[name].all_seeds, strict=True):
            assert seed.history["seconds"].tolist() == same.history["seconds"].tolist()  # the epochs of the first time
    assert again.sentence == found.sentence


def test_finished_runs_on_the_command_line(
    found: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare_verb(*(run.path for run in found.runs.values()), out=tmp_path / "c") == 0
    printed = capsys.readouterr().out
    assert printed.startswith(found.sentence)
    assert (tmp_path / "c" / "report.html").is_file()
    with pytest.raises(InputError, match="two of the runs are the same"):
        compare_verb(found.runs["sa"].path, found.runs["sa"].path, out=tmp_path / "d")
    with pytest.raises(InputError, match="give either run directories, or --bags"):
        compare_verb(out=tmp_path / "d")


def test_what_is_shuffled() -> None:
    section = torch.tensor([0] * 4 + [1] * 4)
    bag = Bag(torch.arange(8.0)[:, None], torch.arange(16.0).view(8, 2), "um", "a", section=section)
    moved = shuffled(bag, "coords", 0)
    assert torch.equal(moved.features, bag.features)
    assert not torch.equal(moved.coords, bag.coords)
    for inside in (slice(0, 4), slice(4, 8)):  # positions stay in their section
        assert sorted(moved.coords[inside, 0].tolist()) == bag.coords[inside, 0].tolist()
    listed = shuffled(bag, "rows", 0)
    order = listed.features[:, 0].long()
    assert not torch.equal(order, torch.arange(8))
    assert torch.equal(listed.coords, bag.coords[order])
