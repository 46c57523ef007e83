"""Processed sets in torchmil's layout: features, coords, labels and patch labels as .npy, splits.csv above them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import dasmil
from dasmil.data.formats import find_feature_files, probe_features, read_features
from dasmil.data.formats.torchmil import write_torchmil_labels
from dasmil.data.scale import Scale
from dasmil.errors import DataError, InputError


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Twelve bags of 5 x 4 tiles of 512 px; in positive ones the first tile is tumour."""
    root = tmp_path / "C16" / "patches_512"
    rng = np.random.default_rng(0)
    for folder in ("features/features_UNI", "coords", "labels", "patch_labels"):
        (root / folder).mkdir(parents=True)
    rows = ["bag_name,split"]
    y, x = np.mgrid[0:4, 0:5]
    for k in range(12):
        name, label = f"slide_{k:02d}", k % 2
        features = rng.normal(size=(20, 6)).astype(np.float32)
        features[0, 0] += 5 * label
        np.save(root / "features/features_UNI" / name, features)
        np.save(root / "coords" / name, np.stack([x.ravel(), y.ravel()], 1) * 512)
        np.save(root / "labels" / name, np.array([label]))
        np.save(root / "patch_labels" / name, (np.arange(20) == 0).astype(np.int64) * label)
        rows.append(f"{name},{'test' if k >= 8 else 'train'}")
    (root.parent / "splits.csv").write_text("\n".join(rows), encoding="utf-8")
    return root


def test_a_bag_has_its_positions_label_and_key_instances(made: Path) -> None:
    files = find_feature_files(made)
    assert len(files) == 12, "labels and coords are no bags"
    probe = probe_features(files[3])
    assert (probe.format, probe.n, probe.in_features, probe.encoder, probe.label) == ("torchmil", 20, 6, "UNI", 1)
    found = read_features(files[3], Scale(tile_um=256.0))
    np.testing.assert_array_equal(found.features, np.load(files[3]))
    np.testing.assert_allclose(found.coords[:2], [[0, 0], [256, 0]])
    assert found.mpp == 0.5
    assert found.optional["key_instances"].tolist() == [True, *[False] * 19]
    with pytest.raises(InputError, match="--mpp"):
        read_features(files[3])


def test_it_trains_with_the_published_split(made: Path, tmp_path: Path) -> None:
    labels = write_torchmil_labels(made, tmp_path / "labels.csv")
    with open(labels, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[9] == {"slide": "slide_09", "label": "1", "split": "test"}
    spec = dasmil.CohortSpec(
        bags=made / "features" / "features_UNI", labels=labels, split_column="split", tile_um=256.0
    )
    run = dasmil.train_cohort(spec, "mean-pool", out=tmp_path / "run", epochs=1, baselines=False, test=True)
    assert sorted(run.seeds[0].predictions("test").bag_ids) == [f"slide_{k:02d}" for k in range(8, 12)]


def test_damaged_sets_are_named(made: Path, tmp_path: Path) -> None:
    path = made / "features/features_UNI/slide_00.npy"
    np.save(made / "coords/slide_00.npy", np.zeros((19, 2)))
    with pytest.raises(DataError, match=r"\(19, 2\), expected \[20, 2\]"):
        read_features(path, Scale(mpp=0.5))
    np.save(made / "coords/slide_00.npy", np.zeros((20, 2)))
    np.save(path, np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read as an array"):
        read_features(path, Scale(mpp=0.5))
    np.save(made / "labels/slide_01.npy", np.array([0.5]))
    with pytest.raises(DataError, match="expected one class number"):
        write_torchmil_labels(made, tmp_path / "labels.csv")
    with pytest.raises(InputError, match="holds no labels"):
        write_torchmil_labels(tmp_path, tmp_path / "labels.csv")
