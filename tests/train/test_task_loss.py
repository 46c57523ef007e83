"""Losses of tasks by hand, and Cox's one bag a step against the gradient of all bags at once."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit

from dasmil.tasks import ClassTarget, NumberTarget, Task, multilabel, regression, survival
from dasmil.tasks.cox import RiskSet
from dasmil.train import fit
from dasmil.train.feed import Facts, Feed
from dasmil.train.loss import Loss
from dasmil.types import Bag, Output

CPU = torch.device("cpu")


def loss_of(of: Facts, *, balance: bool = True) -> Loss:
    return Loss(of.task, of.targets, balance=balance)


def facts(task: Task, values: np.ndarray) -> Facts:
    bags = [
        Bag(np.ones((2, 2)), np.zeros((2, 2)), "um", f"b{i}", targets=dict(zip(task.columns, row, strict=True)))  # type: ignore
        for i, row in enumerate(values)
    ]
    found = Feed(bags, CPU, memory_gb=1.0, task=task).facts
    return replace(found, task=task.fitted(found.targets))


def steps(loss: Loss, of: Facts, said: torch.Tensor, side: torch.Tensor | None = None) -> torch.Tensor:
    """The loss of every bag, seen one after the other by one run, from outputs [bags, outputs]."""
    lesson = loss.lesson(of, lambda: said.detach().numpy()[None], CPU)
    found = []
    for i in range(len(said)):
        output = Output(said[i] if said.shape[1] > 1 else said[i, 0], side_logits=None if side is None else side[i])
        found.append(lesson(output, torch.tensor(i), 0))
    return torch.stack(found)


def efron(times: np.ndarray, events: np.ndarray, risk: torch.Tensor) -> torch.Tensor:
    """Minus the log partial likelihood per event, as Efron's paper writes it."""
    total = torch.zeros(())
    for t in np.unique(times[events == 1]):
        tied = np.flatnonzero((times == t) & (events == 1))
        everyone = risk[times >= t].exp().sum()
        for number in range(len(tied)):
            total = total + torch.log(everyone - number / len(tied) * risk[tied].exp().sum())
        total = total - risk[tied].sum()
    return total / int(events.sum())


def test_hazards_have_the_likelihood_of_censored_times() -> None:
    values = np.array([[2.0, 1], [4, 1], [6, 1], [8, 1], [3, 0], [1, 0], [9, 0]])
    of = facts(survival(bins=2), values)
    assert of.task is not None
    assert of.task.targets[0].edges == (5.0, 9.0)  # type: ignore[union-attr]
    said = torch.tensor([[0.3, -0.5]]).repeat(7, 1)
    first, second = expit([0.3, -0.5])
    expected = [
        -math.log(first),
        -math.log(first),
        -math.log(1 - first) - math.log(second),
        -math.log(1 - first) - math.log(second),
        -math.log(1 - first),  # censored in the second half of the first bin: survived it
        0.0,  # censored in its first half: says nothing
        -math.log(1 - first) - math.log(1 - second),
    ]
    np.testing.assert_allclose(steps(loss_of(of), of, said).numpy(), expected, rtol=1e-5)


def test_a_constant_guess_of_hazards_is_the_best_one() -> None:
    rng = np.random.default_rng(1)
    values = np.stack([rng.exponential(5, 40), rng.integers(0, 2, 40)], axis=1).astype(float)
    of = facts(survival(bins=3), values)
    loss = loss_of(of)
    best = loss.parts[0].start  # type: ignore[union-attr]
    guesses = torch.stack([best, best + torch.tensor([0.1, 0, 0]), best - 0.1])
    found = [loss.of_set(np.tile(guess.numpy(), (1, 40, 1)), of)[0] for guess in guesses]
    assert found[0] == pytest.approx(loss.constant_guess)
    assert found[0] < min(found[1:])


@pytest.mark.parametrize("ties", [False, True])
def test_cox_one_bag_a_step_has_the_gradient_of_all_bags_at_once(ties: bool) -> None:
    rng = np.random.default_rng(0)
    n = 12
    times = rng.integers(1, 5, n).astype(float) if ties else rng.permutation(n).astype(float)
    events = rng.integers(0, 2, n).astype(float)
    events[:2] = 1
    features = torch.from_numpy(rng.normal(size=(n, 3)))
    weights = torch.from_numpy(rng.normal(size=3)).requires_grad_()
    whole = torch.autograd.grad(efron(times, events, features @ weights), weights)[0]
    of = facts(survival(method="cox"), np.stack([times, events], axis=1))
    risk = features @ weights
    losses = steps(loss_of(of), of, risk[:, None])
    one_by_one = torch.autograd.grad(losses.mean(), weights)[0]
    torch.testing.assert_close(one_by_one, whole, rtol=1e-4, atol=1e-6)
    equal = float(efron(times, events, torch.zeros(n)))
    expected = 1 + float(efron(times, events, risk.detach())) - equal
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-5)


