"""Slides as others make them: a rare pair within a distance, noise in every feature. Nothing is learned by heart."""

import dataclasses

import numpy as np
import pytest
import torch

import dasmil
from dasmil.stats import auroc
from dasmil.train.feed import Feed
from dasmil.train.held_out import Judge, chance_of
from tests.baselines.rare_pairs import rare_pairs


def scored(run, bags):
    return float(auroc(run.predict(bags), np.array([bag.label for bag in bags]) == 1)[0])


@pytest.fixture(scope="module")
def planted():
    bags = rare_pairs(48)
    return bags, dasmil.fit("das-mil", bags, seeds=2, epochs=12)


def test_the_planted_distance_is_found_with_default_settings(planted):
    _, runs = planted
    for run in runs:
        assert scored(run, rare_pairs(40, seed=1)) >= 0.95
        assert 360 < run.model.learned_distances()[0]["midpoint"] < 572
        assert run.fitted
        assert run.attempts[0].held_out["chance"] < 0.05
        assert run.proven


def test_the_users_model_takes_features_as_they_are(planted, tmp_path):
    bags, runs = planted
    assert runs[0].model.encoder.in_shape == (96,)
    runs[0].model.save(tmp_path / "m.safetensors")
    again = dasmil.load_model(tmp_path / "m.safetensors")
    with torch.no_grad():
        logits = [float(m(b.features, b.coords).logit) for m in (runs[0].model, again) for b in bags[:4]]
    assert logits[:4] == logits[4:]
    account = dasmil.explain(runs[0].model, bags[1])
    assert float(account.contributions.sum() + account.bias) == pytest.approx(float(account.logit), abs=1e-4)


def test_shuffled_labels_are_not_learned_by_heart():
    bags = rare_pairs(48)
    labels = np.random.default_rng(3).permutation([bag.label for bag in bags])
    bags = [dataclasses.replace(bag, label=int(label)) for bag, label in zip(bags, labels)]
    run = dasmil.fit("das-mil", bags, epochs=12)[0]
    assert not run.fitted
    assert "nothing found" in run.reason
    assert run.train_loss > 0.2  # a memoriser comes to 0


def test_the_run_directory_tells_what_held_out_bags_said(tmp_path):
    dasmil.fit("das-mil", rare_pairs(32), epochs=1, out=tmp_path / "run")
    attempt = dasmil.Run.read(tmp_path / "run").seeds[0].status["attempts"][0]
    assert attempt["held_out"]["auroc"] >= 0.9
    assert attempt["held_out"]["bags"] == 8
    mean = attempt["preferred_to"][0]
    assert mean["start"] == 0
    assert mean["train_loss"] == mean["held_out"]["train_loss"] != mean["held_out"]["loss"]


def test_other_bags_change_nothing():
    """Directions, types, pairs and starts come from the training bags alone."""
    bags = rare_pairs(32)
    first = dasmil.fit("das-mil", bags, rare_pairs(8, seed=5), epochs=2)[0].model.state_dict()
    second = dasmil.fit("das-mil", bags, rare_pairs(8, seed=6), epochs=2)[0].model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_bags_that_judge_are_other_patients_of_both_classes():
    bags = [dataclasses.replace(bag, patient_id=f"p{i // 2}") for i, bag in enumerate(rare_pairs(48))]
    judge = Judge.of(Feed(bags, torch.device("cpu"), memory_gb=1.0))
    assert judge is not None
    assert not set(judge.learn.facts.patients) & set(judge.feed.facts.patients)
    assert sorted(judge.learn.facts.ids + judge.feed.facts.ids) == sorted(bag.bag_id for bag in bags)
    assert np.bincount(judge.feed.facts.labels).min() >= 4
    for step in judge.feed.batches():  # the parts hold the bags that their names say
        for row, number in enumerate(step.bags):
            own = next(bag for bag in bags if bag.bag_id == judge.feed.facts.ids[number])
            assert torch.equal(step.features[row], own.features)
    assert Judge.of(Feed(rare_pairs(20), torch.device("cpu"), memory_gb=1.0)) is None


def test_chance_is_that_of_blind_guesses():
    labels = np.array([0, 1] * 10)
    rng = np.random.default_rng(0)
    best = [max(auroc(rng.random(20), labels == 1)[0] for _ in range(13)) for _ in range(400)]
    limit = float(np.quantile(best, 0.95))
    assert chance_of(labels, limit, 13) == pytest.approx(0.05, abs=0.05)
    assert chance_of(labels, 0.5, 13) == 1.0
