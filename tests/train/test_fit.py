"""dasmil.fit on a toy problem: what it learns, keeps, chooses and refuses."""

import json

import numpy as np
import pytest
import torch
from toy import toy_bags

import dasmil
from dasmil.errors import DasmilError, InputError
from dasmil.nn.neighbours import pairs_within
from dasmil.stats import score
from dasmil.train import RunSpec
from dasmil.train.augment import jitter_digits
from dasmil.train.defaults import default_options, default_settings
from dasmil.train.distances import Lengths, start_of, with_scale, with_start
from dasmil.train.feed import Feed
from dasmil.train.job import Given, prepare
from dasmil.train.replicas import Replicas
from dasmil.types import Bag

FAST = {"epochs": 2, "model_options": {"hidden": 4}, "restarts": 0}


def flat(run):
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


def test_das_mil_learns_distance_where_attention_alone_cannot():
    train, test = toy_bags(80), toy_bags(60, seed=1, prefix="new")
    labels = [b.label for b in test]
    settings = {"epochs": 15, "lr": 1e-2, "seeds": 2, "restarts": 0}
    das = dasmil.fit("das-mil", train, **settings)
    plain = dasmil.fit("sa", train, **settings)
    assert min(score(labels, run.predict(test))["auroc"] for run in das) > 0.95
    assert max(score(labels, run.predict(test))["auroc"] for run in plain) < 0.75
    assert all(run.fitted for run in das)
    assert not any(run.fitted for run in plain)
    assert "training loss" in plain[0].reason
    midpoints = [run.model.learned_distances()[0]["midpoint"] for run in das]
    assert all(6 < m < 60 for m in midpoints)  # between the planted distances, in micrometres


def test_the_same_seed_gives_the_same_weights_and_leaves_global_randomness_alone():
    bags = toy_bags(12)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = dasmil.fit("das-mil", bags, seeds=2, **FAST)
    assert torch.equal(torch.rand(3), expected)
    second = dasmil.fit("das-mil", bags, seeds=2, **FAST)
    assert torch.equal(flat(first[1]), flat(second[1]))
    assert not torch.equal(flat(first[0]), flat(first[1]))


def test_runs_may_differ_in_learning_rate_and_weight_decay():
    bags = toy_bags(12)
    specs = [RunSpec(3, 1e-2, 0.0), RunSpec(3, 1e-4, 0.5)]
    runs = dasmil.fit("sa", bags, runs=specs, **{**FAST, "model_options": {"dropout": 0.0}})
    alone = dasmil.fit("sa", bags, runs=specs[:1], **{**FAST, "model_options": {"dropout": 0.0}})
    torch.testing.assert_close(flat(runs[0]), flat(alone[0]), rtol=1e-4, atol=1e-5)
    assert (flat(runs[0]) - flat(runs[1])).abs().max() > 1e-3


def test_stacked_and_one_by_one_are_the_same_training():
    bags = toy_bags(12)
    options = {**FAST, "model_options": {"dropout": 0.0}, "seeds": 3, "starts": 1}
    notes = []
    stacked = dasmil.fit("das-mil", bags, **options, note=notes.append)
    assert notes == []
    single = dasmil.fit("das-mil", bags, **options, stacked_instances=1, note=notes.append)
    assert len(notes) == 1
    assert "one after the other (21 instances" in notes[0]
    for a, b in zip(stacked, single, strict=True):
        torch.testing.assert_close(flat(a), flat(b), rtol=1e-4, atol=1e-5)


def test_accumulation_is_the_mean_gradient_of_several_bags():
    bags = toy_bags(8)
    options = {"epochs": 1, "weight_decay": 0.0, "optimizer": "adamw", "schedule": "constant", "clip": None}
    run = dasmil.fit("max-pool", bags, accumulate=8, **options)[0]
    start = _initial("max-pool", bags)
    parameters = list(start.parameters())
    losses = []
    for bag in bags:
        logit = start(bag.features, bag.coords).logit
        losses.append(torch.nn.functional.binary_cross_entropy_with_logits(logit, torch.tensor(float(bag.label))))
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0)
    torch.stack(losses).mean().backward()
    optimizer.step()
    expected = torch.cat([p.detach().reshape(-1) for p in parameters])
    torch.testing.assert_close(flat(run), expected, rtol=1e-4, atol=1e-6)


