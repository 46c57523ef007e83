"""The plan extends what small probes cost; its arithmetic is checked here, its accuracy by `dasmil plan --check`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cyclopts import CycloptsError

import dasmil.train.plan as plan_module
from dasmil.cli import app
from dasmil.data.distances import neighbours_within
from dasmil.errors import InputError
from dasmil.train.competition import most_starts
from dasmil.train.fit import fit_job
from dasmil.train.job import Given, Job, Outline, prepare
from dasmil.train.plan import Measurement, make_plan, measure
from dasmil.types import Bag
from tests.baselines.rare_pairs import rare_pairs

MB = 2**20


def job(model: str, bags: int, in_features: int, **given: Any) -> Job:
    return prepare(model, Outline(bags, (in_features,), "um"), Given(**given))


def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(job: Job, n: int, **options: object) -> Measurement:
        return Measurement(n, 2 * (0.01 + 1e-5 * n + 1e-8 * n * n), 2.0, 300 * MB, int(10 * MB + 20_000 * n))

    monkeypatch.setattr(plan_module, "measure", measured)


def test_cost_is_extended_to_larger_bags(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch)
    plan = make_plan(job("das-mil", 2, 768), [1000, 50_000], memory_gb=4)
    seconds = [0.01 + 1e-5 * n + 1e-8 * n * n for n in (1000, 50_000)]
    assert plan.seconds_per_epoch == pytest.approx(sum(seconds), rel=1e-3)
    assert plan.seconds(50_000) == pytest.approx(seconds[1], rel=1e-3)
    held = 4 * 770 * 51_000
    assert plan.held_bytes == held
    assert plan.peak_bytes == pytest.approx(310 * MB + held + 20_000 * 50_000, rel=1e-3)
    # Three bags and the step must fit into 4 GB.
    assert plan.largest_bag == pytest.approx((4096 - 310) * MB / (20_000 + 3 * 4 * 770), rel=2e-3)


def test_starts_compete_on_parts_of_large_bags(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch)
    settings = {"starts": 12, "starts_instances": 500, "starts_share": 0.25, "epochs": 40}
    sizes = [1000, 50_000] * 20  # enough bags to hold some out
    plan = make_plan(job("das-mil", 40, 768, settings=settings), sizes, memory_gb=4)
    part = 19 * 40 * (0.01 + 1e-5 * 500 + 1e-8 * 500**2)  # twelve lengths, six relations, one of mean features
    assert plan.seconds_per_starts_epoch == pytest.approx(part, rel=1e-3)
    whole = plan.seconds_per_epoch  # here one epoch of whole bags costs more than one of all starts
    assert plan.seconds_in_all == pytest.approx((10 * part + 30 * whole, part + 39 * whole), rel=1e-3)
    alone = make_plan(job("max-pool", 40, 768, settings={"epochs": 40}), sizes, memory_gb=4)
    assert alone.seconds_in_all == pytest.approx((40 * whole, 40 * whole), rel=1e-3)


def test_with_a_radius_cost_follows_the_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def measured(job: Job, n: int, *, spacing: float, **options: object) -> Measurement:
        asked.append(spacing)
        return Measurement(n, 0.01 + 1e-5 * n * (1.02 if n > 5000 else 1.0), 1.0, 300 * MB, int(10 * MB + 20_000 * n))

    monkeypatch.setattr(plan_module, "measure", measured)
    plan = make_plan(job("das-mil", 2, 8, options={"radius": 50.0}), [500_000], memory_gb=4, spacing=9.0)
    assert set(asked) == {9.0}
    assert plan.time_coefficients[2] == 0.0  # one noisy probe would bend a curve far off
    assert plan.seconds(500_000) == pytest.approx(5.0, rel=0.05)
    with pytest.raises(InputError, match="spacing of instances is 0"):
        make_plan(job("das-mil", 2, 8), [500], spacing=0)


def test_neighbours_within_a_radius() -> None:
    grid = torch.stack(torch.meshgrid(torch.arange(60.0), torch.arange(60.0), indexing="ij"), -1).flatten(0, 1)
    bag = Bag(torch.zeros(3600, 1), grid * 10, "um", "grid")
    assert neighbours_within([bag], 0.0) == 1.0
    assert neighbours_within([bag] * 3, 10.0) == pytest.approx(5.0, abs=0.2)  # itself and four, fewer at the border


def test_large_cohorts_are_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch)
    plan = make_plan(job("das-mil", 400, 768), [5000] * 400, memory_gb=4)
    assert plan.held_bytes == 3 * 4 * 770 * 5000
    small = make_plan(job("das-mil", 400, 768, settings={"memory_gb": 100}), [5000] * 400, memory_gb=4)
    assert small.held_bytes == 400 * 4 * 770 * 5000


def test_a_real_probe(made: Path) -> None:
    found = measure(job("das-mil", 2, 16), 300, threads=1)
    assert found.n == 300
    assert found.seconds_per_bag > 0
    assert found.base_bytes > 50 * MB


def test_command(made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake(monkeypatch)
    arguments = ["plan", "--bags", str(made / "bags"), "--memory-gb", "2"]
    app([*arguments, "--json"], exit_on_error=False, result_action="return_value")
    answer = json.loads(capsys.readouterr().out)
    assert answer["bags"] == 30
    assert 60 <= answer["largest"] <= 90
    app(arguments, exit_on_error=False, result_action="return_value")
    printed = capsys.readouterr().out
    assert "30 bags of" in printed
    assert "instances fit into 2.0 GB" in printed
    assert "within the radius" not in printed
    app([*arguments, "--set", "radius=1e9"], exit_on_error=False, result_action="return_value")
    assert re.search(r"within the radius +\d\d instances, of 1e\+09 um around one", capsys.readouterr().out)
    with pytest.raises(InputError, match="nothing to plan"):
        app(["plan"], exit_on_error=False, result_action="return_value")


@pytest.mark.parametrize("sizes", [["4000", "12000"], ["4000,12000"], ["4000, 12000"], ["4000,", "12000"]])
def test_sizes_one_by_one_or_with_commas(
    sizes: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch)
    app(["plan", "--sizes", *sizes, "--json"], exit_on_error=False, result_action="return_value")
    answer = json.loads(capsys.readouterr().out)
    assert (answer["bags"], answer["largest"]) == (2, 12000)


def test_sizes_that_are_no_numbers_are_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CycloptsError, match="--sizes: '4k' is no whole number; expected 4000 12000 or 4000,12000"):
        app(["plan", "--sizes", "400,4k"], exit_on_error=False, print_error=False, result_action="return_value")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "400", "0"], "--sizes has 0, expected"),
        (["--sizes=-5"], "--sizes has -5, expected"),
        (["--sizes", "400", "--spacing-um", "0"], "--spacing-um is 0, expected a length above 0"),
        (["--sizes", "400", "--in-features", "0"], "--in-features is 0, expected at least 1"),
        (["--sizes", "400", "--bags", "folder"], "--sizes and --bags were given"),
    ],
)
def test_impossible_sizes_are_refused_at_once(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "make_plan", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(InputError, match=message):
        app(["plan", *arguments], exit_on_error=False, result_action="return_value")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "seeds is 0, expected at least 1"),
        (["--threads=-1"], "threads is -1, expected at least 1"),
        (["--threads=1000000"], "threads is 1000000, expected at most 1,024"),
        (["--memory-gb", "nan"], "memory_gb is nan, expected the memory that may be used, above 0"),
        (["--memory-gb=-2"], "memory_gb is -2, expected"),
        (["--set", "lr=abc"], "^training setting lr: "),
        (["--set", "device=foo"], "^training setting device: .*found 'foo'"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_measured(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "measure", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(InputError, match=message):
        app(["plan", "--sizes", "400", *arguments], exit_on_error=False, result_action="return_value")


def test_small_bags_do_not_hide_what_large_ones_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below some thousand instances the memory of a step is not seen beside that of the program."""
    hidden = 30 * MB
    monkeypatch.setattr(
        plan_module, "measure",
        lambda job, n, **_: Measurement(n, 1e-5 * n, 1.0, 300 * MB, max(0, 20_000 * n - hidden)),
    )  # fmt: skip
    plan = make_plan(job("das-mil", 2, 8), [30, 50], memory_gb=4)
    assert [probe.n for probe in plan.probes] == [256, 512, 1024, 8192]
    fits = (4096 - 300) * MB / (20_000 * (1 - hidden / (20_000 * 8192)) + 3 * 4 * 10)  # a line through the last probe
    assert plan.largest_bag == pytest.approx(fits, rel=0.02)
    monkeypatch.setattr(plan_module, "measure", lambda job, n, **_: Measurement(n, 1e-5 * n, 1.0, 300 * MB, 0))
    app(["plan", "--sizes", "30", "--in-features", "8", "--memory-gb", "4"], exit_on_error=False,
        result_action="return_value")  # fmt: skip
    assert "largest bag         10,000,000 or more instances fit into 4.0 GB" in capsys.readouterr().out


