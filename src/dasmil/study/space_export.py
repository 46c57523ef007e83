"""What every instance has near it, back in the user's formats: a CSV table, and AnnData that SpatialData takes."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_matrix
from scipy.spatial import KDTree

from dasmil.files import replacing
from dasmil.space import PairFinding, Section, SpaceStudy
from dasmil.study.notes import Note
from dasmil.study.space_cohort import SpaceCohort

if TYPE_CHECKING:
    import pandas as pd

MOST = 5
"""Pairs of types that are written back: those that were found, else the clearest one."""


def write_instances(study: SpaceStudy, cohort: SpaceCohort, folder: Path, note: Note) -> None:
    """`instances.csv.gz`, and `cells.h5ad` where pandas and anndata are installed.

    For every instance and written pair, how many instances of the other type lie within its length; the graph of these
    contacts is ``obsp["space_contacts"]`` with the number of the pair (1, 2, ...) as its value.
    """
    every = {pair.pair: pair for pair in reversed(study.found or study.pairs[:1])}
    written = sorted(every.values(), key=lambda pair: pair.p_adjusted)[:MOST]
    names = [_column(study, pair) for pair in written]
    columns = _columns(study, cohort, written, names)
    with (
        replacing(folder / "instances.csv.gz") as temporary,
        gzip.open(temporary, "wb", compresslevel=4) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    try:
        import pandas
        from anndata import AnnData
    except ImportError:
        note("cells.h5ad is not written: it needs the packages of the extra tables (pip install 'dasmil[tables]')")
        return
    table = AnnData(obs=_observations(columns, pandas))
    table.obsm["spatial"] = np.concatenate([section.coords for section in study.sections])
    first, second, value = _contacts(study, written)
    size = len(table)
    table.obsp["space_contacts"] = coo_matrix((value, (first, second)), shape=(size, size)).tocsr()
    pairs = pandas.DataFrame(study.pair_rows()) if study.pairs else pandas.DataFrame({"first": []})
    table.uns["space"] = {
        "sentences": np.array(study.sentences), "unit": study.unit, "lengths": study.lengths,
        "types": np.array(study.types), "pairs": pairs, "contacts": np.array(names, dtype=str),
    }  # fmt: skip
    table.uns["spatialdata_attrs"] = {
        "region": sorted(set(columns["section"].tolist())), "region_key": "section", "instance_key": "instance_id",
    }  # fmt: skip
    with replacing(folder / "cells.h5ad") as temporary:
        table.write_h5ad(temporary)


def _column(study: SpaceStudy, pair: PairFinding) -> str:
    a, b = (study.types[k] for k in pair.pair)
    return f"{a} - {b} within {pair.length:.3g} {study.unit}".replace("/", "|")


def _columns(
    study: SpaceStudy, cohort: SpaceCohort, written: list[PairFinding], names: list[str]
) -> dict[str, np.ndarray]:
    """One value for each instance of the study's sections, in their order."""
    owners, ids, rows = [], [], []
    for section, (number, places) in zip(study.sections, cohort.places, strict=True):
        bag = cohort.bags[number]
        owners += [(bag.bag_id, section.name, section.patient)] * len(section)
        rows.append(places)
        ids += [str(k) for k in places] if bag.instance_ids is None else [bag.instance_ids[k] for k in places]
    bags, sections, patients = np.array(owners).T
    coords = np.concatenate([section.coords for section in study.sections])
    kinds = np.concatenate([section.kinds for section in study.sections])
    found = {
        "bag": bags, "section": sections, "patient": patients, "instance": np.concatenate(rows),
        "instance_id": np.array(ids),
        **{f"{axis}_{study.unit}": coords[:, k] for k, axis in enumerate("xyz"[: coords.shape[1]])},
        "type": np.array(study.types)[kinds],
    }  # fmt: skip
    for name, pair in zip(names, written, strict=True):
        found[name] = np.concatenate([_near(section, pair) for section in study.sections])
    return found


def _near(section: Section, pair: PairFinding) -> np.ndarray:
    """How many of the other type of a pair lie within its length of every instance; 0 for those of neither type."""
    found = np.zeros(len(section), np.int64)
    for own, other in {pair.pair, pair.pair[::-1]}:
        mine, others = (np.flatnonzero(section.kinds == kind) for kind in (own, other))
        if len(mine) and len(others):
            near = KDTree(section.coords[others]).query_ball_point(
                section.coords[mine], pair.length, return_length=True
            )
            found[mine] = near - int(own == other)
    return found


def _contacts(study: SpaceStudy, written: list[PairFinding]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both ends of every contact, over all sections, and the number of its pair of types."""
    firsts, seconds, values, start = [], [], [], 0
    for section in study.sections:
        for number, pair in enumerate(written):
            a, b = (np.flatnonzero(section.kinds == kind) for kind in pair.pair)
            if len(a) and len(b):
                near = KDTree(section.coords[a]).sparse_distance_matrix(
                    KDTree(section.coords[b]), pair.length, output_type="ndarray"
                )
                first, second = a[near["i"]], b[near["j"]]
                other = first != second
                ends = (first[other], second[other])
                both = ends if pair.pair[0] == pair.pair[1] else tuple(map(np.concatenate, (ends, ends[::-1])))
                firsts.append(start + both[0])
                seconds.append(start + both[1])
                values.append(np.full(len(both[0]), number + 1, np.int8))
        start += len(section)
    if not firsts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int8)
    return np.concatenate(firsts), np.concatenate(seconds), np.concatenate(values)


def _observations(columns: dict[str, np.ndarray], pandas: Any) -> pd.DataFrame:
    """The columns as AnnData keeps them: text as categories."""
    frame = pandas.DataFrame(columns)
    for name in ("bag", "section", "patient", "type"):
        frame[name] = frame[name].astype("category")
    frame.index = [f"{section}/{k}" for section, k in zip(columns["section"], columns["instance"], strict=True)]
    return frame
