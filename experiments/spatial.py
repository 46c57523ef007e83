"""The spatial benchmark: ways to use positions, at equal budget, on tasks whose data lies in folders of one's own.

Each cell (a task and a model) trains with the same folds, seeds, epochs and learning rate and is stored fold by fold in
--out with the state of the code that made it; the same command goes on where it stopped. `page` writes the tables.

Example: python experiments/spatial.py run --out docs/results/spatial --crc data/crc --tnbc data/tnbc
         python experiments/spatial.py page --out docs/results/spatial
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch
from cells import COMPOSITION, MECHANISMS, MODELS, Task, drawn, finished, run_cell, scores, summary
from crc import infiltration
from cyclopts import App

from dasmil.data.contact import ContactTask, contact_crops
from dasmil.data.tables import read_table
from dasmil.files import read_csv, write_text
from dasmil.stats.resample import interval
from dasmil.types import Bag

app = App()

TITLES = {
    "crc": "Infiltration, nuclei of colorectal cancer",
    "contact": "Contact, cells of breast cancer",
    "melanoma": "Response to therapy, cells of melanoma",
}
WITHOUT, WITH = "sa", "das-mil"
HEAD = """# The spatial benchmark

Which way of using positions helps, and where does none? Every model has the same bags, folds, seeds, epochs, learning
rate (5e-3, the default of das-mil; nothing was chosen for any model, and models that learn better with another rate are
at a disadvantage) and features in the same whitened directions; das-mil also tries its usual starts, which the CPU
seconds include. AUROC is the mean over folds and seeds. "Length" is where the learned function of the distance is
halfway. "Code" is the last commit of the package's source when the folds were trained.

    python experiments/spatial.py run --out docs/results/spatial --crc CRC --tnbc TNBC --melanoma MELANOMA
    python experiments/spatial.py page --out docs/results/spatial

The folders hold data of others, which the package does not ship. Stored beside this page, one file for each cell, are
predictions (for the colorectal nuclei only counts of pairs ranked right, by region); a test makes the tables from them
again. The cells of commit e082e25 were trained before das-mil changed how it starts from simple rules. What the same
do on MNIST-COLLAGE, with other settings and seeds, stands in [../reproduction.md](../reproduction.md). Not part of this
page yet: the made slides, lung survival, MNIST-COLLAGE at this budget, and every cell that is listed as missing.
"""
CRC_HEAD = """# Real nuclei: colorectal cancer

Data: positions and types of the nuclei of 100 H&E images of 500 x 500 px (CRCHistoPhenotypes, Sirinukunwattana et al.
2016; 0.55 um a pixel as commonly stated), released for research only: the package ships nothing of it, the script takes
its folder. Images that continue each other are one of 39 regions, and folds are by region.

Task: windows of 250 px, every 25 px, with at least 5 epithelial and 5 inflammatory nuclei; positive if at least 60 % of
the inflammatory ones lie within 20 um of an epithelial one, negative if at most 15 %; as many of both classes in every
bin of the counts of three types. The windows of a region overlap, and few regions have both kinds, so that the interval
over regions is the one to read. "composition", a regression on the shares of types, must not tell the classes apart.

    python experiments/crc.py CRC --out docs/results/spatial

The bar was .93 for das-mil with three seeds. The same cells are part of [spatial.md](spatial.md).
"""


@app.command
def run(
    *,
    out: Path,
    crc: Path | None = None,
    tnbc: Path | None = None,
    melanoma: Path | None = None,
    models: str | None = None,
    seeds: int = 3,
) -> None:
    """Train the missing cells of every task whose folder is given, model by model."""
    tasks: dict[str, tuple[Path | None, Callable[[Path], Task]]] = {
        "crc": (crc, infiltration), "contact": (tnbc, contact), "melanoma": (melanoma, response),
    }  # fmt: skip
    made = [make(folder) for folder, make in tasks.values() if folder is not None]
    for name in models.split(",") if models else MODELS:
        for task in made:
            print(summary(run_cell(task, name, out, seeds=seeds)), flush=True)


def contact(folder: Path) -> Task:
    """Is a CD8 T cell within 15 um of a vessel cell? As experiments/tnbc.py; at most 12 crops a patient and class."""
    task = ContactTask(per_patient_and_class=12)
    fields = read_table(folder / "cells.csv.gz", bag="patient", unit="px", um_per_unit=800 / 2048, one_hot="cell_type")
    return Task("contact", contact_crops(fields, task), length_um=task.radius_um)


def response(folder: Path, most: int = 500) -> Task:
    """Does a patient respond? 35 markers (arsinh, standardised over all cells) of at most 500 random cells a field."""
    from pandas import read_parquet

    table = read_parquet(folder / "cells.parquet")
    samples = sorted(read_csv(folder / "samples.csv"), key=lambda row: row["sample"])
    markers = [name for name in table.columns if name not in ("sample", "x_um", "y_um")]
    values = np.arcsinh(table[markers].to_numpy(np.float32))
    values = (values - values.mean(0)) / values.std(0).clip(1e-6)
    places, names = table[["x_um", "y_um"]].to_numpy(np.float32), table["sample"].astype(str).to_numpy()
    bags = []
    for number, row in enumerate(samples):
        rows = np.random.default_rng(number).permutation(np.flatnonzero(names == row["sample"]))[:most]
        bag = Bag(
            features=torch.from_numpy(values[rows]), coords=torch.from_numpy(places[rows]), unit="um",
            bag_id=f"sample {number}", label=int(row["response"] == "Responder"), patient_id=f"patient {number}",
        )  # fmt: skip
        bags.append(bag)
    return Task("melanoma", bags, epochs=100)


@app.command
def page(*, out: Path) -> None:
    """Write the tables of all stored cells, and which are missing, as pages beside --out: spatial.md and crc.md."""
    write_text(out.with_suffix(".md"), text(out))
    write_text(out.with_name("crc.md"), crc_text(out))


def text(folder: Path) -> str:
    """The page: a table for each task, the value of distance in a sentence each, what is missing."""
    return HEAD + "".join(section(folder, task) for task in TITLES)


def crc_text(folder: Path) -> str:
    """The page of the real nuclei."""
    return CRC_HEAD + section(folder, "crc")


def cells_of(folder: Path, task: str) -> dict[str, dict[str, Any]]:
    """The finished cells of a task, best first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / task).glob("*.json"))]
    whole = {cell["model"]: cell for cell in found if finished(cell)}
    return dict(sorted(whole.items(), key=lambda item: -scores(item[1])["auroc"]))