def _initial(name, bags, **options):
    """The untrained model of seed 0: a run with a learning rate too small to move it."""
    return dasmil.fit(name, bags, epochs=1, lr=1e-30, weight_decay=0.0, restarts=0, model_options=options)[
        0
    ].model.train()


def test_best_validation_epoch_is_kept_and_training_stops_early():
    train, val = toy_bags(20), toy_bags(20, seed=9, prefix="val")
    seen = []
    runs = dasmil.fit(
        "das-mil", train, val, seeds=2, epochs=12, lr=2e-2, selection="best-val", early_stopping=3, restarts=0,
        on_epoch=seen.append,
    )  # fmt: skip
    for run in runs:
        losses = [row["val_loss"] for row in run.history]
        stop = next((i + 1 for i in range(len(losses)) if i - int(np.argmin(losses[: i + 1])) >= 3), len(losses))
        assert run.epoch == int(np.argmin(losses[:stop])) + 1
        p = run.predict(val)
        y = np.array([b.label for b in val])
        weights = np.where(y == 1, (y == 0).sum() / (y == 1).sum(), 1.0)
        loss = -(weights * np.log(np.where(y == 1, p, 1 - p))).mean()
        assert loss == pytest.approx(losses[run.epoch - 1], abs=1e-4)
    assert len(seen) < 12 or max(run.epoch for run in runs) > 8


def test_a_run_that_fitted_is_not_started_again_because_validation_kept_an_early_epoch():
    generator = torch.Generator().manual_seed(0)
    noise = [
        Bag(torch.randn(len(b), 4, generator=generator), b.coords, "um", b.bag_id, label=b.label)
        for b in (*toy_bags(8), *toy_bags(8, seed=1, prefix="val"))
    ]
    settings = {"epochs": 60, "lr": 2e-2, "starts": 1, "restarts": 1, "enough": 0.0, "schedule": "constant"}
    run = dasmil.fit("das-mil", noise[:8], noise[8:], selection="best-val", **settings)[0]
    assert run.history[-1]["train_loss"] < 0.1  # learned by heart at the end
    assert run.epoch < 60
    assert run.train_loss > 0.25 * np.log(2)  # the kept epoch alone would count as stuck
    assert run.fitted
    assert len(run.attempts) == 1


def test_best_val_needs_every_class_to_compare_auroc():
    train, val = toy_bags(8), [b for b in toy_bags(8, seed=9, prefix="val") if b.label == 1]
    for monitor in ("auroc", "balanced_accuracy"):
        with pytest.raises(
            InputError, match=f"none of class 0, so selection 'best-val' cannot compare their {monitor}"
        ):
            dasmil.fit("mean-pool", train, val, epochs=1, selection="best-val", monitor=monitor)
    run = dasmil.fit("mean-pool", train, val, epochs=3, selection="best-val")[0]  # the loss needs no second class
    assert run.epoch == int(np.argmin([row["val_loss"] for row in run.history])) + 1


def test_without_a_finite_validation_score_the_last_epoch_is_kept(monkeypatch):
    train, val = toy_bags(8), toy_bags(8, seed=9, prefix="val")
    last = dasmil.fit("mean-pool", train, val, epochs=3)[0]
    monkeypatch.setattr("dasmil.train.epochs.Attempt._note_best", lambda *_: None)
    kept = dasmil.fit("mean-pool", train, val, epochs=3, selection="best-val")[0]
    assert kept.epoch == 3
    assert torch.equal(flat(kept), flat(last))


def test_stuck_runs_start_again_from_another_length_and_the_best_training_loss_wins():
    runs = dasmil.fit("das-mil", toy_bags(12), epochs=1, lr=1e-6, restarts=2, starts=1)
    attempts = runs[0].attempts
    assert sorted(a.attempt for a in attempts) == [0, 1, 2]
    assert attempts[0].train_loss == min(a.train_loss for a in attempts)
    assert runs[0].train_loss == attempts[0].train_loss
    assert len({a.options["theta_init"] for a in attempts}) == 3
    assert not runs[0].fitted
    no_distance = dasmil.fit("sa", toy_bags(12), epochs=1, lr=1e-6, restarts=2)
    assert len(no_distance[0].attempts) == 1


