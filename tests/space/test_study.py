"""The whole study from bags and from the command line: what it says, what it writes, what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import dasmil
from dasmil.cli import call
from dasmil.errors import DataError, InputError
from dasmil.space import type_pairs
from dasmil.types import Bag
from tests.space.cohorts import made_cohort

NAMES = ["CD8", "tumour", "other"]


def bags_of(seed: int, patients: int = 24, **options: object) -> list[Bag]:
    """Cells with types as a table gives them."""
    sections, outcome = made_cohort(seed, patients, **options)  # type: ignore[arg-type]
    return [
        Bag(
            np.eye(3, dtype=np.float32)[section.kinds], section.coords, "um", section.name,
            label=int(outcome.values[int(section.patient), 0]), patient_id=section.patient,
            instance_labels=section.kinds,  # type: ignore[arg-type]
            metadata={"feature_names": NAMES, "instance_label_names": NAMES},
        )
        for section in sections
    ]  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("cells")
    rows, labels = ["image,x,y,cell_type"], ["slide,patient,label"]
    for bag in bags_of(5, 30, planted=(0, 1, 30.0, 0.35), cells=200):
        assert bag.instance_labels is not None
        labels.append(f"{bag.bag_id},{bag.patient_id},{'responder' if bag.label else 'other'}")
        for (x, y), kind in zip(bag.coords.tolist(), bag.instance_labels.tolist(), strict=True):
            rows.append(f"{bag.bag_id},{x:.3f},{y:.3f},{NAMES[kind]}")
    for name, lines in (("cells.csv", rows), ("labels.csv", labels)):
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder / "cells.csv", folder / "labels.csv"


def arguments(table: tuple[Path, Path], *more: str) -> list[str]:
    cells, labels = map(str, table)
    return ["--bags", cells, "--labels", labels, "--bag-column", "image", "--one-hot", "cell_type", "--unit", "um",
            "--positive", "responder", *more]  # fmt: skip


def test_the_command_finds_the_planted_pair_and_writes_it_back(
    table: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import dasmil.space.power as power

    monkeypatch.setattr(power, "REPLICATES", 2)
    out = tmp_path / "space"
    command = ["space", *arguments(table, "--out", str(out), "--permutations", "19", "--lengths", "15,30,60,120")]
    assert call(command) == 0
    said = capsys.readouterr().out
    assert said.startswith("Positions add +0.")
    assert "over composition; p = 0.05 (19 permutations)." in said
    assert "CD8 within 30 um" in said
    assert "of tumour: more often in responder" in said
    record = json.loads((out / "space.json").read_text())
    first = next(pair for pair in record["pairs"] if pair["pair"] == ["CD8", "tumour"])
    assert first["p_adjusted"] <= 0.05
    with open(out / "pairs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["p_adjusted"] for row in rows] == sorted((row["p_adjusted"] for row in rows), key=float)
    assert {frozenset((row["first"], row["second"])) for row in rows} <= {
        frozenset((NAMES[a], NAMES[b])) for a, b in type_pairs(3)
    }
    assert all((out / "figures" / f"{name}.{kind}").stat().st_size > 1000
               for name in ("gain", "pairs", "contacts", "power", "enrichment") for kind in ("svg", "pdf"))  # fmt: skip
    assert "Positions add" in (out / "report.html").read_text()
    _check_written(out)
    with pytest.raises(InputError, match="holds another study"):
        call([*command[:-3], "29", *command[-2:]])


def _check_written(out: Path) -> None:
    anndata = pytest.importorskip("anndata")
    cells = anndata.read_h5ad(out / "cells.h5ad")
    column = next(name for name in cells.obs if str(name).startswith("CD8 - tumour within 30"))
    number = list(cells.uns["space"]["contacts"]).index(column) + 1
    graph = cells.obsp["space_contacts"]
    degree = np.asarray((graph == number).sum(1)).ravel()
    assert (degree == cells.obs[column].to_numpy()).all()
    one = (cells.obs["section"] == "1.0").to_numpy()
    places, kinds = cells.obsm["spatial"][one], cells.obs["type"].to_numpy()[one]
    near = np.linalg.norm(places[kinds == "CD8"][:, None] - places[kinds == "tumour"][None], axis=2) <= 30
    assert (cells.obs[column].to_numpy()[one][kinds == "CD8"] == near.sum(1)).all()
    assert cells.uns["spatialdata_attrs"]["region_key"] == "section"


def test_workers_count_the_same_contacts(table: tuple[Path, Path], tmp_path: Path) -> None:
    from dasmil.space import Section
    from dasmil.space.units import count_part, count_stored, read_part, write_section

    rng = np.random.default_rng(0)
    section = Section("s", "p", rng.uniform(0, 200, (60, 2)), rng.integers(0, 3, 60))
    write_section(tmp_path / "s.npz", section)
    count_stored(str(tmp_path / "s.npz"), [20.0, 50.0], 3, 4, 7, str(tmp_path / "r.npz"))
    here, there = count_part(section, np.array([20.0, 50.0]), 3, 4, 7), read_part(tmp_path / "r.npz")
    assert here.keys() == there.keys()
    assert all(np.array_equal(here[name], there[name], equal_nan=True) for name in here)


def test_an_interrupted_study_goes_on(tmp_path: Path) -> None:
    def stop(text: str) -> None:
        if text.startswith("sections 5/"):
            raise KeyboardInterrupt

    few, said = bags_of(1, 12)[:8], []
    with pytest.raises(KeyboardInterrupt):
        dasmil.space_study(few, out=tmp_path, permutations=19, line=stop)
    study = dasmil.space_study(few, out=tmp_path, permutations=19, note=said.append, write_back=False)
    assert "5 of 8 sections are counted already" in said
    other = dasmil.space_study(few, permutations=19)
    assert all(np.array_equal(study.per_section[k], other.per_section[k], equal_nan=True) for k in other.per_section)


def test_the_plan_says_time_and_power(
    table: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import dasmil.space.power as power

    monkeypatch.setattr(power, "REPLICATES", 4)
    assert call(["plan", "--space", *arguments(table)]) == 0
    said = capsys.readouterr().out
    assert "199 permutations of 30 sections" in said
    assert "With 30 patients a usual pair of types needs" in said


def test_what_cannot_be_tested_is_described() -> None:
    few = [bag for bag in bags_of(1, 12) if bag.label == 0 or bag.patient_id in ("1", "3")]
    study = dasmil.space_study(few, permutations=19)
    assert study.adds is None
    assert str(study).startswith("No outcome was tested: class '1' has 2 patients, expected 6 or more; sections are")
    assert np.isfinite(study.per_section["enrichment"]).any()
    one = dasmil.space_study(few[:1], permutations=19)
    assert "there is one section only" in str(one)


def test_bags_without_positions_are_left_out_and_said() -> None:
    bags = bags_of(1, 14)
    lost = Bag(bags[0].features, torch.zeros(len(bags[0]), 2), "um", "nowhere", label=0, patient_id="x",
               instance_labels=bags[0].instance_labels, metadata=bags[0].metadata)  # fmt: skip
    study = dasmil.space_study([*bags, lost], permutations=19, power=False)
    assert study.notes[0].startswith("Sections that have no positions (all instances at one place) are left out: 1")
    assert len(study.names) == 14


def test_bad_input_is_refused_with_what_to_do() -> None:
    bags = bags_of(1, 14)
    with pytest.raises(InputError, match="permutations is 5, expected 19 to 9999"):
        dasmil.space_study(bags, permutations=5)
    with pytest.raises(InputError, match="lengths are 10, 10"):
        dasmil.space_study(bags, lengths=[10, 10])
    same = [Bag(torch.ones(30, 1), torch.rand(30, 2), "um", "one")]
    with pytest.raises(DataError, match="all instances are of one type"):
        dasmil.space_study(same)
    with pytest.raises(DataError, match="no section has 20 or more instances with positions"):
        dasmil.space_study([Bag(bag.features[:9], bag.coords[:9], "um", bag.bag_id) for bag in bags], types=2)


def test_types_of_features_are_found() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 6, (3, 5))
    bags = []
    for bag in bags_of(5, 16, planted=(0, 1, 30.0, 0.4), cells=150):
        assert bag.instance_labels is not None
        x = centres[bag.instance_labels.numpy()] + rng.normal(size=(len(bag), 5))
        bags.append(Bag(x.astype(np.float32), bag.coords, "um", bag.bag_id, label=bag.label, patient_id=bag.patient_id))
    study = dasmil.space_study(bags, types=3, permutations=19, power=False, lengths=[15, 30, 60])
    assert study.types == ("type 1", "type 2", "type 3")
    assert study.pairs[0].p_adjusted <= 0.05
    marks = [Bag(np.eye(3, dtype=np.float32)[np.arange(len(b)) % 3], b.coords, "um", b.bag_id, label=b.label,
                 metadata={"feature_names": ["ck", "cd8", "cd4"]}) for b in bags]  # fmt: skip
    assert set(dasmil.space_study(marks, permutations=19, power=False).types) == {"ck", "cd8", "cd4"}
