"""Default training beside simple models, on made cohorts with realistic features and on real cohorts.

    python experiments/default_training.py made share topk --draws 10,11,12 --generator realistic.py --out DIR
    python experiments/default_training.py real tnbc breast --data DATA --out DIR
    python experiments/default_training.py page --out DIR --page docs/results/default-training.md

Every cell (a draw of a condition, a cohort) is one file in DIR; cells that are there are not computed again. The
generator is a module with ``make(condition, draw)``, ``score``, ``ridge``, ``summary`` and ``outside_abmil``; it and
the real cohorts are not part of dasmil.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dasmil
from dasmil.candidates.folds import patient_folds, patient_weights
from dasmil.candidates.linear import Reader
from dasmil.candidates.objective import Classes
from dasmil.candidates.ridge import Coordinates, fit_chosen
from dasmil.candidates.selection import patient_means
from dasmil.files import write_json
from dasmil.types import Bag

BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
REPEATS = 2
"""Repeats of the outer folds of a real cohort."""


def made_cell(generator: Any, condition: str, draw: int) -> dict[str, Any]:
    """The scores of default training and of three simple models on the test bags of one draw."""
    cohort = generator.make(condition, draw)
    began = time.process_time()
    run = dasmil.fit(cohort.train, task=cohort.task, progress=False, note=lambda text: None)[0]
    seconds = time.process_time() - began
    assert run.library is not None
    said = run.predict(cohort.test)
    more = [generator.summary(bags, "more") for bags in (cohort.train, cohort.test)]
    means = [generator.summary(bags) for bags in (cohort.train, cohort.test)]
    attention = generator.outside_abmil(cohort)
    found = {
        "auto": generator.score(cohort, said),
        "ridge on means": generator.score(cohort, generator.ridge(cohort, *means)),
        "ridge on quantiles": generator.score(cohort, generator.ridge(cohort, *more)),
        "AB-MIL": float(np.mean([generator.score(cohort, one) for one in attention])),
    }
    row = {
        "condition": condition, "draw": draw, "scores": found, "selected": run.library["selected"],
        "p": run.library["evidence"]["p"], "seconds": seconds,  # pyright: ignore
        "oracle": generator.oracle_score(cohort), "candidates": run.library["candidates"],
    }  # fmt: skip
    if cohort.task is None and cohort.classes == 2:
        row["calibration"] = calibration(said, cohort.y)
    return row


def calibration(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The slope of a logistic regression on the logits, and the expected calibration error in ten bins."""
    from scipy.special import logit
    from sklearn.linear_model import LogisticRegression

    x = logit(np.clip(probabilities, 1e-6, 1 - 1e-6))[:, None]
    bins = np.minimum((probabilities * 10).astype(int), 9)
    gaps = [abs(probabilities[bins == b].sum() - labels[bins == b].sum()) for b in range(10)]
    slope = float(LogisticRegression(C=1e6).fit(x, labels).coef_[0, 0])
    return {"slope": slope, "ece": float(sum(gaps) / len(labels))}


def real_cell(bags: list[Bag], name: str) -> dict[str, Any]:
    """Out-of-fold outputs per patient of default training and of the linear candidates, over repeated outer folds."""
    labels = np.array([bag.label for bag in bags])
    patients = [bag.patient_id or bag.bag_id for bag in bags]
    objective = Classes(labels, int(labels.max()) + 1)
    scores: dict[str, list[float]] = {}
    selected: list[str] = []
    seconds = 0.0
    for repeat in range(REPEATS):
        outputs: dict[str, np.ndarray] = {}
        for fold in patient_folds(objective, patients, seed=100 + repeat):
            train = [bags[i] for i in fold.rest]
            began = time.process_time()
            run = dasmil.fit(train, seeds=[repeat], progress=False, note=lambda text: None)[0]
            seconds += time.process_time() - began
            assert run.library is not None
            selected.append(str(run.library["selected"]))
            found = {"auto": _outputs(run.model, [bags[i] for i in fold.held])}
            reader = Reader.fitted(train)
            own, rest = [patients[i] for i in fold.rest], objective.part(fold.rest)
            numbers, held = reader.numbers(train), reader.numbers([bags[i] for i in fold.held])
            for candidate, values in numbers.items():
                where = Coordinates.of(values)
                line = fit_chosen(where.rows, rest, own)
                rows = (held[candidate] - where.centre) @ where.back
                found[candidate] = line.outputs(rows, objective)
            for candidate, values in found.items():
                outputs.setdefault(candidate, np.zeros((len(bags), objective.outputs)))[fold.held] = values
        for candidate, values in outputs.items():
            scores.setdefault(candidate, []).append(_score(objective, values, patients))
    counts = {name: selected.count(name) for name in dict.fromkeys(selected)}
    return {
        "cohort": name, "bags": len(bags), "patients": len(set(patients)), "scores": scores, "selected": counts,
        "seconds": seconds / REPEATS,
    }  # fmt: skip


