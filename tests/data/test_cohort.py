"""A cohort joins files and labels, reads lazily, and names everything that did not fit."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import dasmil.data.source as source_module
from dasmil.data.cohort import bag_sizes, load_cohort
from dasmil.data.labels import LabelRow
from dasmil.data.match import check_trainable
from dasmil.data.scale import Scale, Scales, read_scales
from dasmil.data.store import write_bag
from dasmil.errors import DataError
from dasmil.types import Bag


def stamp(folder: Path, name: str, n: int = 5, width: int = 3) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file["feats"] = np.full((n, width), float(len(name) + n), dtype=np.float16)
        file["coords"] = np.stack([np.arange(n) * 256.0, np.zeros(n)], axis=1)
        file.attrs.update({"unit": "um", "tile_size_um": 256.0, "extractor": "x"})


def rows(*items: tuple) -> list[LabelRow]:
    return [LabelRow(*item) for item in items]


def test_report_names_everything_that_did_not_match(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "e"):
        stamp(tmp_path, name)
    labels = rows(("a", "pos", "p1"), ("b", "neg", "p1"), ("d", "pos", "p2"), ("e", None, "p3"), ("a", "pos", "p1"))
    cohort = load_cohort(tmp_path, labels)
    assert cohort.bag_ids == ["a", "b"]
    assert cohort.classes == ("neg", "pos")
    assert cohort.labels == [1, 0]
    report = cohort.report
    assert report.slides_without_label == ["c"]
    assert report.labels_without_slide == ["d"]
    assert report.empty_labels == ["e"]
    assert report.repeated_rows == ["a"]
    assert report.lines()[0] == "2 slides of 1 patients; 1 of class neg, 1 of class pos"
    assert len(report.unmatched) == 4
    with pytest.raises(DataError, match="1 slides without a label: c; 1 labels without a slide: d"):
        load_cohort(tmp_path, labels, strict=True)


def test_rows_of_a_scale_table_without_a_slide_are_named(tmp_path: Path) -> None:
    stamp(tmp_path, "a")
    stamp(tmp_path, "b")
    scales = Scales(table={"a": Scale(mpp=0.5), "gone": Scale(mpp=0.5)})
    labels = rows(("a", "1"), ("b", "0"))
    assert load_cohort(tmp_path, labels, scales=scales).report.unmatched == [
        "1 rows of the scale table without a slide: gone"
    ]
    with pytest.raises(DataError, match="1 rows of the scale table without a slide: gone"):
        load_cohort(tmp_path, labels, scales=scales, strict=True)


def test_the_scales_of_all_slides_are_in_the_rule(tmp_path: Path) -> None:
    corners = np.array([[0, 0], [512, 0], [0, 512], [512, 512]])
    for name in "abc":
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["features"], file["coords"] = np.ones((4, 3)), corners
    same = load_cohort(tmp_path, scales=read_scales(mpp=0.25))
    one = "CLAM: centre = (level-0 px top left + tile/2) x mpp (0.25 um/px as given; tile 512 px taken from the stride)"
    assert same.positions == one == same[0].metadata["coords_rule"]
    (tmp_path / "scales.csv").write_text("slide,mpp\nb,0.5\nc,0.243\n")
    mixed = load_cohort(tmp_path, scales=read_scales(mpp=0.25, table=tmp_path / "scales.csv"))
    assert mixed.positions == f"{one} in the first of 3 slides, which have 3 different scales, 0.243 to 0.5 um/px"
    assert mixed.subset([0]).positions == one
    with h5py.File(tmp_path / "c.h5", "r+") as file:
        del file["coords"]
        file["coords"] = corners * 2
    sizes = load_cohort(tmp_path, scales=read_scales(mpp=0.25)).positions
    assert sizes == f"{one} in the first of 3 slides, which have 2 different tile sizes"
    stride = load_cohort(tmp_path, scales=read_scales(tile_um=128)).positions
    assert "(128 um as given / measured stride 512 px;" in stride
    assert stride.endswith("in the first of 3 slides, which have 2 different scales, 0.125 to 0.25 um/px")
    for name in "de":
        stamp(tmp_path, name)
    both = load_cohort(tmp_path, scales=read_scales(mpp=0.25)).positions
    assert both == f"{sizes}; STAMP: centre = um top left + 256/2, as the file declares"


@pytest.mark.parametrize("in_memory", [True, False])
def test_patients_and_labels_of_the_bags_count_where_the_table_has_none(in_memory: bool, tmp_path: Path) -> None:
    made = [
        Bag(torch.ones(3, 2), torch.rand(3, 2), "um", f"s{i}", label=1 + i % 2, patient_id=f"p{i // 2}")
        for i in range(4)
    ]
    for bag in made:
        write_bag(tmp_path / f"{bag.bag_id}.h5", bag)
    bags = made if in_memory else tmp_path
    plain = load_cohort(bags)
    assert plain.labels == [1, 2, 1, 2]
    assert plain.patients == ["p0", "p0", "p1", "p1"]
    assert (plain[1].label, plain[1].patient_id) == (2, "p0")
    assert plain.report.lines() == ["4 slides of 2 patients; 0 of class 0, 2 of class 1, 2 of class 2"]

    cohort = load_cohort(bags, rows(*((f"s{i}", str(1 + i % 2)) for i in range(4))))
    assert cohort.patients == ["p0", "p0", "p1", "p1"]
    assert (cohort[3].label, cohort[3].patient_id) == (1, "p1")
    assert cohort.report.lines() == ["4 slides of 2 patients; 2 of class 1, 2 of class 2"]
    assert load_cohort(bags, rows(*((f"s{i}", "ab"[i // 2]) for i in range(4))), per_patient=True).bag_ids == [
        "p0",
        "p1",
    ]
    with pytest.raises(DataError, match="'p0' in test and train"):
        load_cohort(bags, rows(("s0", "1", None, "train"), ("s1", "2", None, "test")))

    other = load_cohort(bags, rows(("s0", "1", "p0"), ("s1", "1", "q"), ("s2", "1"), ("s3", "2")))
    assert other.patients == ["p0", "q", "p1", "p1"]
    assert other.labels == [0, 0, 0, 1]
    assert other.report.lines()[1:] == [
        "1 slides whose bag names another patient than the label table, which counts: s1",
        "1 slides whose bag has another class number than the label table, which counts: s1",
    ]


def test_unlabelled_bags_stay_beside_labelled_ones(tmp_path: Path) -> None:
    for name, label in (("a", None), ("b", 1)):
        write_bag(tmp_path / f"{name}.h5", Bag(torch.ones(3, 2), torch.rand(3, 2), "um", name, label=label))
    stamp(tmp_path, "c", width=2)
    assert load_cohort(tmp_path).bag_ids == ["a", "b", "c"]
    assert load_cohort(tmp_path).labels == [None, 1, None]


def test_contradictions_stop(tmp_path: Path) -> None:
    for name in ("a", "b"):
        stamp(tmp_path, name)
    with pytest.raises(DataError, match="slide 'a' is listed twice with different values: label '1' and '0'"):
        load_cohort(tmp_path, rows(("a", "1"), ("a", "0"), ("b", "0")))
    with pytest.raises(DataError, match="1 patients are in more than one split, for example 'p' in test and train"):
        load_cohort(tmp_path, rows(("a", "1", "p", "train"), ("b", "0", "p", "test")))
    with pytest.raises(DataError, match="1 slides have no split while others have one: b"):
        load_cohort(tmp_path, rows(("a", "1", "p", "train"), ("b", "0", "q")))
    with pytest.raises(DataError, match="bags are named like a, b, the label table like x"):
        load_cohort(tmp_path, rows(("x", "1")))
    with pytest.raises(DataError, match="named like a, b, the label table like A, B; only the case differs"):
        load_cohort(tmp_path, rows(("A", "1"), ("B", "0")))
    with pytest.raises(DataError, match="the cells of all 2 slides that the label table names are empty; fill them in"):
        load_cohort(tmp_path, rows(("a", None), ("b", None)))
    with pytest.raises(DataError, match="found 2 of class '1' only"):
        check_trainable(load_cohort(tmp_path, rows(("a", "1"), ("b", "1"))).report)
    stamp(tmp_path / "again", "a")
    with pytest.raises(DataError, match="1 slide names occur more than once"):
        load_cohort(tmp_path, rows(("a", "1"), ("b", "0")))


def test_two_files_of_a_slide_stop_though_one_keeps_the_ending_of_the_slide(tmp_path: Path) -> None:
    for name in ("a", "b", "a.svs"):
        stamp(tmp_path, name)
    for labels in (rows(("a", "1"), ("b", "0")), None):
        with pytest.raises(DataError, match=r"1 slide names .* 'a' in .*a\.h5 and .*a\.svs\.h5; give each slide one"):
            load_cohort(tmp_path, labels)


def test_bags_are_read_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "bb", "ccc"):
        stamp(tmp_path, name)
    read: list[str] = []
    original = source_module.read_features

    def counting(path: Path, scale: object, features: bool = True) -> object:
        if features:
            read.append(path.stem)
        return original(path, scale, features=features)  # type: ignore[arg-type]

    monkeypatch.setattr(source_module, "read_features", counting)
    cohort = load_cohort(tmp_path, rows(("a", "0"), ("bb", "1"), ("ccc", "1")))
    part = cohort[1:]
    assert (cohort.labels, part.labels, read) == ([0, 1, 1], [1, 1], [])
    bag = part[0]
    assert read == ["bb"]
    assert (bag.bag_id, bag.label, bag.unit) == ("bb", 1, "um")
    assert bag.features[0, 0] == 7
    torch.testing.assert_close(bag.coords[:2], torch.tensor([[128.0, 128.0], [384.0, 128.0]]))
    assert [bag.bag_id for bag in cohort] == ["a", "bb", "ccc"]
    assert read == ["bb", "a", "ccc"]


def test_slides_of_a_patient_become_sections(tmp_path: Path) -> None:
    stamp(tmp_path, "a", n=2)
    stamp(tmp_path, "b", n=3)
    stamp(tmp_path, "c", n=4)
    labels = rows(("a", "1", "p"), ("b", "1", "p"), ("c", "0", "q"))
    cohort = load_cohort(tmp_path, labels, per_patient=True)
    assert cohort.bag_ids == ["p", "q"]
    bag = cohort[0]
    assert bag.section is not None
    assert bag.section.tolist() == [0, 0, 1, 1, 1]
    assert bag.features[:, 0].tolist() == [3, 3, 4, 4, 4]
    assert bag.metadata["slides"] == ["a", "b"]
    assert bag_sizes(cohort) == ([5, 4], (3,))
    with pytest.raises(DataError, match="patient 'p' has slides with different labels"):
        load_cohort(tmp_path, rows(("a", "1", "p"), ("b", "0", "p")), per_patient=True)
    with pytest.raises(DataError, match="slide 'a' has no patient"):
        load_cohort(tmp_path, rows(("a", "1"), ("b", "0", "p")), per_patient=True)


def test_max_instances_samples_the_same_part_each_time(tmp_path: Path) -> None:
    stamp(tmp_path, "a", n=50)
    stamp(tmp_path, "b", n=4)
    labels = rows(("a", "1"), ("b", "0"))
    first = load_cohort(tmp_path, labels, max_instances=10)[0]
    again = load_cohort(tmp_path, labels, max_instances=10)
    other = load_cohort(tmp_path, labels, max_instances=10, seed=1)[0]
    assert len(first) == 10
    assert first.metadata["sampled_from"] == 50
    assert torch.equal(first.coords, again[0].coords)
    assert not torch.equal(first.coords, other.coords)
    assert len(again[1]) == 4
    assert bag_sizes(again)[0] == [10, 4]


def test_different_feature_widths_are_found_without_reading(tmp_path: Path) -> None:
    stamp(tmp_path, "a", width=3)
    stamp(tmp_path, "b", width=4)
    with pytest.raises(DataError, match=r"different numbers of features \(3, 4\)"):
        bag_sizes(load_cohort(tmp_path, rows(("a", "1"), ("b", "0"))))


def test_bags_in_memory_with_their_own_labels() -> None:
    bags = [Bag(torch.ones(2, 3), torch.zeros(2, 2), "um", f"folder/{i}", label=i % 2) for i in range(4)]
    cohort = load_cohort(bags)
    assert cohort.bag_ids == ["folder/0", "folder/1", "folder/2", "folder/3"]
    assert cohort.labels == [0, 1, 0, 1]
    assert cohort.patients == cohort.bag_ids
    assert cohort[3].label == 1
    unlabelled = load_cohort([Bag(torch.ones(2, 3), torch.zeros(2, 2), "um", "x")])
    assert unlabelled.labels == [None]
    assert unlabelled[0].label is None


def test_three_classes(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        stamp(tmp_path, name)
    cohort = load_cohort(tmp_path, rows(("a", "x"), ("b", "y"), ("c", "z")), classes=["z", "y", "x"])
    assert [cohort[i].label for i in range(3)] == [2, 1, 0]


def spoil(folder: Path) -> None:
    """Three slides that cannot be read: a truncated file, one without tiles, one that is not HDF5."""
    stamp(folder, "cut")
    data = (folder / "cut.h5").read_bytes()
    (folder / "cut.h5").write_bytes(data[: len(data) // 2])
    with h5py.File(folder / "none.h5", "w") as file:
        file["feats"], file["coords"] = np.zeros((0, 3), np.float32), np.zeros((0, 2))
        file.attrs.update({"tile_size_um": 256.0, "unit": "um"})
    (folder / "text.h5").write_text("no features")


def test_slides_that_cannot_be_read_are_left_out_and_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        stamp(tmp_path, name)
    spoil(tmp_path)
    table = rows(*((name, str(i % 2)) for i, name in enumerate(("a", "b", "cut", "none", "text"))))
    cohort = load_cohort(tmp_path, table)
    assert cohort.bag_ids == ["a", "b"]
    assert [len(bag) for bag in cohort] == [5, 5]
    assert cohort.report.classes == {"0": 1, "1": 1}
    assert list(cohort.report.unreadable) == ["cut", "none", "text"]
    (line,) = cohort.report.unmatched
    assert line.startswith("3 slides left out, because they cannot be read: cut, none, text; the first: ")
    with pytest.raises(DataError, match=r"3 slides left out, .*leave --strict out to go on"):
        load_cohort(tmp_path, table, strict=True)
    with pytest.raises(DataError, match=r"^refused because of --strict: 3 slides left out"):  # of labels no word
        load_cohort(tmp_path, strict=True)
    for name in ("a", "b"):
        (tmp_path / f"{name}.h5").unlink()
    with pytest.raises(DataError, match="none of the 3 slides can be read; the first: "):
        load_cohort(tmp_path, table)


def test_a_scale_that_does_not_agree_leaves_no_slide_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        stamp(tmp_path, name)
    with pytest.raises(DataError, match="declares tile_size_um 256, but 100 was given"):
        load_cohort(tmp_path, rows(("a", "0"), ("b", "1")), scales=Scales(table={"a": Scale(tile_um=100)}))


def test_classes_that_differ_in_case_only_are_said(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        stamp(tmp_path, name)
    lines = load_cohort(tmp_path, rows(("a", "WT"), ("b", "wt"), ("c", "MUT"))).report.lines()
    assert "'WT' and 'wt' count as 2 classes; write them alike if they are one" in lines
