"""A new target is one file and one registry line: `ordinal` and one of somebody else walk through every command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import dasmil
from dasmil.cli import app
from dasmil.stats.ranking import divide
from dasmil.study.explaining import explain_bag
from dasmil.study.shelf import make_shelf
from dasmil.tasks import TARGET_OF_TASK, TARGETS, LabelColumn, Target, TargetLoss, register
from dasmil.viewer.answers import account, bag_list
from dasmil.vocabulary import Meaning

SLIDES = 24


@dataclass(frozen=True)
class EventCount(Target):
    """How many events are counted, by its log-rate, as somebody else would write it."""

    name: str
    kind: ClassVar[str] = "events"
    task: ClassVar[str] = "poisson"
    main: ClassVar[str] = "deviance_explained"
    metrics: ClassVar[tuple[str, ...]] = ("deviance_explained",)
    headlines: ClassVar[tuple[str, ...]] = ("deviance_explained",)

    @classmethod
    def of_column(cls, column: LabelColumn) -> EventCount:
        return cls(column.name)

    @property
    def outputs(self) -> int:
        return 1

    @property
    def text(self) -> str:
        return f"{self.name!r} (a count)"

    def fitted(self, values: np.ndarray) -> EventCount:
        return self

    def loss_of(self, values: np.ndarray, *, balance: bool) -> PoissonLoss:
        return PoissonLoss(values)

    def said(self, outputs: np.ndarray) -> dict[str, np.ndarray]:
        return {self.name: np.exp(outputs[..., 0])}

    def order(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[..., 0]

    def figures(self, values, said, weights, reference=None):
        y, rate = values[:, 0], said[self.name]
        mean = divide(weights @ y, weights.sum(1))[:, None]
        left = (weights * deviance(y, rate)).sum(1)
        return {"deviance_explained": 1 - divide(left, (weights * deviance(y, mean)).sum(1))}

    def known_text(self, values: np.ndarray) -> str:
        return f"{values[0]:g} events"

    def meaning(self, output: int) -> Meaning:
        return Meaning("the log-rate", "raises the rate", "lowers the rate")

    def output_names(self) -> list[str]:
        return ["fewer", "more"]


class PoissonLoss(TargetLoss):
    """Of Poisson numbers, up to what does not depend on the rate."""

    def __init__(self, values: np.ndarray) -> None:
        self.start = torch.tensor([np.log(values.mean())]).float()
        self.guess = float(self.mean(self.start.expand(len(values), 1), torch.from_numpy(values)))

    def each(self, outputs: Tensor, values: Tensor) -> Tensor:
        return outputs[..., 0].exp() - values[..., 0].to(outputs) * outputs[..., 0]


def deviance(y: np.ndarray, rate: np.ndarray) -> np.ndarray:
    return 2 * (rate - y + y * np.log(np.maximum(y, 1e-12) / rate))


@pytest.fixture
def registered() -> Iterator[None]:
    register(EventCount)
    yield
    del TARGETS[EventCount.kind], TARGET_OF_TASK[EventCount.task]


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slides whose features are near their grade, and that have events at its rate."""
    folder = tmp_path_factory.mktemp("graded")
    (folder / "bags").mkdir()
    rng = np.random.default_rng(0)
    lines = ["slide,grade,events"]
    for i in range(SLIDES):
        grade = i % 3
        level = grade + rng.normal(0, 0.4)
        features = torch.from_numpy(rng.normal(level, 0.5, (8, 3))).float()
        bag = dasmil.Bag(features, torch.from_numpy(rng.uniform(0, 100, (8, 2))), "um", f"s{i:02d}")
        dasmil.write_bag(folder / "bags" / f"{bag.bag_id}.h5", bag)
        lines.append(f"s{i:02d},{('low', 'mid', 'high')[grade]},{rng.poisson(2 * 3**level)}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


ASKED = {
    "ordinal": (["grade", "--classes", "low,mid,high"], "kappa", "Quadratic weighted kappa", 2),
    "poisson": (["events"], "deviance_explained", "deviance_explained", 1),
}


def command(*words: object) -> int:
    return app([str(word) for word in words], exit_on_error=False, result_action="return_value") or 0


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("task", ASKED)
def test_a_target_walks_through_every_command(task: str, cohort: Path, tmp_path: Path, capsys) -> None:
    columns, metric, title, outputs = ASKED[task]
    given = ["--bags", cohort / "bags", "--labels", cohort / "labels.csv", "--task", task, "--target-columns", *columns]
    assert command("doctor", cohort / "bags", *given[2:]) == 0
    assert f"{columns[0]}: " in "".join(capsys.readouterr())
    run = tmp_path / "run"
    how = ["--epochs", 40, "--set", "lr=0.05", "--folds", 3]
    assert command("train", *given, "--model", "mean-pool", *how, "--out", run) == 0
    stored = dasmil.Run.read(run)
    assert stored.task is not None
    assert (stored.task.kind, stored.task.outputs) == (task, outputs)
    scored = stored.summary["splits"]["test"]
    low, high = scored["interval"][metric]
    assert low < scored["mean"][metric] < high
    assert scored["mean"][metric] > 0.5
    page = (run / "report.html").read_text()
    assert title in page
    assert "How well it predicts" in page
    rows = dasmil.predict(run, cohort / "bags")
    assert len(rows) == SLIDES
    (first,) = stored.task.targets
    means = [np.mean([row[first.name] for row in rows[k::3]]) for k in range(3)]
    assert means[0] < means[1] < means[2]
    assert (
        command("evaluate", run, "--bags", cohort / "bags", "--labels", cohort / "labels.csv", "--accept", "seen") == 0
    )
    for output in range(outputs):
        found = explain_bag(run, "s05", target=output)
        told = found.explanation
        assert float(told.contributions.double().sum()) + told.bias == pytest.approx(told.logit, abs=1e-4)
        assert stored.task.meaning(output).what in found.write(tmp_path / f"explained{output}")[0].read_text()
    shelf = make_shelf(run)
    listed = {row["id"]: row for row in bag_list(shelf)["bags"]}
    known = listed["s05"]["label_name"]
    assert known == "grade high" if task == "ordinal" else known.endswith(" events")
    assert account(shelf, listed["s05"]["index"], None)["said"]
    other = dasmil.compare(
        dasmil.CohortSpec(bags=cohort / "bags", labels=cohort / "labels.csv", task=task, target_columns=columns[:1],
                          classes=columns[2].split(",") if columns[1:] else None),
        ["mean-pool", "ab-mil"], out=tmp_path / "compared", folds=3, epochs=2,
    )  # fmt: skip
    assert other.compared.metric == metric


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("task", ASKED)
def test_default_training_takes_it(task: str, cohort: Path, tmp_path: Path) -> None:
    columns, metric, *_ = ASKED[task]
    given = ["--bags", cohort / "bags", "--labels", cohort / "labels.csv", "--task", task, "--target-columns", *columns]
    assert command("train", *given, "--model", "auto", "--out", tmp_path / "auto") == 0
    mean = dasmil.Run.read(tmp_path / "auto").summary["splits"]["val"]["mean"]
    assert mean[metric] > 0.4
