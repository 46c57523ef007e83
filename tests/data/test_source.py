"""Every feature file is opened once, kept while memory lasts, and read again when it changed."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

import dasmil
from dasmil.data.cohort import bag_sizes, load_cohort
from dasmil.data.doctor import check_bags
from dasmil.data.labels import LabelRow, read_labels
from dasmil.data.source import BagSource
from dasmil.data.store import write_bag
from dasmil.errors import DataError
from dasmil.types import Bag


class Opens(Counter[str]):
    """How often each file is opened for reading, by its stem."""


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> Opens:
    found, opened = Opens(), h5py.File.__init__

    def counting(file: h5py.File, name: Any, mode: str = "r", *args: Any, **options: Any) -> None:
        if mode == "r" and isinstance(name, str | Path):
            found[Path(str(name)).stem] += 1
        opened(file, name, mode, *args, **options)

    monkeypatch.setattr(h5py.File, "__init__", counting)
    return found


def bag(name: str, n: int, shift: float = 0.0) -> Bag:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) + shift
    return Bag(x, torch.stack([torch.arange(n) % 5, torch.arange(n) // 5], 1).float() * 100, "um", name)


def cohort_files(folder: Path, count: int = 20) -> tuple[Path, Path]:
    """A folder of bag files, and a label table with two classes and a patient each."""
    (folder / "features").mkdir(parents=True)
    lines = ["slide,label,patient"]
    for k in range(count):
        write_bag(folder / "features" / f"s{k}.h5", bag(f"s{k}", 12 + k, shift=k % 2))
        lines.append(f"s{k},{'tumor' if k % 2 else 'normal'},p{k // 2 * 2 + k % 2}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder / "features", folder / "labels.csv"


def test_training_opens_every_file_once(tmp_path: Path, opens: Opens) -> None:
    """Checks, report, training, test set and baselines share one reading."""
    features, labels = cohort_files(tmp_path)
    spec = dasmil.CohortSpec(bags=features, labels=labels)
    dasmil.train_cohort(spec, "mean-pool", out=tmp_path / "run", epochs=2, warmup_epochs=0.0, test=True)
    assert {name: count for name, count in opens.items() if name in {f"s{k}" for k in range(20)}} == {
        f"s{k}": 1 for k in range(20)
    }


def test_doctor_and_plan_open_every_file_once(tmp_path: Path, opens: Opens) -> None:
    features, labels = cohort_files(tmp_path, 4)
    *_, checkup = check_bags(features, read_labels(labels))
    assert checkup.rules == {"dasmil: um centres as stored": 4}
    assert set(opens.values()) == {1}
    opens.clear()
    cohort = load_cohort(features, read_labels(labels))
    assert bag_sizes(cohort) == ([12, 13, 14, 15], (4,))
    assert cohort.positions == "dasmil: um centres as stored"
    assert set(opens.values()) == {1}


def test_a_label_table_that_is_wrong_stops_before_a_file_is_opened(tmp_path: Path, opens: Opens) -> None:
    features, _ = cohort_files(tmp_path, 4)
    rows = [LabelRow("s0", "1", "p", "train"), LabelRow("s1", "0", "p", "test")]
    with pytest.raises(DataError, match="1 patients are in more than one split"):
        load_cohort(features, rows, read_all=True)
    assert not opens


def test_slides_without_a_label_are_not_opened(tmp_path: Path, opens: Opens) -> None:
    features, _ = cohort_files(tmp_path, 4)
    cohort = load_cohort(features, [LabelRow("s0", "1"), LabelRow("s2", "0")], read_all=True)
    assert [one.bag_id for one in cohort] == ["s0", "s2"]
    assert opens == {"s0": 1, "s2": 1}
    assert cohort.report.slides_without_label == ["s1", "s3"]


def test_what_does_not_fit_is_read_again_and_equal(tmp_path: Path, opens: Opens) -> None:
    features, labels = cohort_files(tmp_path, 4)
    one = 12 * 4 * 4 + 12 * 2 * 4  # bytes of the first bag
    cohort = load_cohort(features, read_labels(labels), memory_gb=(one + 8) / 2**30)
    for _ in range(3):
        for k, found in enumerate(cohort):
            torch.testing.assert_close(found.features, bag(f"s{k}", 12 + k, shift=k % 2).features)
    assert opens == {"s0": 2, "s1": 4, "s2": 4, "s3": 4}  # once for positions, once or every time for features


def test_a_file_that_changed_is_read_again(tmp_path: Path, opens: Opens) -> None:
    features, _ = cohort_files(tmp_path, 2)
    source, path = BagSource(), features / "s0.h5"
    before = source.bag(path)
    assert source.bag(path) is before
    write_bag(path, bag("s0", 12, shift=5.0))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))
    torch.testing.assert_close(source.bag(path).features, bag("s0", 12, shift=5.0).features)
    assert opens == {"s0": 2}
    path.unlink()
    with pytest.raises(DataError, match="no such file"):
        source.bag(path)


def test_joined_and_sampled_bags_stay_in_place_of_their_files(tmp_path: Path, opens: Opens) -> None:
    """A patient's bag, or a part of a slide, is what every pass needs: the whole slides leave memory for it."""
    features, _ = cohort_files(tmp_path, 4)
    rows = [LabelRow("s0", "1", "p"), LabelRow("s1", "1", "p"), LabelRow("s2", "0", "q"), LabelRow("s3", "0", "q")]
    cohort = load_cohort(features, rows, read_all=True, per_patient=True, max_instances=10)
    first, again = list(cohort), list(cohort)
    assert set(opens.values()) == {1}
    assert [one.features.data_ptr() for one in first] == [one.features.data_ptr() for one in again]
    held = sum(one.features.numel() * 4 + one.coords.numel() * 4 for one in first)
    assert cohort.source._free == 2**30 - held
    uncached = load_cohort(features, rows, per_patient=True, max_instances=10, memory_gb=0)
    for one, other in zip(first, uncached, strict=True):
        torch.testing.assert_close(one.features, other.features)
        assert one.section is not None
        assert torch.equal(one.section, other.section)  # type: ignore[arg-type]
        assert one.metadata == other.metadata
