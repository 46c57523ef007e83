"""A run does not depend on its company: what it draws, and what it becomes, is the same alone and among others."""

import numpy as np
import pytest
import torch
from toy import toy_bags

import dasmil
from dasmil.nn import draws as draws_module
from dasmil.train.feed import Feed
from dasmil.types import Bag
from tests.baselines.rare_pairs import rare_pairs

pytestmark = pytest.mark.usefixtures("recomputed")


def flat(run):
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


def pictures(count):
    generator = torch.Generator().manual_seed(0)
    return [
        Bag(torch.rand(len(b), 1, 28, 28, generator=generator), b.coords, "um", b.bag_id, label=b.label)
        for b in toy_bags(count)
    ]


CASES = {
    "das-mil": (toy_bags(12), "das-mil", {"starts": 1}, {"dropout": 0.3}),
    "starts, which choose at different times": (
        toy_bags(12), "das-mil", {"starts": 3, "starts_share": 1.0, "starts_until": 0.99, "restarts": 0}, {},
    ),
    "held-out bags and parts": (rare_pairs(32), "das-mil", {"starts": 2, "starts_instances": 30}, {}),
    "pictures": (pictures(6), "das-mil", {"augment": "digits", "feature_dropout": 0.2}, {}),
    "transmil": (toy_bags(6), "transmil", {}, {"dropout": 0.2, "features": 64}),
    "transmil, one by one": (toy_bags(4, sizes=(300, 301)), "transmil", {}, {"dropout": 0.2, "features": 64}),
    "slide-transformer, recomputed": (
        toy_bags(6), "slide-transformer", {}, {"layers": 2, "heads": 2, "head_features": 4},
    ),
    "set-transformer": (toy_bags(6), "set-transformer", {}, {"hidden": 8}),
    "disc-rel-sa": (toy_bags(6), "disc-rel-sa", {}, {"hidden": 4}),
    "dtfd-mil": (toy_bags(6), "dtfd-mil", {}, {"features": 8, "hidden": 4}),
    "clam-sb": (toy_bags(6), "clam-sb", {}, {"features": 8, "hidden": 4, "sampled": 2, "dropout": 0.25}),
    "linear-relu": (toy_bags(6), "mean-pool", {}, {"encoder": "linear-relu", "encoder_dropout": 0.4}),
}  # fmt: skip


class Record:
    """Everything that the run of a seed draws: the order of its bags, and the seeds behind all other draws."""

    def __init__(self, monkeypatch, bags, name, settings, options, **how):
        drawn, seen = {}, []
        mixed, epoch = draws_module._mixed, Feed.epoch

        def remember(keys, number):
            found = mixed(keys, number)
            for key, value in zip(keys.tolist(), found.tolist(), strict=True):
                drawn.setdefault(key, []).append((number, value))
            return found

        def look(feed, *given):
            for step in epoch(feed, *given):
                seen.append(step.bags)
                yield step

        with monkeypatch.context() as patch:
            patch.setattr(draws_module, "_mixed", remember)
            patch.setattr(Feed, "epoch", look)
            self.runs = dasmil.fit(name, bags, model_options=options, **{"epochs": 2, **settings}, **how)
        self.drawn, self.seen = drawn, seen
        self.run = next(run for run in self.runs if run.seed == 3)


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_the_same_alone_and_among_others(case, monkeypatch):
    given = CASES[case]
    alone = Record(monkeypatch, *given, seeds=[3])
    among = Record(monkeypatch, *given, seeds=[0, 3, 1])
    single = Record(monkeypatch, *given, seeds=[3, 7], stacked_instances=1)
    assert alone.drawn
    for other in (among, single):
        assert {key: other.drawn[key] for key in alone.drawn} == alone.drawn
        assert len(other.run.history) == len(alone.run.history)
        # Adam makes a step of a gradient that is zero but for rounding, so single weights may differ by one.
        assert float((flat(other.run) - flat(alone.run)).abs().mean()) < 2e-5
        for ours, theirs in zip(other.run.history, alone.run.history, strict=True):
            assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)


def test_the_order_of_bags_is_the_runs_own(monkeypatch):
    given = CASES["das-mil"]
    alone = np.stack(Record(monkeypatch, *given, seeds=[3]).seen)
    among = np.stack(Record(monkeypatch, *given, seeds=[0, 3, 1]).seen)
    assert alone[:, 0].tolist() == among[:, 1].tolist()
    assert alone[:, 0].tolist() != among[:, 0].tolist()  # another seed, another order among bags of one size
    assert alone[:12, 0].tolist() != alone[12:, 0].tolist()  # and another in the next epoch


def test_a_run_that_has_ended_does_not_go_on_for_its_company():
    train, val = toy_bags(20), toy_bags(20, seed=9, prefix="val")
    settings = {"epochs": 12, "lr": 2e-2, "selection": "best-val", "early_stopping": 2, "starts": 1, "restarts": 0}
    together = dasmil.fit("das-mil", train, val, seeds=3, **settings)
    assert len({len(run.history) for run in together}) > 1
    for run in together:
        alone = dasmil.fit("das-mil", train, val, seeds=[run.seed], **settings)[0]
        assert (len(alone.history), alone.epoch) == (len(run.history), run.epoch)
        torch.testing.assert_close(flat(alone), flat(run), rtol=1e-2, atol=1e-3)


def test_draws_differ_between_layers_steps_epochs_starts_and_seeds():
    with draws_module.drawing(draws_module.Draws.of([3, 0, 0])):
        x = torch.ones(1000)
        first, second = draws_module.dropout(x, 0.5, True), draws_module.dropout(x, 0.5, True)
    assert abs(float(first.mean()) - 1) < 0.1
    assert 0.4 < float((first == second).float().mean()) < 0.6
    keys = draws_module.Draws.of([3, 0, 0], [3, 1, 0], [3, 0, 1], [4, 0, 0])
    seeds = torch.stack([keys.at(step).seeds() for step in range(50)])
    assert len(seeds.unique()) == 200