def test_the_start_with_the_lowest_training_loss_goes_on_alone():
    seen = []
    runs = dasmil.fit(
        "das-mil", toy_bags(12), seeds=2, epochs=4, lr=1e-3, starts=3, starts_share=0.5, starts_until=1e-9, restarts=0,
        model_options={"encoder": "linear-relu"},
        on_epoch=lambda p: seen.append((p.starts, list(p.rows))),
    )  # fmt: skip
    assert [starts for starts, _ in seen] == [3, 1, 1, 1]  # two of four epochs, chosen at the end of the second
    assert [len(rows) for _, rows in seen] == [6, 2, 2, 2]
    for run in runs:
        chosen, rivals = run.attempts[0], run.attempts[0].rivals
        assert {chosen.start, *(r["start"] for r in rivals)} == {0, 1, 2}
        start = {chosen.start: (chosen.options["theta_init"], run.history[0]["lr"])}
        start |= {r["start"]: (r["theta_init"], r["lr"]) for r in rivals}
        assert start[0][0] == start[1][0] != start[2][0]  # two starts of one length, with two learning rates
        assert [start[k][1] for k in range(3)] == pytest.approx([1e-3, 2e-3, 1e-3])
        assert run.lr == pytest.approx(start[chosen.start][1])
        assert all(run.history[1]["train_loss"] <= r["train_loss"] and r["epoch"] == 2 for r in rivals)
        assert len(run.history) == 4
    early = dasmil.fit(
        "das-mil", toy_bags(12), epochs=3, starts=3, simple_starts=0, starts_until=100.0, starts_share=1.0, restarts=0
    )
    assert early[0].attempts[0].rivals[0]["epoch"] == 1
    given = dasmil.fit("das-mil", toy_bags(12), epochs=1, starts=3, restarts=0, model_options={"theta_init": 0.4})
    assert given[0].attempts[0].rivals == []  # a length that the user gave is not searched for


def test_starts_compete_on_parts_of_large_bags_and_the_chosen_one_sees_all(monkeypatch):
    seen = []
    call = Replicas.forward_all, Replicas.forward_one
    monkeypatch.setattr(Replicas, "forward_all", lambda s, x, *a: seen.append(x.shape[:2]) or call[0](s, x, *a))
    monkeypatch.setattr(
        Replicas, "forward_one", lambda s, r, x, *a: seen.append((1, x.shape[-2])) or call[1](s, r, x, *a)
    )
    bags = toy_bags(4, sizes=(20,))
    run = dasmil.fit(
        "das-mil", bags, epochs=2, starts=3, starts_share=0.5, starts_until=1e-9, starts_instances=8, restarts=0
    )[0]
    assert seen[:4] == [(3, 8)] * 4  # three starts at once, eight of twenty instances
    assert set(seen[4:]) == {(1, 20)}
    again = dasmil.fit(
        "das-mil", bags, epochs=2, starts=3, starts_share=0.5, starts_until=1e-9, starts_instances=8, restarts=0
    )[0]
    assert torch.equal(flat(run), flat(again))


def test_a_chosen_start_trains_as_it_would_alone():
    options = {"epochs": 4, "restarts": 0, "simple_starts": 0, "model_options": {"dropout": 0.0}}
    bags = toy_bags(12, sizes=(6,))
    for seed in range(8):  # until a run prefers its first start, which is the one it has without a choice
        run = dasmil.fit("das-mil", bags, seeds=[seed], starts=2, starts_share=0.5, starts_until=1e-9, **options)[0]
        if run.attempts[0].start == 0:
            break
    assert run.attempts[0].start == 0
    alone = dasmil.fit("das-mil", bags, seeds=[seed], starts=1, **options)[0]
    torch.testing.assert_close(flat(run), flat(alone), rtol=1e-3, atol=1e-4)


def test_bags_of_feature_vectors_get_their_own_defaults_and_pictures_the_papers():
    assert default_settings("das-mil", (1, 28, 28), 300, {}) == {}
    found = default_settings("das-mil", (768,), 120, {"lr": 0.1})
    assert found["epochs"] == 67  # 2,000 steps of four bags
    assert "lr" not in found
    assert default_settings("das-mil", (768,), 5000, {})["epochs"] == 20
    assert default_settings("das-mil", (768,), 8, {})["epochs"] == 200
    assert default_settings("das-mil", (768,), 120, {"accumulate": 1})["epochs"] == 20
    assert "lr" not in default_settings("sa", (768,), 120, {})
    assert default_options("das-mil", (768,), "camelyon16", {}) == {}
    assert default_options("das-mil", (768,), None, {"encoder": "identity"}) == {"encoder": "identity"}
    assert default_options("das-mil", (768,), None, {"heads": 3})["out_features"] == 18
    assert "out_features" not in default_options("ab-mil", (768,), None, {})


