"""The doctor's visit to a cohort: files of features, or cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dasmil.data.scale import read_scales
from dasmil.data.tables import is_table
from dasmil.errors import InputError
from dasmil.study.spec import CohortSpec


def examine(spec: CohortSpec) -> Iterator[Any]:
    """Look at every bag of a cohort; yields (done, total, name) while at work and the Checkup at the end."""
    from dasmil.data.doctor import check_bags
    from dasmil.data.doctor_cells import check_cells

    assert spec.bags is not None
    sites = None if spec.site_column is None else spec.further([spec.site_column], "--site-column")
    rows, task = spec.read_task()
    if task is None:
        if spec.classes is not None:
            raise InputError("--classes gives doctor the order of grades (--task ordinal): leave it out for classes")
        rows = spec.read_labels()
        if spec.asked() is not None:
            raise InputError("a task has columns of a label table: give --labels too")
    elif spec.positive is not None:
        raise InputError("--positive is for classification: leave it out")
    of_task: dict[str, Any] = {"task": task, "per_patient": spec.per_patient}
    if is_table(spec.bags):
        yield from check_cells(spec.read_cells(), rows, spec.positive, sites, **of_task)
        return
    cells = [name for name in ("bag_column", "x_column", "y_column", "one_hot", "feature_columns", "unit")
             if getattr(spec, name) is not None]  # fmt: skip
    if cells:
        raise InputError(
            f"--{cells[0].replace('_', '-')} is for tables of cells, but {spec.bags} is a folder of feature files"
        )
    scales = read_scales(spec.mpp, spec.tile_um, spec.scale_table)
    yield from check_bags(spec.bags, rows, scales, spec.positive, sites, **of_task)
