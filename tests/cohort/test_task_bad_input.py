"""Follow-up and targets that cannot be used: one clear message from train, and nothing written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dasmil
from dasmil.errors import DasmilError
from tests.cohort.calls import run

SURVIVAL = ("--time-column", "days", "--event-column", "dead")
NUMBER = ("--target-columns", "amount", "--task", "regression")


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bags")
    rng = np.random.default_rng(0)
    for i in range(12):
        bag = dasmil.Bag(torch.from_numpy(rng.normal(size=(5, 3))).float(),
                         torch.from_numpy(100 * rng.random((5, 2))).float(), "um", f"s{i:02d}")  # fmt: skip
        dasmil.write_bag(folder / f"s{i:02d}.h5", bag)
    return folder


def table(**changed: dict[int, str] | list[str]) -> str:
    """Twelve slides of six patients; changed: cells of a column by row, or the whole column."""
    columns: dict[str, list[str]] = {
        "slide": [f"s{i:02d}" for i in range(12)], "patient": [f"p{i // 2}" for i in range(12)],
        "days": [str(10 + i // 2) for i in range(12)], "dead": [str(int(i // 2 % 2)) for i in range(12)],
        "amount": [str(i / 2) for i in range(12)], "er": ["pos" if i % 4 else "neg" for i in range(12)],
    }  # fmt: skip
    for name, cells in changed.items():
        columns[name] = cells if isinstance(cells, list) else [cells.get(i, v) for i, v in enumerate(columns[name])]
    rows = zip(*columns.values(), strict=True)
    return "\n".join(",".join(row) for row in [tuple(columns), *rows]) + "\n"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (table(days={3: "-4"}), SURVIVAL, "line 5: the time is -4, expected 0 or more"),
        (table(days={3: ""}), SURVIVAL, "line 5: 'days' is empty, but the other of time and event is not"),
        (table(dead={3: ""}), SURVIVAL, "line 5: 'dead' is empty, but the other"),
        (table(days=[""] * 12, dead=[""] * 12), SURVIVAL, "'days' and 'dead' are empty in every row"),
        (table(dead=["0"] * 12), SURVIVAL, "all slides are censored"),
        (table(dead=["1"] + ["0"] * 11), SURVIVAL, "one slide has the event"),
        (table(dead=["1", "1"] + ["0"] * 10), (*SURVIVAL, "--per-patient"), "1 of 4 training bags have the event"),
        (table(dead={0: "2"}), SURVIVAL, "holds '2', '0', '1', expected two values"),
        (table(dead={0: "lost"}), SURVIVAL, "holds 'lost', '0', '1', expected two values"),
        (table(days={0: "12 months"}), SURVIVAL, "the time is '12 months', expected a number without its unit"),
        (table(days={0: "1_000"}), SURVIVAL, "the time is '1_000', expected a number without its unit"),
        (table(days={0: "2024-03-01"}), SURVIVAL, "the time is '2024-03-01', expected a number without its unit"),
        (table(days={0: "#N/A"}), SURVIVAL, "line 2: 'days' is #N/A, an error of a spreadsheet program"),
        (table(amount={2: "#REF!"}), NUMBER, "line 4: 'amount' is"),
        (table(days={0: "nan?"}), SURVIVAL, "expected a number without its unit"),
        (table(days={0: "inf"}), SURVIVAL, "expected a number without its unit"),
        (table(days={1: "99"}), (*SURVIVAL, "--per-patient"), "patient 'p0' has slides with different labels"),
        (table(amount=["7"] * 12), NUMBER, "'amount' is '7' in every row: there is nothing to learn"),
        (table(amount=["7", "7.0"] * 6), NUMBER, "is 7 in all 8 training bags"),
        (table(amount=[""] * 12), NUMBER, "the target 'amount' is missing in every row"),
        (table(amount={2: "7 mm"}), NUMBER, "line 4: 'amount' is '7 mm', expected a number without its unit"),
        (table(er=["pos"] * 12), ("--target-columns", "er,amount"), "'er' is 'pos' in every row"),
        (table(er=[""] * 12), ("--target-columns", "er,amount"), "the target 'er' is missing in every row"),
        (table(), ("--target-columns", "er,er"), "different columns"),
        (table(), ("--target-columns", "er,days", "--time-column", "days"), "--target-columns"),
    ],
)
def test_one_message_and_nothing_written(bags, tmp_path, text: str, options, message: str) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(DasmilError) as caught:
        run("train", "--bags", bags, "--labels", tmp_path / "labels.csv", *options, "--out", tmp_path / "run",
            "--model", "mean-pool", "--epochs", 1)  # fmt: skip
    assert message in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["labels.csv"]


@pytest.mark.parametrize("words", [("dead", "alive"), ("TRUE", "FALSE"), ("Yes", "no"), ("1:DECEASED", "0:LIVING")])
def test_words_for_events(bags, tmp_path, words: tuple[str, str]) -> None:
    (tmp_path / "labels.csv").write_text(table(dead=[words[0] if i // 2 % 2 else words[1] for i in range(12)]))
    spec = dasmil.CohortSpec(
        bags=bags, labels=tmp_path / "labels.csv", time_column="days", event_column="dead", per_patient=True
    )
    cohort = spec.load()
    assert [bag.targets["dead"] for bag in cohort] == [0, 1, 0, 1, 0, 1]


def test_no_patient_is_censored(bags, tmp_path) -> None:
    """Nothing is wrong with a cohort in which all events were seen."""
    (tmp_path / "labels.csv").write_text(table(dead=["1"] * 12))
    run("train", "--bags", bags, "--labels", tmp_path / "labels.csv", *SURVIVAL, "--out", tmp_path / "run",
        "--model", "mean-pool", "--epochs", 1)  # fmt: skip
    found = dasmil.Run.read(tmp_path / "run").answers("train")[0].values
    assert (found[:, 1] == 1).all()