@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
def test_the_layer_that_reads_features_starts_alike_whatever_their_scale(scale):
    bags = [
        Bag(scale * torch.randn(30, 64, generator=torch.Generator().manual_seed(i)), b.coords[:1].repeat(30, 1), "um",
            b.bag_id, label=b.label)
        for i, b in enumerate(toy_bags(8))
    ]  # fmt: skip
    model = _initial("max-pool", bags, encoder="linear-relu", encoder_features=32)
    outputs = torch.cat([bag.features @ model.encoder.linear.weight.detach().T for bag in bags])
    assert float(outputs.var()) == pytest.approx(1.0, rel=0.15)


def test_a_run_that_diverges_is_reported_and_does_not_spoil_the_others(tmp_path):
    bags = toy_bags(8)
    runs = dasmil.fit("sa", bags, runs=[RunSpec(0, 1e-3, 0.0), RunSpec(1, 1e30, 0.0)], epochs=2)
    assert np.isfinite(runs[0].train_loss)
    assert not runs[1].fitted
    assert "diverged" in runs[1].reason
    assert np.isfinite(runs[1].predict(bags)).all()
    dasmil.fit("sa", bags, lr=1000.0, epochs=2, out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stuck_seeds"] == [0]


def test_test_labels_cannot_change_the_weights(tmp_path):
    train, test = toy_bags(12), toy_bags(10, seed=2, prefix="test")
    flipped = [Bag(b.features, b.coords, b.unit, b.bag_id, label=1 - b.label) for b in test]
    one = dasmil.fit("das-mil", train, tests={"test": test}, out=tmp_path / "a", **FAST)[0]
    two = dasmil.fit("das-mil", train, tests={"test": flipped}, out=tmp_path / "b", **FAST)[0]
    assert torch.equal(flat(one), flat(two))


def test_multi_class_labels():
    bags = [Bag(b.features, b.coords, b.unit, b.bag_id, label=i % 3) for i, b in enumerate(toy_bags(30))]
    marked = [Bag(b.features + torch.eye(4)[b.label], b.coords, b.unit, b.bag_id, label=b.label) for b in bags]
    run = dasmil.fit("mean-pool", marked, epochs=25, lr=5e-2, restarts=0)[0]
    p = run.predict(marked)
    assert p.shape == (30, 3)
    np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-6)
    assert score([b.label for b in marked], p)["balanced_accuracy"] > 0.9


def test_distances_start_at_quantiles_of_the_training_distances():
    lengths = Lengths(np.linspace(0, 100, 100_001), bag_size=100.0)
    assert lengths.at(0.0) == pytest.approx(3.0)  # level 3 / bag size
    assert lengths.at(1.0) == pytest.approx(90.0)
    assert lengths.at(0.5) == pytest.approx(100 * (0.03 * 0.9) ** 0.5)
    assert [start_of(k) for k in range(5)] == [0.5, 0.25, 0.75, 0.125, 0.625]
    one = with_start("das-mil", {"distance_scale": 50.0}, lengths, 0)
    assert one["theta_init"] == pytest.approx(lengths.at(0.5) / 50)
    assert one["theta_init"] * one["beta_init"] == pytest.approx(5.0)
    two = with_start("das-mil", {"distance_scale": 50.0, "heads": 2}, lengths, 0)
    assert two["theta_init"] == pytest.approx([lengths.at(0.25) / 50, lengths.at(0.75) / 50])
    given = {"distance_scale": 50.0, "theta_init": 0.3, "beta_init": 7.0}
    assert with_start("das-mil", given, lengths, 1) == given


def test_distance_scale_comes_from_the_bags_unless_given():
    feed = Feed(toy_bags(30), torch.device("cpu"), memory_gb=1.0)

    def scaled(name, options=None, **settings):
        return with_scale(prepare(name, feed.facts.outline, Given(options=options or {}, settings=settings)), feed)

    options, lengths = scaled("das-mil")
    assert options["distance_scale"] == pytest.approx(2 * lengths.at(0.5))
    assert with_start("das-mil", options, lengths, 0)["theta_init"] == pytest.approx(0.5)
    paper, none = scaled("das-mil", distance_init="model")
    assert paper["distance_scale"] > 90  # the whole field
    assert none is None
    given, _ = scaled("das-mil", {"distance_scale": 7.0})
    assert given["distance_scale"] == 7.0
    pooled, none = scaled("max-pool")
    assert "distance_scale" not in pooled
    assert none is None


