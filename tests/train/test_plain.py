"""--plain: the paper's layers, optimiser and schedule on features of any width, in any unit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import dasmil
from dasmil.errors import InputError
from dasmil.train.fit_auto import default_model
from dasmil.train.job import Given, Outline, prepare
from dasmil.train.recipes import load_recipe
from tests.baselines.rare_pairs import rare_pairs


def test_feature_vectors_are_trained_as_those_of_the_paper() -> None:
    recipe = load_recipe("camelyon16", "das-mil")
    job = prepare("das-mil", Outline(30, (1280,), "px"), Given(settings={"plain": True}))
    assert {name: getattr(job.config, name) for name in recipe.training} == recipe.training
    assert (job.config.starts, job.config.clip, job.config.balance_classes) == (1, None, True)
    assert not job.competes
    wanted = {"encoder": "linear-relu", "encoder_features": 512, "hidden": 10, "out_features": 16}
    assert {name: job.options[name] for name in wanted} == wanted
    assert (job.options["in_features"], job.options["unit"]) == (1280, "px")
    assert not job.learns_distances  # theta 0.5 and beta 10 of the largest distance, and one learning rate


def test_pictures_are_trained_as_the_collages_in_their_own_unit() -> None:
    job = prepare("das-mil", Outline(30, (1, 28, 28), "um"), Given(settings={"plain": True}))
    assert (job.config.epochs, job.config.optimizer) == (50, "adamw")
    assert (job.options["hidden"], job.options["self_pair"], job.options["unit"]) == (10, False, "um")


def test_what_the_user_says_comes_first_and_other_models_get_what_all_have_in_common() -> None:
    given = Given(options={"hidden": 7}, settings={"plain": True, "epochs": 3})
    job = prepare("das-mil", Outline(30, (96,), "um"), given)
    assert (job.options["hidden"], job.config.epochs) == (7, 3)
    other = prepare("psa-mil", Outline(30, (96,), "um"), Given(settings={"plain": True}))
    assert (other.config.optimizer, other.config.lookahead, other.config.epochs) == ("radam", 6, 30)
    assert default_model({"plain": True}) == "das-mil"


def test_a_plain_run_starts_from_random_weights() -> None:
    bags = [replace(bag, unit="px") for bag in rare_pairs(6)]
    run = dasmil.fit("das-mil", bags, plain=True, epochs=1, progress=False)[0]
    assert run.attempts[0].rivals == []
    assert (run.epoch, run.model.config["unit"]) == (1, "px")
    farthest = max(float(torch.cdist(bag.coords, bag.coords).max()) for bag in bags)
    assert 0.8 * farthest < run.model.distance_scale <= farthest * 1.001
    with pytest.raises(InputError, match="plain"):
        dasmil.fit("auto", bags, plain=True, progress=False)