def test_risks_of_other_bags_are_the_last_that_were_said() -> None:
    values = torch.tensor([[1.0, 1], [2.0, 1], [3.0, 0]])
    kept = RiskSet(values, torch.zeros(2, 3))
    bags = torch.tensor([0, 2])
    kept.note(torch.tensor([1.5, -0.5]), bags, None)
    torch.testing.assert_close(kept.risks, torch.tensor([[1.5, 0, 0], [0, 0, -0.5]]))
    together = kept.loss(torch.tensor([0.2, 0.3]), bags, None)
    alone = torch.stack([kept.loss(torch.tensor(v), b, run) for run, (v, b) in enumerate(zip((0.2, 0.3), bags))])
    torch.testing.assert_close(together, alone)


def test_numbers_are_compared_in_standard_deviations() -> None:
    values = np.array([[0.0], [2.0], [4.0], [6.0]])
    sd = values.std()
    squared, huber = (facts(regression("x", loss=kind), values) for kind in ("squared", "huber"))
    said = torch.zeros(4, 1, dtype=torch.float64)
    z = (values[:, 0] - 3) / sd
    np.testing.assert_allclose(steps(loss_of(squared), squared, said).numpy(), z**2, rtol=1e-6)
    expected = np.where(np.abs(z) < 1, z**2, 2 * np.abs(z) - 1)
    np.testing.assert_allclose(steps(loss_of(huber), huber, said).numpy(), expected, rtol=1e-6)
    assert loss_of(squared).constant_guess == pytest.approx(1.0)


def test_several_targets_count_alike_and_a_missing_one_has_no_gradient() -> None:
    task = multilabel([ClassTarget("er", ("neg", "pos")), NumberTarget("k", loss="squared")])
    values = np.array([[0.0, 1.0], [1.0, 3.0], [np.nan, 5.0], [1.0, np.nan]])
    of = facts(task, values)
    loss = loss_of(of, balance=False)
    said = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    losses = steps(loss, of, said)
    sd = values[:3, 1].std()
    squares = ((values[:, 1] - 3) / sd) ** 2
    half = math.log(2)
    expected = [(half + squares[0]) / 2, (half + squares[1]) / 2, squares[2] / 2, half / 2]
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-6)
    gradient = torch.autograd.grad(losses.sum(), said)[0]
    assert gradient[2, 0] == 0
    assert gradient[3, 1] == 0
    assert gradient[0, 0] != 0


def test_side_logits_have_a_loss_of_their_own() -> None:
    values = np.array([[0.0], [2.0], [4.0]])
    of = facts(regression("x", loss="squared"), values)
    said, side = torch.zeros(3, 1), torch.ones(3, 2)
    z = (values[:, 0] - 2) / values.std()
    found = steps(loss_of(of), of, said, side)
    np.testing.assert_allclose(found.numpy(), z**2 + 2 * (1 - z) ** 2, rtol=1e-5)


def test_blind_guesses_reach_a_concordance_as_often_as_is_said() -> None:
    rng = np.random.default_rng(3)
    of = facts(regression("x"), rng.normal(size=(30, 1)))
    loss = loss_of(of)
    guesses = [loss.metric(of, rng.normal(size=(30, 1)), "concordance") for _ in range(400)]
    level = float(np.quantile(guesses, 0.9))
    assert loss.chance(of, level, 1) == pytest.approx(0.1, abs=0.05)
    assert loss.chance(of, 0.5, 3) == 1.0


def test_hazards_begin_at_those_of_all_training_bags() -> None:
    rng = np.random.default_rng(2)
    values = np.stack([rng.exponential(5, 12), rng.integers(0, 2, 12)], axis=1).astype(float)
    values[:3, 1] = 1
    of = facts(survival(bins=2), values)
    bags = [
        Bag(rng.normal(size=(3, 2)), np.zeros((3, 2)), "um", f"b{i}", targets={"time": t, "event": e})  # type: ignore
        for i, (t, e) in enumerate(values)
    ]
    run = fit("mean-pool", bags, task=survival(bins=2), epochs=1, lr=1e-9, simple_starts=0, progress=False)[0]
    bias = run.model.classifier.bias  # type: ignore[union-attr]
    np.testing.assert_allclose(bias.detach().numpy(), loss_of(of).constant, atol=1e-5)  # type: ignore
