"""CAMELYON16's labels, exclusions and counts from names and from the challenge's own table."""

from __future__ import annotations

from pathlib import Path

import pytest

from dasmil.errors import DataError, InputError
from dasmil.paper.camelyon16_labels import EXPECTED, label_slides, read_reference

REFERENCE = Path(__file__).parents[1] / "cohort" / "camelyon16_reference.csv"


def all_names() -> list[str]:
    return [
        *(f"normal_{i:03d}" for i in range(1, 161) if i not in (86, 144)),
        "normal_086", "normal_144",
        *(f"tumor_{i:03d}" for i in range(1, 112)),
        *(f"test_{i:03d}" for i in range(1, 131)),
    ]  # fmt: skip


def test_reference_table_of_the_challenge() -> None:
    reference = read_reference(REFERENCE)
    assert len(reference) == 129
    assert sum(label == "Tumor" for label in reference.values()) == 49
    assert "test_049" not in reference
    assert (reference["test_001"], reference["test_003"]) == ("Tumor", "Normal")


def test_full_set_has_the_papers_training_counts() -> None:
    # The challenge gives 160 normal training slides of which one was withdrawn; 158 names remain beside the excluded.
    names = [name for name in all_names() if name not in ("normal_159", "normal_160")]
    found = label_slides(names, read_reference(REFERENCE))
    assert found.counts == EXPECTED
    assert found.complete
    assert found.notes[0] == "3 left out as in the paper: normal_086, normal_144, test_049"
    assert any("the paper counts 48" in note for note in found.notes)
    splits = {row.slide: (row.split, row.label) for row in found.rows}
    assert splits["tumor_001"] == ("train", "Tumor")
    assert splits["test_002"] == ("test", "Tumor")


def test_differences_are_said() -> None:
    found = label_slides(["normal_001", "tumor_001", "test_001", "test_999", "mine"], read_reference(REFERENCE))
    assert not found.complete
    text = "\n".join(found.notes)
    assert "1 test slides are not in the reference table: test_999" in text
    assert "1 files have names that are not CAMELYON16's: mine" in text
    assert "train: 1 Normal slides, expected 156" in text
    assert "128 test slides of the reference table have no features" in text


def test_wrong_reference(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no reference table"):
        read_reference(tmp_path / "no.csv")
    path = tmp_path / "reference.csv"
    path.write_text("slide,label\ntest_001,Tumor\n")
    with pytest.raises(DataError, match="line 1: found 'slide,label', expected a line like 'test_001,Tumor"):
        read_reference(path)