def _outputs(model: Any, bags: list[Bag]) -> np.ndarray:
    with torch.no_grad():
        found = [
            model(bag.features, bag.coords, section=bag.section).logit.double().numpy().reshape(-1) for bag in bags
        ]
    return np.stack(found)


def _score(objective: Classes, outputs: np.ndarray, patients: list[str]) -> float:
    """AUROC with a patient's bags averaged and counted once."""
    first = np.unique([f"{p} {y}" for p, y in zip(patients, objective.labels, strict=True)], return_index=True)[1]
    assert len(patient_weights(patients)) == len(outputs)
    return objective.part(first).score(patient_means(objective, outputs, patients)[first])


def _one_hot(values: Any) -> torch.Tensor:
    kinds = sorted(values.unique(), key=str)
    index = values.map({kind: k for k, kind in enumerate(kinds)}).to_numpy()
    return torch.nn.functional.one_hot(torch.from_numpy(index), len(kinds)).float()


def _bags(table: Any, by: str, x: torch.Tensor, places: np.ndarray, label: Any, patient: Any) -> list[Bag]:
    found = []
    for key, rows in sorted(table.groupby(by).indices.items(), key=lambda item: str(item[0])):
        if key in label:
            at = torch.from_numpy(places[rows]).float()
            found.append(Bag(x[rows], at, "um", str(key), label=int(label[key]), patient_id=str(patient[key])))
    return found


def tnbc(data: Path) -> list[Bag]:
    """Compartmentalised or mixed tumours by cell types, MIBI."""
    import pandas as pd

    cells = pd.read_csv(data / "tnbc/cells.csv.gz")
    label = pd.read_csv(data / "tnbc/labels.csv").set_index("patient").label
    places = cells[["x", "y"]].to_numpy() * (800 / 2048)
    return _bags(cells, "patient", _one_hot(cells.cell_type), places, label, {k: k for k in label.index})


def breast(data: Path) -> list[Bag]:
    """Grade 3 or lower by cell types, imaging mass cytometry."""
    import pandas as pd

    cells = pd.read_parquet(data / "breast_imc_grade/cells.parquet")
    images = pd.read_csv(data / "breast_imc_grade/images.csv").set_index("image_number")
    by = "image_number" if "image_number" in cells else "image"
    places = cells[["x", "y"]].to_numpy()
    return _bags(cells, by, _one_hot(cells.metacluster), places, (images.grade == 3).astype(int), images.patient)


def pancreas(data: Path) -> list[Bag]:
    """Three stages of diabetes by cell types; patients are donors."""
    import pandas as pd

    cells = pd.read_parquet(data / "pancreas_t1d/cells.parquet")
    images = pd.read_csv(data / "pancreas_t1d/images.csv").set_index("imageID")
    stages = {stage: k for k, stage in enumerate(sorted(images.stage.unique()))}
    places = cells[["x", "y"]].to_numpy()
    return _bags(cells, "imageID", _one_hot(cells.cellType), places, images.stage.map(stages), images["case"])


def melanoma(data: Path) -> list[Bag]:
    """Response to checkpoint inhibition by 35 markers."""
    import pandas as pd

    cells = pd.read_parquet(data / "melanoma/cells.parquet")
    samples = pd.read_csv(data / "melanoma/samples.csv").set_index("sample")
    markers = [name for name in cells.columns if name not in ("sample", "x_um", "y_um")]
    x = torch.from_numpy(np.arcsinh(cells[markers].to_numpy(np.float64))).float()
    label = samples.response.str.startswith("Resp").astype(int)
    return _bags(cells, "sample", x, cells[["x_um", "y_um"]].to_numpy(), label, {k: k for k in samples.index})


def dcis(data: Path) -> list[Bag]:
    """Ductal carcinoma in situ that progressed or did not, by tiles of 41 channels."""
    import pandas as pd

    tiles = pd.read_parquet(data / "dcis_mibi/tiles.parquet")
    images = pd.read_csv(data / "dcis_mibi/images.csv").set_index("image")
    images = images[(images.Tissue_Type == "DCIS") & images.Status.isin(["progressor", "nonprogressor"])]
    channels = [name for name in tiles.columns if name not in ("image", "ix", "iy")]
    x = torch.from_numpy(np.log1p(tiles[channels].to_numpy(np.float64))).float()
    places = (tiles[["ix", "iy"]].to_numpy() + 0.5) * 15.6
    return _bags(tiles, "image", x, places, (images.Status == "progressor").astype(int), images.Patient_ID)


def _hipt(data: Path, types: tuple[str, ...]) -> list[Bag]:
    import pandas as pd

    slides = pd.read_csv(data / "tcga_hipt_regions/slides.csv")
    x = np.load(data / "tcga_hipt_regions/features.npz")["features"]
    return [
        Bag(
            torch.from_numpy(x[row.start : row.start + row.n].astype(np.float32)), torch.zeros(row.n, 2), "um",
            str(row.slide), label=types.index(str(row.type)), patient_id=str(row.patient),
        )
        for row in slides[slides.type.isin(types)].itertuples()
    ]  # fmt: skip