def test_models_that_count_in_tiles_get_the_size_of_a_tile():
    """The whole slide as one tile would leave them blind to where instances lie."""
    steps = torch.arange(12.0)
    grid = 256 * torch.cartesian_prod(steps, steps) + 128
    bags = [Bag(torch.randn(144, 4), grid, "um", f"b{i}", label=i % 2) for i in range(4)]
    for name, expected in (("psa-mil", 256.0), ("long-mil", 256.0), ("sm-abmil", 256 * 2**0.5)):
        run = dasmil.fit(name, bags, epochs=1)[0]
        assert run.model.distance_scale == pytest.approx(expected, rel=2e-5), name
    pairs = pairs_within(grid, run.model.aggregator.radius)
    inner = ((grid > 256) & (grid < 2816)).all(-1)
    assert (torch.bincount(pairs[0])[inner] == 8).all()
    given = dasmil.fit("sm-abmil", bags, epochs=1, model_options={"distance_scale": 700.0})[0].model
    assert given.distance_scale == 700.0


def test_a_given_length_stays_where_no_instances_lie_apart():
    here = [Bag(b.features, torch.zeros_like(b.coords), b.unit, b.bag_id, label=b.label) for b in toy_bags(4)]
    for name in ("transmil", "sa-axial", "sa-fourier"):
        model = dasmil.fit(name, here, epochs=1)[0].model
        assert model.distance_scale == 1.0
    scaled = {"epochs": 1, "model_options": {"distance_scale": 7.0}}
    assert dasmil.fit("disc-rel-sa", here, **scaled)[0].model.distance_scale == 7.0
    assert dasmil.fit("das-mil", here, **scaled, distance_init="model", restarts=0)[0].model.distance_scale == 7.0
    assert dasmil.fit("das-mil", here, **scaled)[0].model.distance_scale == 7.0


def test_theta_and_beta_have_their_own_step_and_no_decay():
    bags = toy_bags(8)
    settings = {"epochs": 1, "lr": 1e-5, "weight_decay": 0.0, "restarts": 0, "starts": 1}
    own = dasmil.fit("das-mil", bags, distance_lr=100.0, **settings)[0].model
    common = dasmil.fit("das-mil", bags, distance_lr="common", **settings)[0].model
    moved = [abs(m.learned_distances()[0]["beta"] - 10.0) for m in (own, common)]
    assert moved[0] > 100 * moved[1]
    assert moved[1] < 1e-4


def test_jitter_moves_digits_but_keeps_range_and_randomness():
    digits = torch.zeros(2, 3, 1, 28, 28)
    digits[..., 10:18, 10:18] = 1.0
    torch.manual_seed(0)
    moved = jitter_digits(digits)
    assert moved.shape == digits.shape
    assert moved.min() >= 0
    assert moved.max() <= 1 + 1e-5
    assert not torch.allclose(moved[0, 0], moved[0, 1])
    weight = moved.sum((-1, -2))
    assert ((weight > 64 * 0.75) & (weight < 64 * 1.35)).all()  # scale by at most 10 % each way
    rows = (moved * torch.arange(28.0)[:, None]).sum((-1, -2)) / weight
    assert (rows - 13.5).abs().max() < 3.0
    with pytest.raises(InputError, match="needs pictures"):
        jitter_digits(torch.zeros(3, 4))


