"""CAMELYON16: which slides count, their labels from names and from the challenge's table, and the expected numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dasmil.data.formats import find_feature_files, slide_name
from dasmil.data.labels import LabelRow
from dasmil.data.text_table import table_rows
from dasmil.errors import DataError, shown

EXCLUDED = ("normal_086", "normal_144", "test_049")
CLASSES = ("Normal", "Tumor")
# Train after the exclusions, test as the challenge's table lists it; the paper counts 48 tumour slides in the test set.
EXPECTED = {"train": {"Normal": 156, "Tumor": 111}, "test": {"Normal": 80, "Tumor": 49}}
_TRAIN_NAME = re.compile(r"(normal|tumor)_\d{3}", re.IGNORECASE)
_TEST_NAME = re.compile(r"test_\d{3}", re.IGNORECASE)


@dataclass(frozen=True)
class Camelyon16:
    """Label rows of the slides that take part, and what was noticed on the way."""

    rows: list[LabelRow]
    notes: list[str]
    counts: dict[str, dict[str, int]]
    complete: bool


def read_reference(path: Path) -> dict[str, str]:
    """The challenge's test labels: no header, column 0 = slide, column 1 = Tumor or Normal."""
    labels: dict[str, str] = {}
    for number, row in table_rows(path, "reference table (reference.csv of the CAMELYON16 challenge):"):
        name = row[0].lower()
        label = row[1].capitalize() if len(row) > 1 else ""
        if not _TEST_NAME.fullmatch(name) or label not in CLASSES:
            raise DataError(
                f"{path}, line {number}: found {shown(','.join(row))}, expected a line like 'test_001,Tumor,...'"
            )
        if labels.setdefault(name, label) != label:
            raise DataError(f"{path}, line {number}: {name} has two different labels")
    if not labels:
        raise DataError(f"{path} is empty: expected one line per test slide")
    return labels


def camelyon16_labels(features: Path, reference: Path) -> Camelyon16:
    """Labels for a folder of CAMELYON16 features: training slides by name, test slides by the reference table."""
    return label_slides((slide_name(path) for path in find_feature_files(features)), read_reference(reference))


def label_slides(names: Iterable[str], reference: dict[str, str]) -> Camelyon16:
    """Label slides by name; excluded, unknown and missing ones become notes."""
    rows: list[LabelRow] = []
    excluded, unknown, unlabelled = [], [], []
    for name in names:
        plain = name.lower()
        if plain in EXCLUDED:
            excluded.append(name)
        elif _TRAIN_NAME.fullmatch(plain):
            rows.append(LabelRow(name, "Tumor" if plain.startswith("tumor") else "Normal", name, "train"))
        elif _TEST_NAME.fullmatch(plain):
            if plain in reference:
                rows.append(LabelRow(name, reference[plain], name, "test"))
            else:
                unlabelled.append(name)
        else:
            unknown.append(name)
    counts = {
        split: {label: sum(row.split == split and row.label == label for row in rows) for label in CLASSES}
        for split in EXPECTED
    }
    notes = [
        f"{len(excluded)} left out as in the paper: {', '.join(excluded) or 'none of ' + ', '.join(EXCLUDED)}",
    ]
    if unlabelled:
        notes.append(f"{len(unlabelled)} test slides are not in the reference table: {', '.join(unlabelled)}")
    if unknown:
        notes.append(f"{len(unknown)} files have names that are not CAMELYON16's: {', '.join(unknown[:5])}")
    for split, labels in EXPECTED.items():
        for label, expected in labels.items():
            if counts[split][label] != expected:
                notes.append(f"{split}: {counts[split][label]} {label} slides, expected {expected}")
    if counts["test"]["Tumor"] == EXPECTED["test"]["Tumor"]:
        notes.append("test: 49 Tumor slides as the challenge's table says; the paper counts 48 (unexplained)")
    present = {row.slide.lower() for row in rows}
    missing = [name for name in reference if name not in present and name not in EXCLUDED]
    if missing:
        notes.append(f"{len(missing)} test slides of the reference table have no features: {', '.join(missing[:5])}")
    return Camelyon16(rows, notes, counts, complete=counts == EXPECTED)
