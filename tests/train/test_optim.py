"""Optimisers on the flat tensor against torch.optim, in float64, run by run."""

from functools import partial

import pytest
import torch

from dasmil.train.optim import Adam, clip_gradient, create_optimizer
from dasmil.train.schedule import factor

LR = [3e-2, 1e-3, 1e-2]
DECAY = [0.1, 0.0, 0.01]


def gradients(steps, shape):
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(steps)]


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("adamw", torch.optim.AdamW),
        ("adam", torch.optim.Adam),
        ("radam", partial(torch.optim.RAdam, decoupled_weight_decay=True)),
    ],
)
def test_equals_torch_optim_for_every_run(name, theirs):
    start = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    flat = start.clone()
    ours = create_optimizer(name, flat, torch.tensor(DECAY, dtype=torch.float64)[:, None])
    lr = torch.tensor(LR, dtype=torch.float64)[:, None]
    singles = [torch.nn.Parameter(start[r].clone()) for r in range(3)]
    others = [theirs([p], lr=LR[r], weight_decay=DECAY[r]) for r, p in enumerate(singles)]
    for gradient in gradients(30, (3, 7)):
        ours.step(gradient.clone(), lr)
        for r, (p, optimizer) in enumerate(zip(singles, others, strict=True)):
            p.grad = gradient[r].clone()
            optimizer.step()
    torch.testing.assert_close(flat, torch.stack([p.detach() for p in singles]), rtol=1e-12, atol=1e-12)
    assert not torch.equal(flat, start)


def test_parameters_with_their_own_step_equal_parameter_groups():
    start = torch.randn(1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    flat = start.clone()
    lr = torch.tensor([[1e-2] * 4 + [5e-2] * 2], dtype=torch.float64)
    decay = torch.tensor([[0.1] * 4 + [0.0] * 2], dtype=torch.float64)
    ours = create_optimizer("adamw", flat, decay)
    a, b = torch.nn.Parameter(start[0, :4].clone()), torch.nn.Parameter(start[0, 4:].clone())
    theirs = torch.optim.AdamW(
        [{"params": [a], "lr": 1e-2, "weight_decay": 0.1}, {"params": [b], "lr": 5e-2, "weight_decay": 0.0}]
    )
    for gradient in gradients(12, (1, 6)):
        ours.step(gradient.clone(), lr)
        a.grad, b.grad = gradient[0, :4].clone(), gradient[0, 4:].clone()
        theirs.step()
    torch.testing.assert_close(flat[0], torch.cat([a, b]).detach(), rtol=1e-12, atol=1e-12)


def test_lookahead_is_k_steps_forward_one_step_back():
    start = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    flat, fast = start.clone(), start.clone()
    decay, lr = torch.zeros(2, 1, dtype=torch.float64), torch.full((2, 1), 1e-2, dtype=torch.float64)
    ours = create_optimizer("radam", flat, decay, lookahead=6, lookahead_alpha=0.5)
    inner, slow = Adam("radam", fast, decay), start.clone()
    for number, gradient in enumerate(gradients(20, (2, 5)), start=1):
        ours.step(gradient.clone(), lr)
        inner.step(gradient.clone(), lr)
        if number % 6 == 0:
            slow = slow + 0.5 * (fast - slow)
            fast.copy_(slow)
    torch.testing.assert_close(flat, fast, rtol=1e-12, atol=1e-12)


def test_lookahead_equals_pytorch_optimizer():
    package = pytest.importorskip("pytorch_optimizer", reason="the package pytorch_optimizer is not installed")
    start = torch.randn(1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    flat, p = start.clone(), torch.nn.Parameter(start[0].clone())
    zero, lr = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 1e-2, dtype=torch.float64)
    ours = create_optimizer("radam", flat, zero, lookahead=6, lookahead_alpha=0.5)
    theirs = package.Lookahead(torch.optim.RAdam([p], lr=1e-2), k=6, alpha=0.5)
    for gradient in gradients(20, (1, 5)):
        ours.step(gradient.clone(), lr)
        p.grad = gradient[0].clone()
        theirs.step()
    torch.testing.assert_close(flat[0], p.detach(), rtol=1e-10, atol=1e-12)


def test_state_continues_where_it_was():
    start = torch.randn(2, 5, generator=torch.Generator().manual_seed(3))
    decay, lr = torch.full((2, 1), 0.1), torch.full((2, 1), 1e-2)
    steps = [g.float() for g in gradients(13, (2, 5))]
    whole = start.clone()
    optimizer = create_optimizer("adamw", whole, decay, lookahead=3)
    for g in steps:
        optimizer.step(g.clone(), lr)
    first = start.clone()
    before = create_optimizer("adamw", first, decay, lookahead=3)
    for g in steps[:7]:
        before.step(g.clone(), lr)
    second = first.clone()
    after = create_optimizer("adamw", second, decay, lookahead=3)
    after.load({k: v.clone() for k, v in before.state().items()})
    for g in steps[7:]:
        after.step(g.clone(), lr)
    assert torch.equal(second, whole)


def test_clipping_is_per_run():
    gradient = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    clip_gradient(gradient, 1.0)
    torch.testing.assert_close(gradient, torch.tensor([[0.6, 0.8], [0.3, 0.4]]), rtol=1e-5, atol=1e-6)


def test_schedules():
    assert [factor("constant", s, 12) for s in (0, 11)] == [1.0, 1.0]
    assert [factor("linear", s, 10) for s in (0, 5)] == [1.0, 0.5]
    assert factor("cosine", 5, 10) == pytest.approx(0.5)
    assert [factor("hold-linear", s, 12) for s in (0, 8, 10, 11)] == pytest.approx([1.0, 1.0, 0.5, 0.25])
    assert [factor("constant", s, 10, warmup=4) for s in (0, 1, 3, 4)] == [0.25, 0.5, 1.0, 1.0]
    assert factor("linear", 4, 10, warmup=4) == 1.0
