"""Features of slide encoders: one vector a slide, without positions, from the file to a trained run."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import dasmil
from dasmil.data.formats import probe_features, read_features
from dasmil.errors import DataError


def write(path: Path, features: np.ndarray, name: str = "features") -> Path:
    with h5py.File(path, "w") as file:
        file[name] = features
    return path


@pytest.mark.parametrize(("name", "shape"), [("features", (5,)), ("features", (1, 5)), ("feats", (5,))])
def test_a_vector_is_one_instance_without_a_position(tmp_path, name, shape):
    values = np.arange(5, dtype=np.float32)
    path = write(tmp_path / "s.h5", values.reshape(shape), name)
    probe = probe_features(path)
    assert (probe.format, probe.n, probe.in_features) == ("slide vector", 1, 5)
    file = read_features(path)  # no scale is asked for
    np.testing.assert_array_equal(file.features, values[None])
    np.testing.assert_array_equal(file.coords, [[0.0, 0.0]])


def test_a_tensor_of_one_vector(tmp_path):
    torch.save(torch.arange(4.0), tmp_path / "s.pt")
    np.testing.assert_array_equal(read_features(tmp_path / "s.pt").features, [[0, 1, 2, 3]])
    torch.save(torch.ones(1, 4), tmp_path / "t.pt")  # one tile of a slide without its position
    with pytest.raises(DataError, match="no positions"):
        read_features(tmp_path / "t.pt")


def test_tiles_without_positions_are_still_refused(tmp_path):
    with pytest.raises(DataError, match="no dataset 'coords'"):
        read_features(write(tmp_path / "s.h5", np.ones((3, 5), np.float32)))


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    rng = np.random.default_rng(0)
    (folder / "bags").mkdir()
    rows = ["slide,label"]
    for number in range(40):
        values = rng.normal(size=16).astype(np.float32)
        values[0] += 4 * (number % 2)
        write(folder / "bags" / f"s{number}.h5", values)
        rows.append(f"s{number},{number % 2}")
    (folder / "labels.csv").write_text("\n".join(rows))
    return dasmil.CohortSpec(bags=folder / "bags", labels=folder / "labels.csv")


def test_default_training_learns_from_them(spec, tmp_path):
    run = dasmil.cross_validate(spec, "auto", folds=2, out=tmp_path / "run")
    assert run.summary["splits"]["test"]["mean"]["auroc"] > 0.9
    contributions = dasmil.explain_bag(run.path, "s1").explanation.contributions
    assert contributions.shape == (1,)


def test_a_study_of_space_says_that_there_is_none(spec, tmp_path):
    with pytest.raises(DataError, match="one instance only"):
        dasmil.space_study(spec, out=tmp_path / "space")