def section(folder: Path, task: str) -> str:
    """One task."""
    cells = cells_of(folder, task)
    missing = [name for name in MODELS if name not in cells]
    lines = [f"\n## {TITLES[task]}\n"]
    if not cells:
        return "\n".join([*lines, f"Not run yet: all {len(MODELS)} cells are missing.\n"])
    any_cell = next(iter(cells.values()))
    lines.append(_wrapped(
        f"{any_cell['bags']} bags of {any_cell['patients']} patients or regions, {any_cell['folds_planned']} folds, "
        f"{any_cell['seeds']} seeds, {any_cell['settings']['epochs']} epochs, learning rate "
        f"{any_cell['settings']['lr']:g}. The interval is over patients or regions, resampled."
    ))  # fmt: skip
    lines += ["| model | mechanism | AUROC [95 %] | lowest run | length, um | not fitted | CPU s a run | code |",
              "|---|---|---:|---:|---:|---:|---:|---|"]  # fmt: skip
    lines += [_row(cell) for cell in cells.values()]
    lines.append("")
    if WITHOUT in cells and WITH in cells:
        lines.append(_value_of_distance(cells[WITH], cells[WITHOUT]))
    if COMPOSITION in cells and WITH in cells:
        lines.append(_value_of_distance(cells[WITH], cells[COMPOSITION]))
    lines.append(_wrapped("Missing cells: " + (", ".join(missing) if missing else "none") + "."))
    return "\n".join(lines)


def _wrapped(sentences: str) -> str:
    return fill(sentences, 120, break_on_hyphens=False) + "\n"


def _row(cell: dict[str, Any]) -> str:
    found = scores(cell)
    low, high = found["interval"]
    reach = f"{min(found['lengths_um']):.1f} to {max(found['lengths_um']):.1f}" if found["lengths_um"] else ""
    code = ", ".join(dict.fromkeys(_code(fold["manifest"]) for fold in cell["folds"]))
    return (
        f"| {cell['model']} | {MECHANISMS[cell['model']]} | {found['auroc']:.3f} [{low:.3f}, {high:.3f}] | "
        f"{found['lowest']:.3f} | {reach} | {found['not_fitted']} of {found['runs']} | {found['cpu_seconds']:.0f} | "
        f"{code} |"
    )


def _code(manifest: dict[str, str]) -> str:
    return manifest["commit"] + (" and changes" if manifest["changed"] == "yes" else "")


def _value_of_distance(first: dict[str, Any], second: dict[str, Any]) -> str:
    gap = scores(first)["auroc"] - scores(second)["auroc"]
    low, high = interval(drawn(first) - drawn(second))
    verdict = "shown" if low > 0 else "shown, it is worse" if high < 0 else "not shown"
    other = scores(second)
    if other["not_fitted"] > other["runs"] / 2:  # then it says little what the other reaches
        verdict = (
            f"no fair comparison, because {other['not_fitted']} of {other['runs']} runs of {second['model']} did not "
            "fit their training bags (nothing that it sees may tell the classes apart, or this budget does not suit it)"
        )
    return _wrapped(f"{first['model']} minus {second['model']}: {gap:+.3f} [{low:+.3f}, {high:+.3f}]: {verdict}.")


if __name__ == "__main__":
    app()
