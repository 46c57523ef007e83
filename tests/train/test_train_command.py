"""dasmil train, evaluate and predict through the real command line."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from toy import toy_bags

import dasmil
from dasmil.cli.assignments import parse_assignments
from dasmil.errors import DasmilError, InputError
from dasmil.models import MODELS
from dasmil.study.held_out import run_sets
from dasmil.study.settings import gather_settings
from dasmil.train.config import training_config
from dasmil.train.recipes import list_recipes, load_recipe

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}


def command(*arguments):
    return [sys.executable, "-c", "from dasmil.cli import main; main()", *map(str, arguments)]


def call(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=ENVIRONMENT, check=False)


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path):
    out = tmp_path / "run"
    data = ("--data", "mnist-collage", "--protocol", "published")
    arguments = ("train", *data, "--model", "max-pool", "--out", out, "--epochs", "200")
    process = subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("epoch 1/200"):
            break
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait() == 130
    epochs = json.loads((out / "checkpoint.json").read_text())["epoch"]
    assert f"Stopped. {epochs} of 200 epochs are saved in {out}." in rest
    assert "Go on with: dasmil train --data mnist-collage" in rest
    assert rest.rstrip().endswith("--resume")
    assert "Traceback" not in rest


def test_runs_of_the_published_protocol_are_scored_on_the_large_clean_set_too(tmp_path):
    data = {"name": "mnist-collage", "protocol": "published"}
    sets = run_sets(data, ["test", "test-large"], None, tmp_path)
    clean = dasmil.load_dataset("mnist-collage", split="test-large")
    assert [bag.bag_id for bag in sets["test-large"]] == [bag.bag_id for bag in clean]
    assert all(torch.equal(a.coords, b.coords) for a, b in zip(sets["test-large"], clean, strict=True))
    assert len(sets["test"]) == 100
    with pytest.raises(InputError, match="unknown split of the published protocol 'val'"):
        run_sets(data, ["val"], None, tmp_path)


def test_predict_writes_one_row_a_bag(tmp_path):
    dasmil.fit("das-mil", toy_bags(8), out=tmp_path / "run", seeds=2, epochs=1, restarts=0, data={})
    (tmp_path / "bags").mkdir()
    bags = toy_bags(3, seed=7)
    for i, bag in enumerate(bags):
        dasmil.write_bag(tmp_path / "bags" / f"slide_{i}.h5", bag)
    done = call("predict", tmp_path / "run", "--bags", tmp_path / "bags", "-o", tmp_path / "p.csv")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "bag_id,probability,prediction,probability_sd,logit,caveat"  # two seeds, no better than chance
    assert len(lines) == 4
    assert done.stdout.splitlines()[-1] == str(tmp_path / "p.csv")
    missing = call("predict", tmp_path / "none", "--bags", tmp_path / "bags")
    assert missing.returncode == 2
    assert missing.stderr.startswith("Error: ")
    assert "expected a run directory" in missing.stderr
    unlabelled = call("evaluate", tmp_path / "run", "--bags", tmp_path / "bags")
    assert unlabelled.returncode == 2
    assert "--labels" in unlabelled.stderr


def test_settings_come_from_recipe_flags_and_assignments():
    chosen = gather_settings(
        "das-mil", "paper", None, {"epochs": 7}, parse_assignments(["hidden=20", "clip=1.5", "pooling=mean"])
    )
    assert chosen.preset == "mnist-collage"
    assert chosen.training["epochs"] == 7
    assert chosen.training["lr"] == 1e-3
    assert chosen.training["clip"] == 1.5
    assert chosen.options == {"hidden": 20, "pooling": "mean"}
    assert gather_settings("das-mil", None, None, {"early_stopping": 3}, {}).training["selection"] == "best-val"


def test_a_preset_that_was_asked_for_counts_before_the_recipes_and_the_datas():
    assert gather_settings("das-mil", "tuned", "camelyon16", {}, {}, "mnist-collage").preset == "camelyon16"
    assert gather_settings("das-mil", "camelyon16", None, {}, {}, "mnist-collage").preset == "camelyon16"
    assert gather_settings("das-mil", None, None, {}, {}, "mnist-collage").preset == "mnist-collage"
    assert "camelyon16" not in MODELS["gat"].presets
    assert gather_settings("gat", None, None, {}, {}, "camelyon16").preset is None
    assert gather_settings("gat", None, "camelyon16", {}, {}).preset == "camelyon16"  # refused by fit, not dropped


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("das-ml", None, None, {}, []), "Did you mean 'das-mil'"),
        (("das-mil", "papr", None, {}, []), "unknown recipe 'papr'. Did you mean 'paper'"),
        (("das-mil", None, None, {}, ["hiden=3"]), "Did you mean 'hidden'"),
        (("das-mil", None, None, {}, ["hidden"]), "expected name=value"),
    ],
)
def test_wrong_names_get_the_nearest_one(arguments, message):
    with pytest.raises(InputError, match=message):
        gather_settings(*arguments[:4], parse_assignments(arguments[4]))


PAPER = {  # table tbl:mnist_collage_hyperparams: lr, weight decay
    "max-pool": (1e-4, 0.01), "ab-mil": (1e-4, 0.001), "gat": (1e-3, 0.1), "gcn": (1e-3, 0.1), "mil-gnn": (1e-3, 0.01),
    "iset-transformer": (1e-4, 0.1), "set-transformer": (1e-3, 0.1), "sa": (1e-3, 0.1), "sa-axial": (1e-4, 0.1),
    "sa-fourier": (1e-3, 0.001), "disc-rel-sa": (1e-4, 0.1), "transmil": (1e-4, 0.1), "das-mil": (1e-3, 0.01),
}  # fmt: skip


@pytest.mark.parametrize("model", PAPER)
def test_the_paper_recipe_holds_the_papers_table(model):
    recipe = load_recipe("paper", model)
    assert (recipe.training["lr"], recipe.training["weight_decay"]) == PAPER[model]
    config = training_config(recipe.training)
    assert (config.epochs, config.restarts, config.distance_lr, config.distance_init) == (50, 0, "common", "model")
    assert config.lookahead == (6 if model == "transmil" else 0)


def test_every_recipe_is_valid_for_every_model_it_names():
    for name in list_recipes():
        for model in dasmil.list_models():
            try:
                recipe = load_recipe(name, model)
            except DasmilError as error:
                assert "has no settings for" in str(error)  # noqa: PT017
                continue
            training_config(recipe.training)
            assert set(recipe.options) <= set(MODELS[model].options())
    camelyon = load_recipe("camelyon16", "das-mil")
    assert (camelyon.training["lr"], camelyon.training["weight_decay"]) == (1e-3, 1e-5)
    assert (camelyon.training["optimizer"], camelyon.training["lookahead"], camelyon.training["epochs"]) == (
        "radam",
        6,
        30,
    )
    assert load_recipe("camelyon16", "transmil").training["lr"] == 2e-4
