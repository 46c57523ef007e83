"""The table of key-instance scores: what was computed is kept, what changed is computed again."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
import torch

from dasmil.attribution import key_instances
from dasmil.attribution.key_table import KeyRow, read_rows, write_markdown, write_rows
from dasmil.cli.cohort_arguments import BagArguments
from dasmil.cli.explain import app
from dasmil.data.store import read_bag, write_bag
from dasmil.errors import DataError, InputError
from dasmil.models import create_model
from dasmil.study.questions import LabelledBags
from dasmil.types import Bag


def call(*arguments):
    return app([str(a) for a in arguments], exit_on_error=False, print_error=False, result_action="return_value")


def make_run(folder, seeds=2, finished=True, **options):
    for seed in range(seeds):
        (folder / f"seed-{seed}").mkdir(parents=True)
        torch.manual_seed(seed)
        create_model("das-mil", preset="mnist-collage", **options).save(folder / f"seed-{seed}" / "model.safetensors")
        (folder / f"seed-{seed}" / "status.json").write_text(json.dumps({"fitted": seed == 0}))
    config = {
        "format": "dasmil-run", "format_version": 1, "model": {"name": "das-mil"}, "seeds": list(range(seeds)),
        "data": {"name": "mnist-collage", "protocol": "published"},
        "training": {"epochs": 7, "schedule": "hold-linear", "augment": "digits", "feature_dropout": 0.3},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    if finished:
        (folder / "summary.json").write_text("{}")
    return folder


def test_a_table_that_is_none_is_one_message(tmp_path):
    table = tmp_path / "key-instances.csv"
    for text in (b"\xff\xfe\x00", b'"' + b"x" * 200_000):
        table.write_bytes(text)
        with pytest.raises(DataError, match="cannot be read as a table of key instances"):
            read_rows(table)


def test_runs_below_a_folder_are_scored_once_and_on_clean_bags(tmp_path, capsys, monkeypatch):
    make_run(tmp_path / "runs" / "a")
    make_run(tmp_path / "runs" / "b", seeds=1, embeddings="kq")
    make_run(tmp_path / "runs" / "c", finished=False)
    out = tmp_path / "out"
    ask = (tmp_path / "runs", "--key-instances", "--limit", 12, "--gradient-bags", 1, "-o", out)
    assert call(*ask) == 0
    assert "Left out, not finished" in capsys.readouterr().err
    rows = read_rows(out / "key-instances.csv")
    assert {(r.model, r.seeds, r.fitted) for r in rows} == {("das-mil", 2, 1), ("das-mil (kq)", 1, 1)}
    assert {r.data for r in rows} == {"mnist-collage, clean protocol, split test-large"}, "trained on published bags"
    assert {r.training for r in rows} == {"7 epochs, hold-linear, augmented, feature dropout 0.3"}
    text = (out / "key-instances-all.md").read_text()
    support = next(r for r in rows if r.model == "das-mil" and r.score == "support")
    assert f"{support.auroc_mean:.3f} ± {support.spread:.3f}" in text
    assert "\\|contribution\\|" in text

    def refuse(*_args, **_kwargs):
        raise AssertionError("computed again")

    with monkeypatch.context() as patch:
        patch.setattr(key_instances, "bag_aurocs", refuse)
        assert call(*ask) == 0
        assert read_rows(out / "key-instances.csv") == rows
        with pytest.raises(AssertionError, match="computed again"):
            call(*ask[:-4], "--gradient-bags", 2, "-o", out)
        shutil.copy(
            tmp_path / "runs/a/seed-0/model.safetensors", tmp_path / "runs/b/seed-0/model.safetensors"
        )  # other weights
        with pytest.raises(AssertionError, match="computed again"):
            call(*ask)
    assert len(read_rows(out / "key-instances.csv")) == len(rows), "nothing is lost by a run that fails"


def test_a_folder_without_a_finished_run_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no run"):
        call(tmp_path / "empty", "--key-instances")
    make_run(tmp_path / "runs" / "c", seeds=1, finished=False)
    with pytest.raises(InputError, match="holds 1 runs, but none is finished"):
        call(tmp_path / "runs", "--key-instances")


def test_rows_come_back_as_written_and_models_are_ordered_by_their_best_score(tmp_path):
    def row(data, model, score, mean):
        return KeyRow(data, model, score, mean, 0.1, 0.9, 50, 2, 2, "9 epochs", "0.4000 0.6000", "abc")

    rows = [row("one", "m", "x", 0.5), row("two", "m", "x", 0.7), row("one", "n", "y", 0.9)]
    write_rows(tmp_path / "t.csv", rows)
    assert read_rows(tmp_path / "t.csv") == rows
    write_markdown(tmp_path / "t.md", rows)
    lines = [line for line in (tmp_path / "t.md").read_text().splitlines() if line.startswith("| ")]
    assert lines[0] == "| model | score | one | two | seeds (fitted) | training |"
    assert lines[1] == "| n | y | 0.900 ± 0.141 (0.100-0.900) | - | 2 (2) | 9 epochs |"
    assert lines[2].startswith("| m | x | 0.500 ± 0.141 (0.100-0.900) | 0.700 ")
    with open(tmp_path / "t.csv", newline="") as file:
        assert next(csv.reader(file))[0] == "data"


def test_own_bags_are_scored_again_when_they_their_labels_or_their_scale_change(tmp_path, monkeypatch):
    torch.manual_seed(0)
    create_model("mean-pool", in_features=3, unit="um").save(tmp_path / "m.safetensors")
    (tmp_path / "bags").mkdir()
    for k in range(4):
        key = torch.tensor([k % 2 == 1, False, False, False])
        bag = Bag(torch.randn(4, 3), torch.rand(4, 2) * 90, "um", f"s{k}", key_instances=key, metadata={"tile_um": 9.0})
        write_bag(tmp_path / "bags" / f"s{k}.h5", bag)
    for name in ("one", "two"):
        (tmp_path / f"{name}.csv").write_text("slide,label\n" + "".join(f"s{k},{k % 2}\n" for k in range(4)))
    calls = []
    real = key_instances.bag_aurocs
    monkeypatch.setattr(key_instances, "bag_aurocs", lambda *a, **k: (calls.append(1), real(*a, **k))[1])

    def times(*arguments, labels="one"):
        calls.clear()
        ask = (tmp_path / "m.safetensors", "--key-instances", "--bags", tmp_path / "bags")
        assert call(*ask, "--labels", tmp_path / f"{labels}.csv", *arguments, "-o", tmp_path / "out") == 0
        return len(calls)

    assert [times(), times()] == [1, 0]
    assert [times(labels="two"), times(labels="two")] == [1, 0]
    assert [times("--mpp", 0.5), times("--mpp", 0.5), times("--tile-um", 9)] == [1, 0, 1]
    assert [times(), times()] == [1, 0], "another question has taken the place of its rows"
    write_bag(tmp_path / "bags" / "s1.h5", replace(read_bag(tmp_path / "bags" / "s1.h5"), features=torch.randn(4, 3)))
    assert [times(), times()] == [1, 0]
    with open(tmp_path / "one.csv", "a") as file:
        file.write("s9,1\n")
    assert [times(), times()] == [1, 0]


def test_rows_of_built_in_data_stay_known(tmp_path):
    run = make_run(tmp_path / "a", seeds=1)
    ask = {"protocol": "clean", "given": BagArguments(), "limit": None}
    for data, split in ((None, None), ("mnist-collage-inv", "test")):
        assert LabelledBags(data=data, split=split, mnist_dir=None, **ask).state(run) == ()