def test_a_probe_needs_no_validation_bags() -> None:
    settings = {"selection": "best-val", "early_stopping": 3}
    assert measure(job("mean-pool", 2, 8, settings=settings), 100, threads=1).n == 100


def test_one_bag_is_named_as_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake(monkeypatch)
    app(["plan", "--sizes", "4000", "--memory-gb", "2"], exit_on_error=False, result_action="return_value")
    assert capsys.readouterr().out.startswith("1 bag of 4,000 instances with 768 features; das-mil, 1 seed\n")


def test_a_model_that_cannot_be_built_says_why() -> None:
    with pytest.raises(InputError, match="pooling is 'none', expected one of max"):
        job("das-mil", 2, 16, options={"pooling": "none"})
    told = job("das-mil", 2, 16)
    with pytest.raises(InputError, match=r"das-mil cannot train on bags of 300 instances here: .*hidden is 0"):
        measure(replace(told, options={**told.options, "hidden": 0}), 300)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({}, {"starts": 1}),
        ({}, {"held_out": False}),
        ({}, {"simple_starts": 0}),
        ({}, {"distance_init": "model"}),
        ({"encoder": "linear-relu"}, {}),
        ({"train_phi": False}, {}),
        ({"embeddings": ""}, {}),
        ({"phi": "identity"}, {}),
        ({"theta_init": 0.3}, {}),
    ],
)
def test_the_plan_counts_the_starts_that_training_has(options: dict[str, Any], settings: dict[str, Any]) -> None:
    # Labels that no simple rule explains: a rule that holds would go alone, which only the bags can tell.
    bags = [replace(bag, label=number // 2 % 2) for number, bag in enumerate(rare_pairs(32))]
    once = {"epochs": 1, "starts": 3, "starts_until": 1e-9, "restarts": 0, "starts_instances": 40, **settings}
    told = job("das-mil", len(bags), bags[0].features.shape[1], options=options, settings=once)
    attempt = fit_job(told, bags, None, told.specs(1))[0].attempts[0]
    leads = int(not options and not settings)  # counted beside the pairs, where a rule may lead
    assert most_starts(told) == 1 + len(attempt.rivals) + leads
