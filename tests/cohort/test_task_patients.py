"""Survival of patients with several slides: a missing slide is named, and what is not confirmed is called that."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch

import dasmil
from tests.cohort.calls import run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on 24 patients with two slides each, whose times have nothing to do with their slides."""
    folder = tmp_path_factory.mktemp("patients")
    rng = np.random.default_rng(3)
    (folder / "bags").mkdir()
    lines, slides = ["slide,patient,days,dead"], ["slide,patient"]
    for i in range(48):
        bag = dasmil.Bag(torch.from_numpy(rng.normal(size=(8, 4))).float(),
                         torch.from_numpy(100 * rng.random((8, 2))).float(), "um", f"s{i:02d}")  # fmt: skip
        dasmil.write_bag(folder / "bags" / f"s{i:02d}.h5", bag)
        lines.append(f"s{i:02d},p{i // 2:02d},{(i // 2 * 7) % 24 + 1},{int(i // 2 % 3 > 0)}")
        slides.append(f"s{i:02d},p{i // 2:02d}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    (folder / "slides.csv").write_text("\n".join(slides) + "\n")
    run("train", "--bags", folder / "bags", "--labels", folder / "labels.csv", "--time-column", "days",
        "--event-column", "dead", "--per-patient", "--epochs", 2, "--out", folder / "run")  # fmt: skip
    return folder


def test_a_regression_that_nothing_confirms_is_not_called_a_rule(trained) -> None:
    status = next(iter(dasmil.Run.read(trained / "run").seeds.values())).status
    assert status["held_out_evidence"] is False
    page = (trained / "run" / "report.html").read_text()
    assert "1 of 1 model are a regression on mean features for want of anything better" in page
    assert "no epoch of training (a regression on mean features)" in page
    assert "that training bags confirm" not in page


def test_a_patient_without_one_of_its_slides_is_told_and_named(trained, capsys) -> None:
    (trained / "bags" / "s03.h5").rename(trained / "s03.h5")
    try:
        code = run("predict", trained / "run", "--bags", trained / "bags", "--per-patient", "--slide-table",
                   trained / "slides.csv", "-o", trained / "p.csv")  # fmt: skip
        said = capsys.readouterr()
        assert code == 1
        assert "1 patients lack a slide of the slide table: p01" in said.out + said.err
        assert "24 bags, mean of 1 model" in said.out
        rows = {row["bag_id"]: row for row in csv.DictReader((trained / "p.csv").open())}
        assert rows["p01"]["problem"] == "slide s03 of the slide table has no file"
        assert rows["p01"]["risk"] != ""
        assert rows["p02"]["problem"] == ""
        told = ("--bags", trained / "bags", "--labels", trained / "labels.csv", "--accept", "seen")
        run("evaluate", trained / "run", *told)
        said = capsys.readouterr()
        assert "1 patients lack a slide of the label table: p01" in said.out + said.err
    finally:
        (trained / "s03.h5").rename(trained / "bags" / "s03.h5")
