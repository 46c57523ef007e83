"""Subgroups of a run's bags: columns of its label table, the metric in each with interval, and one test a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dasmil.errors import InputError
from dasmil.runs import Run, labelled_set, read_clinical, write_clinical
from dasmil.stats import FollowUp
from dasmil.stats.subgroups import Subgroups, class_subgroups, column_of, survival_subgroups
from dasmil.study.reading import run_cohort
from dasmil.study.spec import CohortSpec

if TYPE_CHECKING:
    from dasmil.data.cohort import Cohort


def check_subgroups(spec: CohortSpec | None, asked: Sequence[str]) -> None:
    """Refuse subgroups of columns that a label table does not have."""
    if spec is None or spec.bags is None:
        raise InputError("--subgroups names columns of a label table: give --bags and --labels")
    spec.further(list(dict.fromkeys(column_of(text) for text in asked)), "--subgroups", by_slide=True)


def subgroup_cells(
    spec: CohortSpec, cohort: Cohort, asked: Sequence[str], option: str = "--subgroups"
) -> dict[str, dict[str, str | None]]:
    """For each subgroup asked for the cell of every bag by its name: {"age>65": {"slide1": "70", ...}}."""
    names = list(dict.fromkeys(column_of(text) for text in asked))
    cells = dict(zip(cohort.bag_ids, spec.further(names, option, by_slide=True).of(cohort), strict=True))
    return {text: {bag: own[column_of(text)] for bag, own in cells.items()} for text in asked}


def run_cells(run: Run, asked: Sequence[str], option: str = "--subgroups") -> dict[str, dict[str, str | None]]:
    """The same from the label table that a run was trained with."""
    if "cohort" not in run.origin:
        raise InputError(f"{option} names columns of a label table, and {run.path} was not trained with one")
    return subgroup_cells(CohortSpec.from_record(run.origin["cohort"]), run_cohort(run.origin), asked, option)


def of_run(run: Run, asked: Sequence[str]) -> Subgroups:
    """The metric of the run's first set in every subgroup: AUROC, or C-index of survival."""
    split = run.splits[0]
    cells = run_cells(run, asked)
    if run.task is None:
        known = labelled_set(run, split)
        if known is None:
            raise InputError(f"{run.path} has no labelled bags to make subgroups of")
        columns = _columns(cells, known.bag_ids)
        return class_subgroups(columns, known.labels, known.probabilities, known.patients)
    if run.task.kind != "survival":
        raise InputError(f"subgroups are for classes and survival, and this run has the task {run.task.kind}")
    bags, patients, values, risks = [], [], [], []
    for part in run.parts:  # every fold has its own bins of time
        answers = part.answers(split)
        assert part.task is not None
        bags += answers[0].bag_ids
        patients += answers[0].patients
        values.append(answers[0].values)
        risks.append(part.task.joined([one.outputs for one in answers])["risk"])
    truth = np.concatenate(values)
    follow = FollowUp(truth[:, 0], truth[:, 1] == 1)
    return survival_subgroups(_columns(cells, bags), follow, np.concatenate(risks), patients)


def keep_subgroups(run: Run, asked: Sequence[str]) -> None:
    """Make the subgroups and keep them with the run for its report."""
    write_clinical(run.path, {"subgroups": of_run(run, asked).as_json(), "subgroups_of": run.splits[0]})


def subgroups_again(run: Run) -> None:
    """The same for a run whose test set was opened after training."""
    if found := read_clinical(run.path).get("subgroups"):
        keep_subgroups(run, list(dict.fromkeys(test["column"] for test in found["tests"])))


def names_of(text: str | Sequence[str] | None) -> list[str]:
    """Subgroups as they are asked for: "site,sex,age>65"."""
    parts = (text or "").split(",") if isinstance(text, str) or text is None else list(text)
    return [name for part in parts if (name := part.strip())]


def _columns(cells: Mapping[str, Mapping[str, str | None]], bag_ids: Sequence[str]) -> dict[str, list[str | None]]:
    return {text: [own.get(bag) for bag in bag_ids] for text, own in cells.items()}
