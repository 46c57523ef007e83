"""The cells of the paper's tables: which model, trained how, on which bags; and the work that fills one cell."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dasmil.errors import unknown_name
from dasmil.models import MODELS
from dasmil.train.recipes import load_recipe

DATASETS = ("mnist-collage", "mnist-collage-inv")
TABLES = ("collage", "tuned", "ablations")
SEEDS = 5
TUNED_SEEDS = 10
"""Of das-mil in the table `tuned`, whose figures are meant to be trusted to the third digit."""

QUICK_EPOCHS, QUICK_SEEDS = 8, 2
QUICK_ROWS = {"collage": ("das-mil", "sa"), "tuned": ("das-mil",), "ablations": ("kqv", "kq")}

ABLATIONS: Mapping[str, dict[str, Any]] = {
    "k": {"embeddings": "k"},
    "q": {"embeddings": "q"},
    "v": {"embeddings": "v"},
    "kq+product": {"embeddings": "kq", "product_term": True},
    "kq": {"embeddings": "kq"},
    "kv": {"embeddings": "kv"},
    "qv": {"embeddings": "qv"},
    "kqv+product": {"product_term": True},
    "kqv-frozen": {"train_embeddings": False},
    "kqv": {},
    "fixed-phi": {"train_phi": False},
    "identity-phi": {"phi": "identity", "theta_init": 0.0, "beta_init": 1.0, "train_phi": False},
    "self-pair": {"self_pair": True},
    "disc-rel-sa": {"qk_twice": False},
}
"""Rows of the ablation table -> options of das-mil. The paper mentions fixed-phi and identity-phi without figures; in
self-pair an instance has an embedding for the distance 0 to itself, as in the paper's equations and not its program;
the row disc-rel-sa is that model with q.k counted once, as in the equations; the collage table has it as published."""

# Filled in this order, so that an unfinished table already answers the main question; slow models come last.
_FIRST = ("das-mil", "sa", "max-pool", "disc-rel-sa")
_LAST = ("gcn", "gat", "mil-gnn", "mil-gnn-ds", "transmil")
DISTANCE_ROWS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "sa-alibi": ("sa-alibi", {}),
    "sa-rope": ("sa-rope", {}),
    "sa-bias": ("sa", {"bias": "bins", "bias_init": 0.0}),
    "das-mil-radius": ("das-mil", {"radius": 128.0}),
}
"""Rows of the collage and tuned tables that are not the paper's -> model and its options: other ways to tell attention
about distance. The radius is half a side of a collage: enough for mnist-collage, which decides at 80 px, and not for
mnist-collage-inv, which decides at 170 px."""

FIELD_ROWS = ("clam-sb", "dsmil", "psa-mil", "sm-abmil", "rrt-mil", "patch-gcn", "camil")
"""Rows of the tuned table that are neither: models that others published, for which the paper has no recipe."""

TABLE_MODELS = (
    "max-pool", "mean-pool", "ab-mil", "gated-ab-mil", "mil-gnn", "mil-gnn-ds", "gat", "gcn", "set-transformer",
    "iset-transformer", "sa", "sa-axial", "sa-fourier", "disc-rel-sa", "transmil", "das-mil",
)  # fmt: skip
"""The models with a row of the paper, or beside it as a pooling rule; others of the registry have no row."""
MODEL_ORDER = (*_FIRST, *(name for name in TABLE_MODELS if name not in (*_FIRST, *_LAST)), *_LAST)


@dataclass(frozen=True)
class GridCell:
    """One training of several seeds on one data set; its figures fill one place of a table."""

    table: str
    protocol: str
    row: str
    dataset: str
    model: str
    recipe: str
    seeds: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    """Of the model, beyond those of the recipe."""
    training: dict[str, Any] = field(default_factory=dict)
    """Settings that overrule the recipe."""

    @property
    def key(self) -> str:
        return f"{self.table}/{self.protocol}/{self.row}/{self.dataset}"

    def plan(self) -> dict[str, Any]:
        """Everything that decides the numbers of this cell, as JSON: two cells with the same plan are the same."""
        recipe = load_recipe(self.recipe, self.model)
        return {
            **asdict(self),
            "seeds": list(self.seeds),
            "preset": recipe.preset,
            "options": {**recipe.options, **self.options},
            "training": {**recipe.training, **self.training},
        }


def table_rows(table: str) -> tuple[str, ...]:
    """The rows of a table, in the order in which it is printed."""
    if table not in TABLES:
        raise unknown_name("table", table, TABLES)
    if table == "ablations":
        return tuple(ABLATIONS)
    return (*TABLE_MODELS, *DISTANCE_ROWS, *(FIELD_ROWS if table == "tuned" else ()))


def make_cell(
    table: str, row: str, dataset: str, protocol: str, *, seeds: int | None = None, quick: bool = False
) -> GridCell:
    """The cell of a row and data set. The full model of the ablation table is the das-mil of the collage table."""
    if row not in table_rows(table):
        raise unknown_name(f"row of the table {table}", row, table_rows(table))
    if table == "ablations" and row == "kqv":
        table, row = "collage", "das-mil"
    model, options = DISTANCE_ROWS.get(row, (row, {}))
    if table == "ablations":
        model, options = (row if row in MODELS else "das-mil"), ABLATIONS[row]
    count = seeds or (QUICK_SEEDS if quick else TUNED_SEEDS if (table, row) == ("tuned", "das-mil") else SEEDS)
    return GridCell(
        table,
        protocol,
        row,
        dataset,
        model=model,
        recipe="tuned" if table == "tuned" else "paper",
        seeds=tuple(range(count)),
        options=options,
        training={"epochs": QUICK_EPOCHS, "restarts": 0} if quick else {},
    )


def table_cells(
    table: str,
    protocol: str,
    *,
    rows: Sequence[str] | None = None,
    datasets: Sequence[str] = DATASETS,
    seeds: int | None = None,
    quick: bool = False,
) -> list[GridCell]:
    """The cells of a table in the order in which they are worth filling."""
    known = table_rows(table)
    for row in rows or ():
        if row not in known:
            raise unknown_name(f"row of the table {table}", row, known)
    wanted = rows or (QUICK_ROWS[table] if quick else known)
    order = known if table == "ablations" else (*MODEL_ORDER, *DISTANCE_ROWS, *FIELD_ROWS)
    return [
        make_cell(table, row, dataset, protocol, seeds=seeds, quick=quick)
        for row in sorted(wanted, key=order.index)
        for dataset in datasets
    ]


def held_out(dataset: str, protocol: str) -> dict[str, Any]:
    """The sets that a cell is scored on after training: validation and the large test set are always the clean ones."""
    from dasmil.data import load_dataset

    return {
        "validation": load_dataset(dataset, protocol="clean", split="val"),
        "test": load_dataset(dataset, protocol=protocol, split="test"),
        "test-large": load_dataset(dataset, protocol="clean", split="test-large"),
    }


def run_cell(plan: dict[str, Any], run: str, result: str) -> None:
    """Train a cell in the run directory `run` (or go on with it) and write its small result files."""
    from dasmil.data import load_dataset
    from dasmil.paper.stored import collect, write_cell
    from dasmil.runs import Run, is_begun
    from dasmil.train.fit import fit

    folder = Path(run)
    resumed = is_begun(folder)
    begun = time.process_time()
    fit(
        plan["model"],
        load_dataset(plan["dataset"], protocol=plan["protocol"], split="train"),
        seeds=plan["seeds"],
        preset=plan["preset"],
        model_options=plan["options"],
        out=folder,
        resume=resumed,
        tests=held_out(plan["dataset"], plan["protocol"]),
        data={"name": plan["dataset"], "protocol": plan["protocol"]},
        progress=False,
        **plan["training"],
    )
    # The time of an interrupted cell would leave out what the earlier process did.
    seconds = None if resumed else time.process_time() - begun
    trained = Run.read(folder)
    write_cell(Path(result), plan, collect(trained), trained, cpu_seconds=seconds)
