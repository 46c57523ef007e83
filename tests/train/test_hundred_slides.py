"""Slides as others make them: a rare pair within a distance, noise in every feature. Nothing is learned by heart."""

import dataclasses

import numpy as np
import pytest
import torch

import dasmil
from dasmil.stats import auroc
from dasmil.tasks.classes import chance_of
from dasmil.train.factory import ON_ALL
from dasmil.train.feed import Feed
from dasmil.train.held_out import Judge
from dasmil.train.starts import Evidence, SimpleStarts, Start
from tests.baselines.rare_pairs import many_near, rare_pairs
from tests.baselines.shares import shares


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


def shuffled(bags, seed):
    labels = np.random.default_rng(seed).permutation([bag.label for bag in bags])
    return [dataclasses.replace(bag, label=int(label)) for bag, label in zip(bags, labels)]


def test_shuffled_labels_are_not_learned_by_heart():
    run = dasmil.fit("das-mil", shuffled(rare_pairs(48), seed=3), epochs=12)[0]
    assert not run.fitted
    assert "nothing found" in run.reason
    assert run.train_loss > 0.2  # a memoriser comes to 0


def test_the_run_directory_tells_what_folds_said_of_a_rule(tmp_path):
    dasmil.fit("das-mil", rare_pairs(32), epochs=1, out=tmp_path / "run")
    attempt = dasmil.Run.read(tmp_path / "run").seeds[0].status["attempts"][0]
    assert attempt["held_out"]["auroc"] >= 0.9
    assert attempt["held_out"]["bags"] == 32
    assert attempt["held_out"]["chance"] < 0.01
    assert attempt["preferred_to"] == []  # a rule that holds goes alone


def test_the_run_directory_tells_what_held_out_bags_said(tmp_path):
    """Without a rule that leads, starts compete on bags that they do not see."""
    bags = shuffled(rare_pairs(32), seed=3)
    dasmil.fit("das-mil", bags, epochs=4, out=tmp_path / "run")
    attempt = dasmil.Run.read(tmp_path / "run").seeds[0].status["attempts"][0]
    assert attempt["held_out"]["chance"] > 0.05
    assert len(attempt["preferred_to"]) == attempt["held_out"]["starts"] - 1 >= 10
    other = attempt["preferred_to"][0]
    assert other["train_loss"] == other["held_out"]["train_loss"] != other["held_out"]["loss"]


def test_a_label_by_composition_is_found_as_such():
    run = dasmil.fit("das-mil", shares(40, more=0.06), epochs=4)[0]
    assert run.fitted
    assert scored(run, shares(60, seed=1, more=0.06)) >= 0.9


def test_a_label_by_one_type_alone_starts_from_its_pairs():
    """Two instances of one type: an instance is no pair with itself."""
    model = dasmil.create_model(
        "das-mil", in_features=4, hidden=4, out_features=4, self_pair=False, distance_scale=100.0
    )
    place = torch.tensor([3.0, 0, 0, 0])
    assert model.begin_near(place, place, 100.0, 40.0)
    model.eval().requires_grad_(False)
    features = torch.zeros(40, 4)
    features[:2, 0] = 3.0
    coords = 1000 * torch.arange(40)[:, None].float().expand(-1, 2).clone()
    apart = float(model(features, coords).logit)
    coords[1] = coords[0] + 30
    near = float(model(features, coords).logit)
    assert near > apart + 0.5


def counting(first, second, instances, share):
    """A start that counts those of ``first`` with one of ``second`` within 100 um, without its random outputs."""
    torch.manual_seed(0)
    size = len(second)
    model = dasmil.create_model(
        "das-mil", in_features=size, hidden=size, out_features=4, heads=2, pooling="mean", distance_scale=100.0
    )
    assert model.begin_within(first, second, 100.0, instances, share)
    model.eval().requires_grad_(False)
    model.classifier.weight[:, [1, 3]] = 0.0
    return model


@pytest.mark.parametrize("first", [torch.tensor([3.0, 0, 0, 0]), None])
def test_a_start_counts_the_instances_that_have_a_type_near_them(first):
    """Whatever all features of a slide are shifted by: only how many lie near counts, of a type or of all."""
    model = counting(first, torch.tensor([0.0, 3.0, 0, 0]), 60.0, 1 / 6)
    features, coords = torch.zeros(60, 4), 1000 * torch.arange(60)[:, None].float().expand(-1, 2).clone()
    features[:10, 0], features[10:20, 1] = 3.0, 3.0
    logits = []
    for near in (0, 5, 10):
        placed = coords.clone()
        placed[:near] = coords[10 : 10 + near] + 30
        shifts = [float(model(features + shift, placed).logit) for shift in (0.0, 0.3)]
        assert shifts[0] == pytest.approx(shifts[1], abs=0.035)  # the mean itself moves by 0.1
        logits.append(shifts[0])
    steps = np.diff(logits)
    # Of all instances the second type's own, too, then have one near: each is a sixtieth.
    assert steps == pytest.approx([5 / 60, 5 / 60], abs=0.03) if first is not None else min(steps) > 0.05
    # The second head knows the length, too, where it has to say of instances unlike the first type what the first says.
    heads = 2 if first is not None else 1
    assert [row["midpoint"] for row in model.learned_distances()] == [pytest.approx(100.0)] * heads


