"""Cells from CSV, Parquet and AnnData become the same bags."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dasmil.data.tables import is_table, read_table
from dasmil.errors import DataError, InputError

pandas = pytest.importorskip("pandas")

ROWS = {
    "patient": ["p2", "p1", "p2", "p1"],
    "x": [0.0, 10.0, 20.0, 30.0],
    "y": [1.0, 11.0, 21.0, 31.0],
    "type": ["T", "B", "B", "T"],
    "cd8": [0.5, 1.5, 2.5, 3.5],
}


def frame():
    return pandas.DataFrame(ROWS)


@pytest.fixture(params=["csv", "csv.gz", "tsv", "parquet", "h5ad"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    target = tmp_path / f"cells.{request.param}"
    if request.param == "parquet":
        frame().to_parquet(target)
    elif request.param == "h5ad":
        anndata = pytest.importorskip("anndata")
        data = frame()
        data.index = data.index.astype(str)
        cells = anndata.AnnData(
            X=data[["cd8"]].to_numpy(), obs=data[["patient", "type"]], var=pandas.DataFrame(index=["cd8"])
        )
        cells.obsm["spatial"] = data[["x", "y"]].to_numpy()
        cells.write_h5ad(target)
    else:
        frame().to_csv(target, index=False, sep="\t" if request.param == "tsv" else ",")
    return target


def test_categories_become_one_hot(path: Path) -> None:
    assert is_table(path)
    first, second = read_table(path, bag="patient", unit="px", um_per_unit=0.5, one_hot="type")
    assert (first.bag_id, second.bag_id) == ("p1", "p2")
    assert first.metadata["feature_names"] == ["B", "T"]
    torch.testing.assert_close(first.features, 6**0.5 * torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    torch.testing.assert_close(second.coords, torch.tensor([[0.0, 0.5], [10.0, 10.5]]))
    assert second.instance_labels is not None
    assert second.instance_labels.tolist() == [1, 0]
    assert first.unit == "um"


def test_columns_of_numbers(path: Path) -> None:
    first, second = read_table(path, bag="patient", unit="um", features=["cd8"])
    assert first.features[:, 0].tolist() == [1.5, 3.5]
    assert second.features[:, 0].tolist() == [0.5, 2.5]
    again, _ = read_table(path, bag="patient", unit="um")
    assert again.metadata["feature_names"] == ["cd8"]
    torch.testing.assert_close(again.features, first.features)


def test_category_order_of_a_model_is_kept(path: Path) -> None:
    first, _ = read_table(path, bag="patient", unit="um", one_hot="type", categories=["T", "other", "B"])
    torch.testing.assert_close(first.features, 9**0.5 * torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
    with pytest.raises(DataError, match="holds 'T', expected one of B"):
        read_table(path, bag="patient", unit="um", one_hot="type", categories=["B"])


@pytest.mark.parametrize("kind", ["csv", "h5ad"])
def test_column_order_of_a_model_is_kept(kind: str, tmp_path: Path) -> None:
    def write(*names: str) -> Path:
        data = pandas.DataFrame({"bag": ["p", "p"], "x": [0.0, 1.0], "y": [0.0, 2.0]})
        values = pandas.DataFrame({"a": [1.0, 2.0], "b": [100.0, 200.0], "c": [7.0, 8.0]})[list(names)]
        target = tmp_path / f"{'-'.join(names)}.{kind}"
        if kind == "csv":
            pandas.concat([data, values], axis=1).to_csv(target, index=False)
            return target
        anndata = pytest.importorskip("anndata")
        data.index = data.index.astype(str)
        cells = anndata.AnnData(X=values.to_numpy(), obs=data[["bag"]], var=pandas.DataFrame(index=list(names)))
        cells.obsm["spatial"] = data[["x", "y"]].to_numpy()
        cells.write_h5ad(target)
        return target

    for path in (write("a", "b"), write("c", "b", "a")):
        (found,) = read_table(path, bag="bag", unit="um", categories=["a", "b"])
        assert found.features.tolist() == [[1.0, 100.0], [2.0, 200.0]]
        assert found.metadata["feature_names"] == ["a", "b"]
    with pytest.raises(InputError, match=r"no (column|variable) 'b'.*the model was trained with it, so add it"):
        read_table(write("a", "c"), bag="bag", unit="um", categories=["a", "b"])


def test_anndata_without_x_has_categories_only(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    cells = anndata.AnnData(obs=frame()[["patient", "type"]].set_axis(list("abcd")))
    cells.obsm["spatial"] = frame()[["x", "y"]].to_numpy()
    cells.write_h5ad(tmp_path / "cells.h5ad")
    first, _ = read_table(tmp_path / "cells.h5ad", bag="patient", unit="um", one_hot="type")
    torch.testing.assert_close(first.features, 6**0.5 * torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    with pytest.raises(InputError, match="X is empty, so there are no features: name a column of categories with"):
        read_table(tmp_path / "cells.h5ad", bag="patient", unit="um")


def test_clear_errors(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    frame().to_csv(path, index=False)
    with pytest.raises(InputError, match="positions are in pixels; give the micrometres of one pixel with --mpp"):
        read_table(path, bag="patient", unit="px", one_hot="type")
    with pytest.raises(InputError, match="unit is 'mm'"):
        read_table(path, bag="patient", unit="mm", one_hot="type")
    with pytest.raises(InputError, match="no column 'slide'; it has patient, x, y, type, cd8"):
        read_table(path, bag="slide", unit="um", one_hot="type")
    with pytest.raises(InputError, match="both given"):
        read_table(path, bag="patient", unit="um", one_hot="type", features=["cd8"])
    broken = frame()
    broken.loc[1, "x"] = np.nan
    broken.to_csv(path, index=False)
    with pytest.raises(DataError, match="1 rows have no position, the first in bag 'p1'"):
        read_table(path, bag="patient", unit="um", one_hot="type")
    broken = frame()
    broken.loc[2, "cd8"] = np.nan
    broken.to_csv(path, index=False)
    with pytest.raises(DataError, match="'cd8' holds empty or non-numeric values"):
        read_table(path, bag="patient", unit="um")
    long = frame()
    long["cell_id"] = ["z" * 2_000, *["a"] * (len(long) - 1)]
    long.to_csv(path, index=False)
    with pytest.raises(DataError, match="a value of 'cell_id' has 2,000 characters, expected a name of at most 1,000"):
        read_table(path, bag="patient", unit="um", one_hot="type")
