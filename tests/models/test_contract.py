"""What every registered model must do; registering a model buys these tests."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from typing import Any

import pytest
import torch
from torch import Tensor

from dasmil import create_model, list_models, load_model
from dasmil.errors import InputError
from dasmil.models import MODELS, MILModel
from dasmil.nn.draws import Draws, drawing
from dasmil.types import Output

pytestmark = pytest.mark.usefixtures("recomputed")
FEATURES = 12
ALL = pytest.mark.parametrize("name", list_models())
# TransMIL at 512 features takes seconds on one core; its equations do not depend on the size.
SMALL: dict[str, dict[str, Any]] = {
    "transmil": {"features": 32},
    "sa-alibi": {"step": 10.0, "out_features": 8},
    "slide-transformer": {"layers": 2, "heads": 2, "head_features": 8, "step": 10.0},
    "clam-sb": {"features": 16, "hidden": 8, "dropout": 0.0, "sampled": 4},
    "clam-mb": {"features": 16, "hidden": 8, "dropout": 0.0, "subtyping": True},
    "dsmil": {"hidden": 8},
    "dtfd-mil": {"features": 16, "hidden": 8},
    "ilra-mil": {"features": 16, "heads": 4, "rank": 2},
    "transformer-mil": {"features": 16, "heads": 4, "mlp": 8, "dropout": 0.0},
    "stamp-vit": {"features": 16, "heads": 4, "mlp": 8, "mlp_dropout": 0.0},
    "long-mil": {"features": 16, "heads": 4, "layers": 2, "dropout": 0.0, "step": 6.0},
    "psa-mil": {"heads": 2, "head_features": 8, "tile": 20.0},
    "sm-abmil": {"hidden": 8, "steps": 3, "radius": 60.0},
    "patch-gcn": {"features": 8, "layers": 3, "neighbours": 3, "dropout": 0.0},
    "camil": {"heads": 2, "head_features": 4, "landmarks": 4, "local_features": 8, "hidden": 8},
    "wikg": {"features": 16, "neighbours": 3, "dropout": 0.0},
    "rrt-mil": {"features": 16, "heads": 2, "cross_heads": 2, "regions": 2, "hidden": 8, "kernel": 3, "dropout": 0.0},
    "mean-mlp": {"hidden": 16, "pooling": "max-mean"},
    "feather": {"features": 16, "hidden": 8, "dropout": 0.0},
    "acmil": {"features": 16, "hidden": 8, "branches": 3, "masked": 3},
    "aem": {"features": 16, "hidden": 8},
    "nnmil": {"hidden": 5, "dropout": 0.0},
    "abmilx": {"features": 16, "heads": 4, "dropout": 0.0},
    "gabmil": {"features": 16, "hidden": 8, "mixing": "both", "tile": 20.0, "dropout": 0.0},
    "snuffy": {"heads": 2, "chosen": 3, "dropout": 0.0},
    "mamba-mil": {"features": 8, "rate": 3},
    "2dmamba-mil": {"features": 8, "tile": 20.0, "dropout": 0.0},
    "span": {"features": 8, "heads": 2, "tile": 6.0, "dropout": 0.0},
    "dgr-mil": {"features": 16, "vectors": 3, "dropout": 0.0},
}  # fmt: skip


def make(name: str, seed: int = 0, **options: Any) -> MILModel:
    torch.manual_seed(seed)
    options = {"in_features": FEATURES, "distance_scale": 100.0, **SMALL.get(name, {}), **options}
    return create_model(name, **options).double().eval()


def bag(n: int, seed: int = 1, *batch: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(*batch, n, FEATURES, generator=generator, dtype=torch.float64)
    return features, torch.rand(*batch, n, 2, generator=generator, dtype=torch.float64) * 120


def test_the_registry_has_every_model_of_the_paper() -> None:
    assert list_models() == [
        "max-pool", "mean-pool", "ab-mil", "gated-ab-mil", "mil-gnn", "mil-gnn-ds", "gat", "gcn", "set-transformer",
        "iset-transformer", "sa", "sa-axial", "sa-fourier", "disc-rel-sa", "transmil", "das-mil", "sa-alibi", "sa-rope",
        "slide-transformer", "clam-sb", "clam-mb", "dsmil", "dtfd-mil", "ilra-mil",
        "transformer-mil", "stamp-vit", "long-mil", "psa-mil", "sm-abmil", "patch-gcn", "camil", "wikg", "rrt-mil",
        "mean-mlp", "feather", "acmil", "aem", "nnmil", "abmilx", "gabmil", "snuffy", "mamba-mil",
        "2dmamba-mil", "span", "dgr-mil",
    ]  # fmt: skip
    assert all(cls.name == name for name, cls in MODELS.items())


@ALL
def test_what_a_run_draws_comes_from_its_key_and_not_from_torch(name: str) -> None:
    """So that a run does not depend on its company; dropout as the model has it by default."""
    sizes = {k: v for k, v in SMALL.get(name, {}).items() if "dropout" not in k}
    model = create_model(name, in_features=FEATURES, distance_scale=100.0, **sizes).double().train()
    given, before = bag(9), torch.get_rng_state()
    logits = []
    for key in (3, 3, 4):
        with drawing(Draws.of([key])):
            output = model(*given)
            loss = output.logit.sum()
            loss.backward()  # what is recomputed draws again
        logits.append(output.logit.detach())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(logits[0], logits[1])


@ALL
def test_what_is_kept_and_what_is_computed_again_have_the_same_gradients(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {k: v for k, v in SMALL.get(name, {}).items() if "dropout" not in k}
    torch.manual_seed(0)
    model = create_model(name, in_features=FEATURES, distance_scale=100.0, **sizes).double().train()
    found = []
    for small in (0, 1 << 16):
        monkeypatch.setattr("dasmil.nn.recompute.SMALL", small)
        model.zero_grad()
        with drawing(Draws.of([3])):
            output = model(*bag(9))
            output.logit.sum().backward()
        found.append([output.logit.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1]) > 1
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@ALL
def test_batched_and_padded_bags_give_the_same(name: str) -> None:
    model = make(name)
    bags = [bag(n, seed=n) for n in (5, 8, 1)]
    alone = [model(*b) for b in bags]
    features, coords = torch.full((3, 8, FEATURES), 7.0).double(), torch.full((3, 8, 2), -3.0).double()
    mask = torch.zeros(3, 8, dtype=torch.bool)
    for row, (f, c) in enumerate(bags):
        # Padding sits at the end of the second and third bag, and in front of the first.
        where = slice(8 - len(f), 8) if row == 0 else slice(0, len(f))
        features[row, where], coords[row, where], mask[row, where] = f, c, True
    together = model(features, coords, mask)
    torch.testing.assert_close(together.logit, torch.stack([o.logit for o in alone]))
    for field in ("aux_loss", "side_logits", "label_losses"):
        if getattr(alone[0], field) is not None:
            torch.testing.assert_close(getattr(together, field), torch.stack([getattr(o, field) for o in alone]))
    if together.instance_scores is not None:
        for row, o in enumerate(alone):
            assert o.instance_scores is not None
            torch.testing.assert_close(together.instance_scores[row][mask[row]], o.instance_scores)


@ALL
def test_two_batch_dimensions(name: str) -> None:
    model = make(name)
    features, coords = bag(4, 1, 2, 3)
    expected = torch.stack(
        [torch.stack([model(features[a, b], coords[a, b]).logit for b in range(3)]) for a in range(2)]
    )
    torch.testing.assert_close(model(features, coords).logit, expected)


@ALL
def test_padding_gets_no_gradient(name: str) -> None:
    model = make(name)
    features, coords = bag(6, 1, 2)
    features.requires_grad_()
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    model(features, coords, mask).logit.sum().backward()
    assert features.grad is not None
    assert features.grad[1, 4:].abs().max() == 0
    assert features.grad[1, :4].abs().max() > 0
    assert torch.isfinite(features.grad).all()


@ALL
def test_order_of_instances(name: str) -> None:
    model = make(name)
    features, coords = bag(9)
    order = torch.tensor([3, 8, 0, 5, 1, 7, 2, 6, 4])
    before, after = model(features, coords), model(features[order], coords[order])
    if model.permutation_invariant:
        torch.testing.assert_close(after.logit, before.logit)
        if before.instance_scores is not None:
            torch.testing.assert_close(after.instance_scores, before.instance_scores[order])
    else:
        assert (after.logit - before.logit).abs() > 1e-6


@ALL
def test_translation_and_position(name: str) -> None:
    """Relative models do not see a shift; those without position do not see the coordinates at all."""
    model = make(name)
    features, coords = bag(9)
    before = model(features, coords).logit
    shifted = (model(features, coords + torch.tensor([31.0, -17.0])).logit - before).abs()
    stretched = (model(features, coords * torch.tensor([2.5, 0.4])).logit - before).abs()
    if model.position == "relative":
        assert shifted < 1e-12
        assert stretched > 1e-4
    elif model.position == "none" or name in ("transmil", "rrt-mil"):  # whose position is the place in the bag
        assert max(shifted, stretched) == 0
    else:
        assert shifted > 1e-4


@ALL
def test_single_instance(name: str) -> None:
    model = make(name)
    features, coords = bag(1)
    features.requires_grad_()
    output = model(features, coords)
    assert output.logit.shape == ()
    assert torch.isfinite(output.logit)
    (gradient,) = torch.autograd.grad(output.logit, features)
    assert gradient.abs().max() > 0
    assert torch.isfinite(gradient).all()


@ALL
def test_gradients_reach_every_parameter(name: str) -> None:
    """Over several starts: in a single one a LeakyReLU may happen to be linear, which silences an attention vector."""
    reached: dict[str, float] = {}
    for seed, n in enumerate((70, 40, 3, 3, 3, 3)):  # 40 are enough for every interval of distance to occur
        model = make(name, seed, encoder="linear-relu", encoder_features=16)
        features, coords = bag(n, seed, 2)
        output = model(features * 3, coords)
        loss = output.logit.square().sum()
        for extra in (output.aux_loss, output.side_logits, output.label_losses):
            if extra is not None:
                loss = loss + extra.square().sum()
        loss.backward()
        for parameter_name, parameter in model.named_parameters():
            size = 0.0 if parameter.grad is None else parameter.grad.abs().max().item()
            reached[parameter_name] = max(size, reached.get(parameter_name, 0.0))
    for parameter_name, size in reached.items():
        if any(fnmatch(parameter_name, pattern) for pattern in MODELS[name].idle_parameters):
            assert size < 1e-12, f"{parameter_name} is declared idle but learns"
        else:
            assert size > 1e-12, f"no gradient reaches {parameter_name}"


@ALL
@pytest.mark.parametrize("encoder", ["identity", "linear-relu"])
def test_saving_and_loading(name: str, encoder: str, tmp_path: Any) -> None:
    model = make(name, encoder=encoder, unit="px")
    model.save(tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors")
    assert type(loaded) is type(model)
    assert loaded.config == model.config == json.loads(json.dumps(model.config))
    assert (loaded.unit, loaded.distance_scale) == ("px", 100.0)
    features, coords = bag(6)
    assert torch.equal(loaded(features, coords).logit, model(features, coords).logit)
    trainable = [(n, p.requires_grad) for n, p in model.named_parameters()]
    assert [(n, p.requires_grad) for n, p in loaded.named_parameters()] == trainable


@ALL
def test_more_than_two_classes(name: str) -> None:
    model = make(name, n_classes=4)
    features, coords = bag(7, 1, 3)
    output = model(features, coords)
    assert output.logit.shape == (3, 4)
    assert output.logit.std(dim=-1).min() > 0
    torch.testing.assert_close(output.logit[1], model(features[1], coords[1]).logit)
    if output.side_logits is not None:
        assert output.side_logits.shape == (3, output.side_logits.shape[1], 4)
    if output.label_losses is not None:
        assert output.label_losses.shape == (3, 4)
        assert output.label_losses.std(dim=-1).min() > 0


@pytest.mark.parametrize("name", [name for name, cls in MODELS.items() if cls.stackable])
@pytest.mark.parametrize("per_run", [(), (2,)], ids=["one bag a run", "two bags a run"])
@pytest.mark.parametrize("n", [7, 30])
@pytest.mark.parametrize("masked", [True, False])
def test_stacked_parameters_give_each_run_its_own_result(
    name: str, per_run: tuple[int, ...], n: int, masked: bool
) -> None:
    models = [make(name, seed=seed, encoder="linear-relu", encoder_features=10) for seed in range(3)]
    state = [dict(model.state_dict(keep_vars=True)) for model in models]
    stacked = {key: torch.stack([s[key] for s in state]).detach().requires_grad_() for key in state[0]}
    features, coords = bag(n, 2, 3, *per_run)
    mask = torch.ones(3, *per_run, n, dtype=torch.bool) if masked else None
    if mask is not None:
        mask[1, ..., 5:] = False
    together = torch.func.functional_call(models[0], stacked, (features, coords, mask))
    weight = torch.arange(1.0, together.logit.numel() + 1, dtype=torch.float64).view(together.logit.shape)

    def total(output: Output, weight: Tensor) -> Tensor:
        found = output.logit
        if output.aux_loss is not None:
            found = found + output.aux_loss
        for several in (output.side_logits, output.label_losses):
            if several is not None:
                found = found + several.square().sum(-1)
        return (found * weight).sum()

    found = torch.autograd.grad(total(together, weight), list(stacked.values()), allow_unused=True)
    gradients = dict(zip(stacked, found))
    for run, model in enumerate(models):
        alone = model(features[run], coords[run], None if mask is None else mask[run])
        torch.testing.assert_close(together.logit[run], alone.logit)
        model.zero_grad()
        total(alone, weight[run]).backward()
        for key, parameter in model.named_parameters():
            gradient = gradients[key]
            if parameter.grad is None:
                assert gradient is None, f"{key} is idle alone, but not when stacked"
            else:
                torch.testing.assert_close(gradient[run], parameter.grad, msg=f"{key} of run {run}")


@ALL
def test_overfits_eight_bags(name: str) -> None:
    """Eight bags with labels that nothing but memory explains."""
    model = make(name, seed=3, **({"hidden": 16} if "hidden" in MODELS[name].options() else {})).float()
    features, coords = bag(6, 9, 8)
    features, coords = features.float() * 2, coords.float()
    labels = torch.tensor([0.0, 1, 1, 0, 1, 0, 0, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loss = torch.tensor(torch.inf)
    for _ in range(300):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(features, coords).logit, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < 0.05:
            break
    assert loss < 0.1


@ALL
def test_wrong_shapes_are_named(name: str) -> None:
    model = make(name)
    features, coords = bag(5)
    with pytest.raises(InputError, match=r"features have shape \(5, 11\).*made for instances of shape \(12,\)"):
        model(features[:, :11], coords)
    with pytest.raises(InputError, match=r"coords have shape \(4, 2\), expected \(5, 2\)"):
        model(features, coords[:4])
    with pytest.raises(InputError, match=r"mask has shape \(4,\), expected \(5,\)"):
        model(features, coords, torch.ones(4, dtype=torch.bool))
    with pytest.raises(InputError, match="empty"):
        model(features[:0], coords[:0])
