"""Stacked runs compute what each run computes alone: outputs, losses and gradients."""

import numpy as np
import pytest
import torch
from label_loss import LabelLoss
from toy import toy_bags

from dasmil.errors import DataError
from dasmil.models import create_model
from dasmil.train.replicas import Replicas
from dasmil.types import Output

CPU = torch.device("cpu")


def models(name="das-mil", count=3, **options):
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        made.append(create_model(name, in_features=4, distance_scale=50.0, **options).double().eval())
    return made


@pytest.mark.parametrize(
    ("name", "options"),
    [("das-mil", {}), ("das-mil", {"train_embeddings": False}), ("das-mil", {"heads": 2}), ("sa", {}), ("ab-mil", {})],
)
def test_stacked_equals_alone(name, options):
    own = models(name, **options)
    bags = toy_bags(3, sizes=(6,))
    features = torch.stack([b.features for b in bags]).double()
    coords = torch.stack([b.coords for b in bags]).double()
    replicas = Replicas(models(name, **options), CPU)
    replicas.model.eval()
    together = replicas.forward_all(features, coords, None)
    gradients = replicas.gradient_all(together.logit.square())
    for run, model in enumerate(own):
        alone = model(features[run], coords[run]).logit
        parameters = [p for p in model.parameters() if p.requires_grad]
        expected = torch.cat(
            [
                torch.zeros_like(p).reshape(-1) if g is None else g.reshape(-1)
                for p, g in zip(parameters, torch.autograd.grad(alone.square(), parameters, allow_unused=True))
            ]
        )
        torch.testing.assert_close(together.logit[run], alone, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(gradients[run], expected, rtol=1e-9, atol=1e-12)
        single = replicas.forward_one(run, features[run], coords[run], None)
        torch.testing.assert_close(single.logit, alone, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(replicas.gradient_one(run, single.logit.square()), expected, rtol=1e-9, atol=1e-12)


def test_the_model_keeps_its_own_parameters_after_a_call():
    replicas = Replicas(models(), CPU)
    before = {k: v.clone() for k, v in replicas.model.state_dict().items()}
    bag = toy_bags(1)[0]
    replicas.forward_one(2, bag.features.double(), bag.coords.double(), None)
    after = replicas.model.state_dict()
    assert all(isinstance(p, torch.nn.Parameter) for p in replicas.model.parameters())
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_export_gives_each_run_its_row():
    replicas = Replicas(models(), CPU)
    with torch.no_grad():
        replicas.flat += torch.arange(3.0)[:, None]
    fresh = models()
    for run in range(3):
        exported = dict(replicas.export(run).named_parameters())
        for name, p in fresh[run].named_parameters():
            torch.testing.assert_close(exported[name].detach(), p.detach() + run)


def test_a_checkpoint_of_another_size_is_refused():
    replicas = Replicas(models(), CPU)
    with pytest.raises(DataError, match="3 runs of 7 parameters, expected 3 of"):
        replicas.load(torch.zeros(3, 7))


def test_two_class_loss_has_the_positive_weight_of_the_paper():
    labels = np.array([0, 0, 0, 1])
    loss = LabelLoss(labels)
    assert loss.weights.tolist() == [1.0, 3.0]
    logit = torch.tensor([0.3, -0.7])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        logit, torch.tensor([0.0, 1.0]), pos_weight=torch.tensor(3.0), reduction="none"
    )
    assert torch.equal(loss(Output(logit), torch.tensor([0, 1])), expected)
    aux = loss(Output(logit, aux_loss=torch.tensor([1.0, 2.0])), torch.tensor([0, 1]))
    torch.testing.assert_close(aux, expected + torch.tensor([1.0, 2.0]))
    side = torch.tensor([[0.1, 0.2], [0.4, -0.5]])
    deep = loss(Output(logit, side_logits=side), torch.tensor([0, 1]))
    sides = [loss(Output(side[:, k]), torch.tensor([0, 1])) for k in range(2)]
    torch.testing.assert_close(deep, expected + sides[0] + sides[1])
    guesses = [loss(Output(torch.full((4,), z)), torch.from_numpy(labels)).mean() for z in np.linspace(-3, 3, 601)]
    assert loss.loss.constant_guess == pytest.approx(float(min(guesses)), abs=1e-6)


def test_multi_class_loss_weighs_classes_inversely():
    labels = np.array([0, 0, 0, 1, 1, 2])
    loss = LabelLoss(labels)
    assert loss.weights.tolist() == pytest.approx([6 / 9, 1.0, 2.0])
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    found = loss(Output(logits), torch.from_numpy(labels)).mean()
    log_p = logits.log_softmax(1)[torch.arange(6), torch.from_numpy(labels)]
    assert found == pytest.approx(float(-(log_p * loss.weights[labels]).mean()))
    assert loss(Output(logits[2]), torch.tensor(0)) == pytest.approx(float(-log_p[2] * 6 / 9))
    assert loss.loss.constant_guess == pytest.approx(np.log(3))


@pytest.mark.parametrize(("labels", "missing"), [([0, 0], "no positive bag"), ([1, 1], "no negative bag")])
def test_one_class_alone_cannot_be_learned(labels, missing):
    with pytest.raises(DataError, match=missing):
        LabelLoss(labels)