def test_a_start_that_counts_does_not_see_how_dense_other_instances_lie():
    """Readings of other types are not quite 0: how many of them lie near must not look like a count."""
    model = counting(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), 400.0, 0.01)
    features, places = 0.1 * torch.randn(400, 2), torch.rand(400, 2)
    dense, wide = (float(model(features, side * places).logit) for side in (100.0, 3000.0))
    assert abs(dense - wide) < 1 / 400  # less than one instance of the type with another near it


@pytest.mark.parametrize("crowd", [10, 30, 70])
def test_a_start_counts_those_near_a_type_that_most_instances_are_of(crowd):
    """Ten instances of a type, of which so many lie among a crowd of another: the crowd itself adds nothing."""
    model = counting(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), 80.0, 0.6)
    features = torch.zeros(crowd + 10, 2)
    features[:10, 0], features[10:, 1] = 1.0, 1.0
    logits = []
    for near in (0, 5, 10):
        coords = torch.zeros(crowd + 10, 2)
        coords[10:, 0] = 20 * torch.arange(crowd)  # in a row, nine neighbours within the length
        coords[:near] = coords[10 : 10 + near] + 30
        coords[near:10] = 5000.0
        logits.append(float(model(features, coords).logit - model.classifier.bias))
    assert np.array(logits) * (crowd + 10) == pytest.approx([0.0, 5.0, 10.0], abs=1.5)


def test_a_rule_that_counts_leads_only_where_it_is_clearly_better():
    """Where two instances decide it holds as well, but is read less sharply."""

    def leading(**losses):
        starts = {
            kind: Start(kind, evidence=Evidence(np.full(40, loss), 1 - loss / 4, 0.0)) for kind, loss in losses.items()
        }
        return SimpleStarts(starts, {}).leader(set(losses)).kind

    assert leading(mean=0.9, near=0.5, within=0.4) == "near"
    assert leading(mean=0.9, near=0.29, within=0.15) == "near"
    assert leading(mean=0.9, near=0.9, within=0.4) == "within"
    assert leading(mean=0.7, share=0.6) == "share"
    assert leading(mean=0.22, share=0.2) == "mean"  # both hold clearly, and order the bags alike


def test_a_label_by_how_many_lie_near_is_found():
    """As many of both types on every slide, and some always near each other: most of them, or few."""
    train, test = many_near(48), many_near(40, seed=1)
    run = dasmil.fit("das-mil", train, epochs=12)[0]
    assert run.fitted
    assert run.model.config["pooling"] == "mean"
    assert scored(run, test) >= 0.95
    account = dasmil.explain(run.model, test[1])
    assert float(account.contributions.sum() + account.bias) == pytest.approx(float(account.logit), abs=1e-4)
    fixed = dasmil.fit("das-mil", train, epochs=1, model_options={"pooling": "max"})[0]
    assert fixed.model.config["pooling"] == "max"  # what the user says stays


def test_few_bags_with_a_rule_that_holds_are_enough():
    """Too few to hold some out: the rule goes alone, as folds of the bags judge it."""
    run = dasmil.fit("das-mil", rare_pairs(24), epochs=6)[0]
    assert run.fitted
    assert run.attempts[0].held_out["bags"] == 24
    assert scored(run, rare_pairs(40, seed=1)) >= 0.9


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


def test_a_run_that_starts_from_a_pair_reads_its_two_types_alone(planted):
    """Hundreds of features, but only two numbers of an instance to learn by heart with."""
    bags, runs = planted
    for run in runs:
        assert int(torch.linalg.matrix_rank(run.model.encoder.directions)) == 2
    with torch.no_grad():
        read = [runs[0].model.encoder(bag.features) for bag in bags]
    assert all(torch.equal(x[:, 2:], torch.zeros_like(x[:, 2:])) for x in read)


def test_types_that_overlap_are_told_by_training_along_them():
    """Where a few tiles of other types look like the rare ones, the rule alone is not sharp."""
    run = dasmil.fit("das-mil", rare_pairs(60, seed=2, separation=0.6), epochs=40)[0]
    assert run.attempts[0].held_out["auroc"] < 0.95  # of the rule, on bags that did not choose it
    assert scored(run, rare_pairs(60, seed=1, separation=0.6)) >= 0.97


def test_a_rule_that_wins_against_other_starts_begins_again_from_all_bags():
    """With many bags a rule that only mostly holds has to compete; what it reads is then that of all training bags."""
    bags = rare_pairs(200)
    wrong = np.random.default_rng(0).random(len(bags)) < 0.2
    bags = [dataclasses.replace(bag, label=1 - bag.label) if no else bag for bag, no in zip(bags, wrong)]
    run = dasmil.fit("das-mil", bags, epochs=4)[0]
    assert run.attempts[0].start == ON_ALL
    assert run.attempts[0].rivals
    labels = np.array([bag.label for bag in bags])
    p = np.clip(np.where(labels == 1, run.predict(bags), 1 - run.predict(bags)), 1e-9, 1)
    weights = np.where(labels == 1, (labels == 0).sum() / (labels == 1).sum(), 1.0)
    assert float((-np.log(p) * weights).mean()) == pytest.approx(run.train_loss, rel=1e-3)