def test_progress_is_shown_thinned_out_or_not_at_all(capsys, monkeypatch):
    arguments = {"epochs": 100, "model_options": {"encoder": "identity"}, "enough": 0.0}
    run = dasmil.fit("mean-pool", toy_bags(4), **arguments)[0]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("epoch 1/100  loss ")
    assert lines[-1].startswith("epoch 100/100  loss ")
    assert len(lines) == 9  # every eighth of the epochs, and the first
    dasmil.fit("mean-pool", toy_bags(4), progress=False, **arguments)
    dasmil.fit("mean-pool", toy_bags(4), on_epoch=lambda _: None, **arguments)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    dasmil.fit("mean-pool", toy_bags(4), **{**arguments, "epochs": 3})
    shown = capsys.readouterr().err
    assert [line.split("  ")[0] for line in shown.split("\r")] == ["", "epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert shown.endswith("left\n")
    assert repr(run) == f"TrainedRun(mean-pool, seed 0, epoch 100, training loss {run.train_loss:.3f}, not fitted)"


def test_without_validation_bags_only_held_out_bags_prove_a_run(tmp_path):
    bags = [Bag(b.features + b.label, b.coords, "um", b.bag_id, label=b.label) for b in toy_bags(12)]
    arguments = {"epochs": 30, "lr": 0.1, "model_options": {"encoder": "identity"}, "progress": False}
    dasmil.fit("mean-pool", bags, out=tmp_path / "run", **arguments)
    run = dasmil.Run.read(tmp_path / "run")
    assert run.seeds[0].status["fitted"] is True
    assert run.seeds[0].status["held_out_evidence"] is False
    assert run.summary["unproven_seeds"] == [0]
    assert repr(run) == f"Run({str(tmp_path / 'run')!r}, mean-pool, 1 seed)"
    val = [Bag(b.features, b.coords, "um", f"val/{b.bag_id}", label=b.label) for b in bags]
    dasmil.fit("mean-pool", bags, val, out=tmp_path / "val", **arguments)
    assert dasmil.Run.read(tmp_path / "val").summary["unproven_seeds"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epoch": 3}, "unknown training setting 'epoch'. Did you mean 'epochs'"),
        ({"epochs": 0}, "epochs: Input should be greater than or equal to 1"),
        ({"early_stopping": 3}, "selection to 'best-val'"),
        ({"selection": "best-val"}, "needs validation bags"),
        ({"seeds": 0}, "seeds are 0"),
        ({"seeds": [1, 1]}, "different numbers"),
        ({"model_options": {"hiden": 3}}, "Did you mean 'hidden'"),
        ({"model_options": {"in_features": 9}}, "in_features is 9, but the bags have 4"),
        ({"model_options": {"unit": "px"}}, "unit is 'px', but the bags' coordinates are in 'um'"),
        ({"device": "cuda"}, "'cuda' is not available"),
        ({"tensorboard": True}, "need a run directory"),
    ],
)
def test_wrong_arguments_are_one_clear_message(arguments, message):
    if arguments.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(DasmilError, match=message):
        dasmil.fit("das-mil", toy_bags(6), **{"epochs": 1, **arguments})


def test_bags_that_cannot_be_trained_on_leave_no_run_behind(tmp_path):
    with pytest.raises(DasmilError, match="no positive bag"):
        dasmil.fit("das-mil", [b for b in toy_bags(8) if b.label == 0], epochs=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_unknown_model_and_sets_that_do_not_go_together(tmp_path):
    with pytest.raises(InputError, match="Did you mean 'das-mil'"):
        dasmil.fit("dasmil", toy_bags(4), epochs=1)
    with pytest.raises(InputError, match="6 validation bags are training bags too"):
        dasmil.fit("das-mil", toy_bags(8), toy_bags(6), epochs=1)
    train, val, odd = toy_bags(8), toy_bags(6, prefix="val"), toy_bags(3, prefix="odd")
    odd[2] = Bag(odd[2].features, odd[2].coords, "um", "odd/2", label=2)
    refused = {
        "validation": (val, "6 test bags are validation bags too"),
        "training": (train, "8 test bags are training bags too"),
        "classes": (odd, "the test bags have a class 2 that no training bag has"),
    }
    for name, (test, message) in refused.items():
        with pytest.raises(InputError, match=message):
            dasmil.fit("mean-pool", train, val, epochs=1, tests={"test": test}, out=tmp_path / name)
    with pytest.raises(DasmilError, match="no positive bag"):
        dasmil.fit("das-mil", [b for b in toy_bags(8) if b.label == 0], epochs=1)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"tests": {"t": toy_bags(4, prefix="t")}}, "tests="),
        ({"tests": dict}, "tests="),
        ({"data": {"name": "toy"}}, "data="),
        ({"resume": True, "data": {}}, "data=, resume="),
    ],
)
def test_what_only_a_run_directory_can_use_is_refused_without_one(given, named):
    with pytest.raises(InputError, match=f"^{named} came without out="):
        dasmil.fit("mean-pool", toy_bags(4), epochs=1, **given)