def _til(data: Path, folder: str) -> list[Bag]:
    import pandas as pd

    slides = pd.read_csv(data / "tcga_til_maps/slides.csv").set_index("slide")
    slides = slides[(slides.folder == folder) & slides.msi_status.notna()]
    tiles = pd.read_parquet(data / f"tcga_til_maps/{folder}.parquet")
    tiles = tiles[tiles.slide.isin(slides.index)].reset_index(drop=True)
    columns = [
        tiles.n / 16,
        tiles.til_mean / 255,
        tiles.til_max / 255,
        tiles.til_pos.fillna(0) / tiles.n,
        tiles.g_mean / 255,
    ]
    x = torch.from_numpy(np.stack(columns, 1).astype(np.float32))
    places = (tiles[["ix", "iy"]].to_numpy() + 0.5) * 200.0
    return _bags(tiles, "slide", x, places, slides.msi_status.str.startswith("MSI-H").astype(int), slides.patient)


COHORTS: dict[str, tuple[Callable[[Path], list[Bag]], str, str]] = {
    "tnbc": (tnbc, "TNBC, architecture", "development"),
    "breast": (breast, "Breast, grade 3", "development"),
    "pancreas": (pancreas, "Pancreas, three stages", "development"),
    "dcis": (dcis, "DCIS, progression", "validation"),
    "melanoma": (melanoma, "Melanoma, response", "validation"),
    "lung": (lambda data: _hipt(data, ("LUAD", "LUSC")), "LUAD or LUSC", "validation"),
    "kidney": (lambda data: _hipt(data, ("KIRC", "KIRP", "KICH")), "KIRC, KIRP, KICH", "validation"),
    "stomach": (lambda data: _til(data, "stad"), "Stomach, MSI by TIL maps", "validation"),
    "uterus": (lambda data: _til(data, "ucec"), "Uterus, MSI by TIL maps", "validation"),
}


def page(folder: Path) -> str:
    """The tables of all stored cells."""
    cells = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    lines = [
        "### Real cohorts",
        "",
        "| cohort | use | slides | patients | auto | best linear candidate | selected | CPU s |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for name, (_, title, use) in COHORTS.items():
        for cell in (c for c in cells if c.get("cohort") == name):
            means = {k: float(np.mean(v)) for k, v in cell["scores"].items()}
            best = max((k for k in means if k != "auto"), key=means.__getitem__)
            kept = ", ".join(f"{k} {n}" for k, n in cell["selected"].items())
            lines.append(
                f"| {title} | {use} | {cell['bags']} | {cell['patients']} | {means['auto']:.3f} | {means[best]:.3f} "
                f"({best}) | {kept} | {cell['seconds']:.0f} |"
            )
    lines += ["", "### Made cohorts with realistic features", ""]
    lines.append("| condition | draws | auto | ridge on means | ridge on quantiles | AB-MIL | selected | CPU s |")
    lines.append("|---|---|---|---|---|---|---|---|")
    made = [c for c in cells if "condition" in c]
    for validation in (False, True):
        for condition in sorted({c["condition"] for c in made}):
            own = [c for c in made if c["condition"] == condition and (c["draw"] >= 10) == validation]
            if own:
                lines.append(_made_row(condition, own, validation))
    return "\n".join(lines) + "\n"


def write_page(file: Path, folder: Path) -> None:
    """Put the tables between the marks of a page."""
    text = file.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    file.write_text(f"{before}{BEGIN}\n\n{page(folder)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def _made_row(condition: str, own: list[dict[str, Any]], validation: bool) -> str:
    names = ("auto", "ridge on means", "ridge on quantiles", "AB-MIL")
    scores = [f"{np.mean([c['scores'][n] for c in own]):.3f}" for n in names]
    kept = [c["selected"] for c in own]
    shown = ", ".join(f"{k} {kept.count(k)}" for k in dict.fromkeys(kept))
    use = "validation" if validation else "development"
    seconds = np.mean([c["seconds"] for c in own])
    return f"| {condition} | {len(own)} {use} | {' | '.join(scores)} | {shown} | {seconds:.0f} |"


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("generator", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generator"] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Compute the cells that are missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("made", "real", "page"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--draws", default="0,1,2")
    parser.add_argument("--generator", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--page", type=Path, help="the Markdown file that the tables are put into")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if given.kind == "page":
        if given.page is None:
            print(page(given.out))
        else:
            write_page(given.page, given.out)
        return
    for name in given.names:
        for draw in given.draws.split(",") if given.kind == "made" else [""]:
            file = given.out / f"{name}{'-' if draw else ''}{draw}.json"
            if file.exists():
                continue
            cell = (
                made_cell(_load(given.generator), name, int(draw))
                if draw
                else real_cell(COHORTS[name][0](given.data), name)
            )
            write_json(file, cell)
            print(file, {k: np.round(v, 3).tolist() for k, v in cell["scores"].items()}, cell["selected"], flush=True)


if __name__ == "__main__":
    main()
