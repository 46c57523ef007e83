"""Splits and predictions of other tools, in files laid out as theirs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dasmil.data.given_splits import GivenFold, read_folds, read_predictions_of_others, write_fold_tables
from dasmil.data.labels import read_labels
from dasmil.errors import DataError, InputError


def sets(fold: GivenFold) -> dict[str, list[str]]:
    return {name: list(names) for name, names in fold.sets.items() if names}


def test_clam_has_a_file_a_fold_and_a_column_a_set(tmp_path: Path) -> None:
    for k in (0, 1, 10, 2):
        text = f",train,val,test\n0,a{k},b,c\n1,d,,e\n2,f,,\n"
        (tmp_path / f"splits_{k}.csv").write_text(text, encoding="utf-8")
        (tmp_path / f"splits_{k}_bool.csv").write_text(",train,val,test\na,True,False,False\n", encoding="utf-8")
    folds = read_folds(tmp_path)
    assert [fold.name for fold in folds] == ["splits_0", "splits_1", "splits_2", "splits_10"]
    assert sets(folds[3]) == {"train": ["a10", "d", "f"], "val": ["b"], "test": ["c", "e"]}
    with pytest.raises(InputError, match="without _bool"):
        read_folds(tmp_path / "splits_0_bool.csv")


def test_patho_bench_has_a_column_a_fold(tmp_path: Path) -> None:
    rows = [
        "case_id\tslide_id\tgrade\tfold_0\tfold_1",
        "p1\ts1\t0\ttrain\ttest",
        "p2\ts2\t1\ttest\ttrain",
        "p3\ts3\t1\ttrain\t",
    ]
    (tmp_path / "k=all.tsv").write_text("\n".join(rows), encoding="utf-8")
    first, second = read_folds(tmp_path)
    assert (first.name, sets(first)) == ("fold_0", {"train": ["s1", "s3"], "test": ["s2"]})
    assert sets(second) == {"train": ["s2"], "test": ["s1"]}
    assert not first.patients
    (tmp_path / "cases.tsv").write_text("case_id\tfold_0\np1\ttrain\np2\ttest", encoding="utf-8")
    assert read_folds(tmp_path / "cases.tsv")[0].patients
    (tmp_path / "bad.tsv").write_text("slide_id\tfold_0\ns1\tleft", encoding="utf-8")
    with pytest.raises(DataError, match="expected train, val or test"):
        read_folds(tmp_path / "bad.tsv")


def test_torchmil_and_stamp(tmp_path: Path) -> None:
    (tmp_path / "splits.csv").write_text("bag_name,split\nnormal_001,train\ntest_001,test\n", encoding="utf-8")
    (one,) = read_folds(tmp_path)
    assert sets(one) == {"train": ["normal_001"], "test": ["test_001"]}
    record = {"splits": [{"train_patients": ["p1", "p2"], "test_patients": ["p3"]}]}
    (tmp_path / "splits.json").write_text(json.dumps(record), encoding="utf-8")
    (stamp,) = read_folds(tmp_path / "splits.json")
    assert stamp.patients
    assert sets(stamp) == {"train": ["p1", "p2"], "test": ["p3"]}
    (tmp_path / "splits.json").write_text('{"splits": 3}', encoding="utf-8")
    with pytest.raises(DataError, match="no record of splits"):
        read_folds(tmp_path / "splits.json")


def test_files_that_are_no_splits_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no splits"):
        read_folds(tmp_path)
    (tmp_path / "a.csv").write_text("slide,label\ns1,0\n", encoding="utf-8")
    with pytest.raises(DataError, match="no columns fold_0"):
        read_folds(tmp_path / "a.csv")


def test_predictions_of_clam(tmp_path: Path) -> None:
    for k in range(2):
        text = f",slide_id,Y,Y_hat,p_0,p_1\n0,s{k},1.0,0.0,0.7,0.3\n1,t{k},0.0,1.0,0.2,0.8\n"
        (tmp_path / f"fold_{k}.csv").write_text(text, encoding="utf-8")
    first, second = read_predictions_of_others(tmp_path)
    assert first.name == "fold_0.csv"
    assert list(second.names) == ["s1", "t1"]
    assert first.labels.tolist() == [1, 0]
    assert first.scores.tolist() == [0.3, 0.8]
    assert first.chosen is not None
    assert first.chosen.tolist() == [0, 1]


def test_predictions_of_any_table_with_named_columns(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    file.write_text("slide,status,risk\na,wild,0.2\nb,mutant,0.9\n", encoding="utf-8")
    columns = {"label": "status", "score": "risk"}
    (found,) = read_predictions_of_others(file, "mutant", columns)
    np.testing.assert_array_equal(found.labels, [0, 1])
    assert found.chosen is None
    with pytest.raises(InputError, match="no label is 'other'"):
        read_predictions_of_others(file, "other", columns)
    with pytest.raises(DataError, match="--score-column"):
        read_predictions_of_others(file, None, {"label": "status"})
    file.write_text("slide,label,score\na,0,x\n", encoding="utf-8")
    with pytest.raises(DataError, match="1 of 1 values of 'score' are no numbers"):
        read_predictions_of_others(file)


def test_folds_of_others_become_label_tables(tmp_path: Path) -> None:
    for k, text in enumerate((",train,val,test\n0,a,b,c\n1,d,,\n", ",train,val,test\n0,c,a,d\n")):
        (tmp_path / f"splits_{k}.csv").write_text(text, encoding="utf-8")
    (tmp_path / "labels.csv").write_text(
        "case_id,slide_id,label,split\np1,a.svs,x,test\np2,b.svs,y,\np3,c.svs,x,\np4,d.svs,y,\n", encoding="utf-8"
    )
    first, second = write_fold_tables(tmp_path, tmp_path / "labels.csv", tmp_path / "folds")
    rows = {row.slide: (row.label, row.patient, row.split) for row in read_labels(first)}
    assert rows == {
        "a": ("x", "p1", "train"), "b": ("y", "p2", "val"), "c": ("x", "p3", "test"), "d": ("y", "p4", "train"),
    }  # fmt: skip
    assert {row.slide: row.split for row in read_labels(second)} == {"a": "val", "c": "train", "d": "test"}
    (tmp_path / "splits.json").write_text('{"splits": [{"train_patients": ["p1"], "test_patients": ["p2"]}]}')
    (stamp,) = write_fold_tables(tmp_path / "splits.json", tmp_path / "labels.csv", tmp_path / "stamp")
    assert {row.slide: row.split for row in read_labels(stamp)} == {"a": "train", "b": "test"}
    (tmp_path / "labels.csv").write_text("slide,label\nz,0\n", encoding="utf-8")
    with pytest.raises(DataError, match="names no slide"):
        write_fold_tables(tmp_path / "splits_0.csv", tmp_path / "labels.csv", tmp_path / "no")
