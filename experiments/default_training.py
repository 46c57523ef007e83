"""Default training beside simple models, on made cohorts with realistic features and on real cohorts.

    python experiments/default_training.py made share topk --draws 10,11,12 --generator realistic.py --out DIR
    python experiments/default_training.py simple share topk --draws 10,11,12 --generator realistic.py --out DIR
    python experiments/default_training.py real tnbc breast --data DATA --out DIR
    python experiments/default_training.py planted pair infiltration --out DIR
    python experiments/default_training.py null --out DIR
    python experiments/default_training.py sensitivity share topk --draws 0 --generator realistic.py --out DIR
    python experiments/default_training.py page --out DIR --page docs/results/default-training.md

Every cell (a draw of a condition, a cohort) is one file in DIR; cells that are there are not computed again. The
generator is a module with ``make(condition, draw)``, ``score``, ``ridge``, ``summary``, ``spatial_numbers`` and
``outside_abmil``; it and the real cohorts are not part of dasmil.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dasmil
from dasmil.candidates import linear, selection
from dasmil.candidates.evidence import LEVEL, evidence_of
from dasmil.candidates.folds import FOLDS, patient_folds
from dasmil.candidates.linear import TYPES, Reader
from dasmil.candidates.objective import Classes, objective_of
from dasmil.candidates.ridge import PENALTIES, Coordinates, fit_chosen
from dasmil.candidates.selection import STANDARD_ERRORS, patient_means
from dasmil.files import write_json
from dasmil.stats import wilson
from dasmil.tasks import resolve_task
from dasmil.train.feed import Feed
from dasmil.types import Bag

BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
REPEATS = 2
"""Repeats of the outer folds of a real cohort."""
RESAMPLES = 500
"""Bootstrap samples of patients for intervals."""
SHUFFLES = 400
"""Shuffled cohorts whose permutation test is looked at."""


def made_cell(generator: Any, condition: str, draw: int) -> dict[str, Any]:
    """The scores of default training on the test bags of one draw."""
    cohort = generator.make(condition, draw)
    began = time.process_time()
    run = dasmil.fit(cohort.train, task=cohort.task, progress=False, note=lambda text: None)[0]
    seconds = time.process_time() - began
    assert run.library is not None
    said = run.predict(cohort.test)
    row = {
        "condition": condition, "draw": draw, "scores": {"auto": generator.score(cohort, said)},
        "selected": run.library["selected"], "p": run.library["evidence"]["p"], "seconds": seconds,  # pyright: ignore
        "oracle": generator.oracle_score(cohort), "candidates": run.library["candidates"],
        "interval": score_interval(run, cohort.test),
    }  # fmt: skip
    if cohort.task is None and cohort.classes == 2:
        row["calibration"] = calibration(said, cohort.y)
    return row


def simple_cell(generator: Any, condition: str, draw: int) -> dict[str, Any]:
    """The scores of four simple models on the test bags of one draw."""
    cohort = generator.make(condition, draw)
    numbers = {
        "ridge on means": [generator.summary(bags) for bags in (cohort.train, cohort.test)],
        "ridge on quantiles": [generator.summary(bags, "more") for bags in (cohort.train, cohort.test)],
        "neighbour products": generator.spatial_numbers(cohort.train, cohort.test),
    }
    scores = {name: generator.score(cohort, generator.ridge(cohort, *pair)) for name, pair in numbers.items()}
    scores["AB-MIL"] = float(np.mean([generator.score(cohort, one) for one in generator.outside_abmil(cohort)]))
    return {"condition": condition, "draw": draw, "scores": scores}


VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "standard errors 0": {"errors": 0.0},
    "standard errors 0.5": {"errors": 0.5},
    "standard errors 2": {"errors": 2.0},
    "folds 3": {"folds": 3},
    "folds 10": {"folds": 10},
    "types 8": {"types": 8},
    "types 32": {"types": 32},
    "ridges 10 to 10,000": {"penalties": (1e4, 1e3, 1e2, 1e1)},
}
"""Other values of the constants of default training, one at a time."""


def sensitivity_cell(generator: Any, condition: str, draw: int) -> dict[str, Any]:
    """The scores of the selected linear candidate on the test bags with other values of the constants."""
    cohort = generator.make(condition, draw)
    task = resolve_task(cohort.task, cohort.train)
    feed = Feed(cohort.train, torch.device("cpu"), memory_gb=4.0, name="training", task=task)
    task = feed.facts.task.fitted(feed.facts.targets)
    objective, patients = objective_of(task, feed.facts.targets), feed.facts.patients
    test = Feed(cohort.test, torch.device("cpu"), memory_gb=4.0, name="test", task=task)
    asked, first = objective_of(task, test.facts.targets), np.unique(test.facts.patients, return_index=True)[1]
    read: dict[int, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = {}
    scores: dict[str, float] = {}
    selected: dict[str, str] = {}
    for name, given in VARIANTS.items():
        linear.TYPES = given.get("types", TYPES)
        selection.STANDARD_ERRORS = given.get("errors", STANDARD_ERRORS)
        penalties = given.get("penalties", PENALTIES)
        if linear.TYPES not in read:
            reader = Reader.fitted(cohort.train)
            read[linear.TYPES] = reader.numbers(cohort.train), reader.numbers(cohort.test)
        train, held = read[linear.TYPES]
        folds = patient_folds(objective, patients, count=given.get("folds", FOLDS))
        constant = np.zeros((len(patients), objective.outputs))
        outputs = {candidate: constant.copy() for candidate in train}
        for fold in folds:
            rest, own = objective.part(fold.rest), [patients[i] for i in fold.rest]
            constant[fold.held] = fit_chosen(np.zeros((len(own), 1)), rest, own).constant
            for candidate, values in train.items():
                rows = Coordinates.of(values).rows
                line = fit_chosen(rows[fold.rest], rest, own, penalties)
                outputs[candidate][fold.held] = line.outputs(rows[fold.held], objective)
        kept = selection.select(outputs, constant, objective, patients).name
        where = Coordinates.of(train[kept])
        line = fit_chosen(where.rows, objective, patients, penalties)
        said = line.outputs((held[kept] - where.centre) @ where.back, objective)
        means = patient_means(asked, said, test.facts.patients)
        scores[name], selected[name] = asked.part(first).score(means[first]), kept
    return {"sensitivity": condition, "draw": draw, "scores": scores, "kept": selected}


def planted_cell(name: str) -> dict[str, Any]:
    """Default training on 100 slides of a cohort of `mechanisms.py` (draw 1), scored on 100 others."""
    from mechanisms import COHORTS as PLANTED

    cohort = replace(PLANTED[name], slides=2 * PLANTED[name].slides)
    bags = cohort.bags(1)
    train, test = bags[: len(bags) // 2], bags[len(bags) // 2 :]
    began = time.process_time()
    run = dasmil.fit(train, progress=False, note=lambda text: None)[0]
    seconds = time.process_time() - began
    assert run.library is not None
    labels = np.array([bag.label for bag in test])
    return {
        "planted": name, "title": cohort.title, "slides": len(train), "selected": run.library["selected"],
        "scores": {"auto": Classes(labels, 2).score(_outputs(run.model, test))}, "seconds": seconds,
        "p": run.library["evidence"]["p"], "interval": score_interval(run, test),  # pyright: ignore
        "candidates": run.library["candidates"], "lengths": _lengths(run.model),
    }  # fmt: skip


def _lengths(model: Any) -> list[float]:
    """Learned lengths of the members that are attention."""
    found = []
    for _, member in model.members:
        if hasattr(member, "learned_distances"):
            found += [float(row["midpoint"]) for row in member.learned_distances()[:1]]
    return found


def null_cell() -> dict[str, Any]:
    """How often the permutation test finds something where the outcomes of patients are shuffled.

    120 patients with up to three bags of correlated, heavy-tailed features; the numbers of all linear candidates.
    """
    rng = np.random.default_rng(0)
    bags = []
    turn = rng.normal(size=(24, 24)) / np.sqrt(24)
    for patient in range(120):
        own = rng.normal(size=24)
        for number in range(int(rng.integers(1, 4))):
            x = (0.5 * own + rng.standard_t(4, size=(60, 24))) @ turn
            bags.append(
                Bag(
                    torch.from_numpy(x).float(), torch.from_numpy(1000 * rng.random((60, 2))).float(), "um",
                    f"b{patient}-{number}", label=patient % 3 == 0, patient_id=f"p{patient}",
                )
            )  # fmt: skip
    numbers = Reader.fitted(bags).numbers(bags)
    patients = [str(bag.patient_id) for bag in bags]
    names = list(dict.fromkeys(patients))
    own = np.array([names.index(patient) for patient in patients])
    labels = (np.arange(120) % 3 == 0).astype(int)
    constant = np.zeros((len(bags), 1))
    p = [
        evidence_of(numbers, Classes(rng.permutation(labels)[own], 2), patients, [], constant, seed).p
        for seed in range(SHUFFLES)
    ]
    return {"null": "linear candidates", "p": p, "scores": {"found": float(np.mean(np.array(p) <= LEVEL))}}


def score_interval(run: Any, bags: list[Bag]) -> list[float]:
    """The 95 % interval of the score of a run by a bootstrap of test patients."""
    feed = Feed(bags, torch.device("cpu"), memory_gb=4.0, name="test", task=run.task)
    objective, patients = objective_of(run.task, feed.facts.targets), feed.facts.patients
    first = np.unique(patients, return_index=True)[1]
    outputs = patient_means(objective, _outputs(run.model, bags), patients)
    return _interval(lambda rows: objective.part(first[rows]).score(outputs[first[rows]]), len(first))


def _interval(score: Callable[[np.ndarray], float], patients: int) -> list[float]:
    rng = np.random.default_rng(0)
    found = [score(rng.integers(patients, size=patients)) for _ in range(RESAMPLES)]
    return np.nanquantile(found, [0.025, 0.975]).tolist()


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
    every: list[dict[str, np.ndarray]] = []
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
        every.append({name: patient_means(objective, values, patients) for name, values in outputs.items()})
    best = max((name for name in scores if name != "auto"), key=lambda name: float(np.mean(scores[name])))
    first = _first(objective, patients)

    def gain(rows: np.ndarray) -> float:
        some, own = first[rows], objective.part(first[rows])
        return float(np.mean([own.score(one["auto"][some]) - own.score(one[best][some]) for one in every]))

    counts = {name: selected.count(name) for name in dict.fromkeys(selected)}
    return {
        "cohort": name, "bags": len(bags), "patients": len(set(patients)), "scores": scores, "selected": counts,
        "seconds": seconds / REPEATS, "gain": _interval(gain, len(first)),
    }  # fmt: skip


def _outputs(model: Any, bags: list[Bag]) -> np.ndarray:
    with torch.no_grad():
        found = [
            model(bag.features, bag.coords, section=bag.section).logit.double().numpy().reshape(-1) for bag in bags
        ]
    return np.stack(found)


def _score(objective: Classes, outputs: np.ndarray, patients: list[str]) -> float:
    """AUROC with a patient's bags averaged and counted once."""
    first = _first(objective, patients)
    return objective.part(first).score(patient_means(objective, outputs, patients)[first])


def _first(objective: Classes, patients: list[str]) -> np.ndarray:
    """The first bag of every patient with a label."""
    return np.unique([f"{p} {y}" for p, y in zip(patients, objective.labels, strict=True)], return_index=True)[1]


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


SIMPLE = ("ridge on means", "ridge on quantiles", "neighbour products", "AB-MIL")


def page(folder: Path) -> str:
    """The tables of all stored cells."""
    cells = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    lines = [
        "### Real cohorts",
        "",
        "| cohort | use | slides | patients | auto | best linear candidate | auto - best, 95 % | selected | CPU s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (_, title, use) in COHORTS.items():
        for cell in (c for c in cells if c.get("cohort") == name):
            means = {k: float(np.mean(v)) for k, v in cell["scores"].items()}
            best = max((k for k in means if k != "auto"), key=means.__getitem__)
            kept = ", ".join(f"{k} {n}" for k, n in cell["selected"].items())
            low, high = cell["gain"]
            lines.append(
                f"| {title} | {use} | {cell['bags']} | {cell['patients']} | {means['auto']:.3f} | {means[best]:.3f} "
                f"({best}) | {means['auto'] - means[best]:+.3f} [{low:+.3f}, {high:+.3f}] | {kept} | "
                f"{cell['seconds']:.0f} |"
            )
    lines += ["", "### Made cohorts with realistic features", ""]
    lines.append(
        "| condition | draws | auto, 95 % | ridge on means | on quantiles | neighbour products | AB-MIL | auto - best "
        "| selected | slope | ECE | CPU s |"
    )
    lines.append("|---" * 12 + "|")
    simple = {(c["condition"], c["draw"]): c["scores"] for c in cells if "condition" in c and "selected" not in c}
    made = [c for c in cells if "condition" in c and "selected" in c]
    for validation in (False, True):
        for condition in sorted({c["condition"] for c in made}):
            own = [c for c in made if c["condition"] == condition and (c["draw"] >= 10) == validation]
            if own:
                lines.append(_made_row(condition, own, [simple.get((condition, c["draw"])) for c in own], validation))
    lines += ["", "### Planted mechanisms", ""]
    lines.append("| cohort | auto, 95 % | selected | lengths, um | p | CPU s |")
    lines.append("|---|---|---|---|---|---|")
    for cell in (c for c in cells if "planted" in c):
        low, high = cell["interval"]
        lengths = f"{min(cell['lengths']):.0f} to {max(cell['lengths']):.0f}" if cell["lengths"] else ""
        lines.append(
            f"| {cell['title']} | {cell['scores']['auto']:.3f} [{low:.3f}, {high:.3f}] | {cell['selected']} "
            f"| {lengths} | {cell['p']:.3f} | {cell['seconds']:.0f} |"
        )
    for cell in (c for c in cells if "null" in c):
        found, count = cell["scores"]["found"], len(cell["p"])
        low, high = wilson(found, count)
        lines += ["", "### Shuffled outcomes", ""]
        lines.append(
            f'"Better than chance" in {100 * found:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {count} shuffles.'
        )
    varied = [c for c in cells if "sensitivity" in c]
    if varied:
        lines += ["", "### Sensitivity to the constants", ""]
        shown = ", ".join(f"{c['sensitivity']} {c['draw']}" for c in varied)
        lines += [f"Linear candidates on these development draws: {shown}.", ""]
        lines += ["| constant | mean score | lowest difference to the first row |", "|---|---|---|"]
        usual = np.array([c["scores"]["as it is"] for c in varied])
        for name in VARIANTS:
            own = np.array([c["scores"][name] for c in varied])
            lines.append(f"| {name} | {own.mean():.3f} | {(own - usual).min():+.3f} |")
    return "\n".join(lines) + "\n"


def write_page(file: Path, folder: Path) -> None:
    """Put the tables between the marks of a page."""
    text = file.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    file.write_text(f"{before}{BEGIN}\n\n{page(folder)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def _made_row(
    condition: str, own: list[dict[str, Any]], simple: list[dict[str, float] | None], validation: bool
) -> str:
    """The means over draws; the ends of the interval, too, are means."""
    auto = float(np.mean([c["scores"]["auto"] for c in own]))
    low, high = np.mean([c["interval"] for c in own], axis=0)
    means = {n: float(np.mean([s[n] for s in simple if s])) for n in SIMPLE} if all(simple) else {}
    scores = [f"{means[n]:.3f}" if means else "" for n in SIMPLE]
    gain = f"{auto - max(means.values()):+.3f}" if means else ""
    kept = [c["selected"] for c in own]
    shown = ", ".join(f"{k} {kept.count(k)}" for k in dict.fromkeys(kept))
    use = "validation" if validation else "development"
    told = [c["calibration"] for c in own if "calibration" in c]
    slope, ece = (f"{np.mean([c[key] for c in told]):.2f}" if told else "" for key in ("slope", "ece"))
    seconds = np.mean([c["seconds"] for c in own])
    return (
        f"| {condition} | {len(own)} {use} | {auto:.3f} [{low:.3f}, {high:.3f}] | {' | '.join(scores)} | {gain} "
        f"| {shown} | {slope} | {ece} | {seconds:.0f} |"
    )


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
    parser.add_argument("kind", choices=("made", "simple", "real", "planted", "null", "sensitivity", "page"))
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
    if given.kind == "real":
        for name in given.names:
            _stored(given.out / f"{name}.json", lambda name=name: real_cell(COHORTS[name][0](given.data), name))
        return
    if given.kind == "planted":
        for name in given.names:
            _stored(given.out / f"planted-{name}.json", lambda name=name: planted_cell(name))
        return
    if given.kind == "null":
        _stored(given.out / "null.json", null_cell)
        return
    compute = {"made": made_cell, "simple": simple_cell, "sensitivity": sensitivity_cell}[given.kind]
    before = "" if given.kind == "made" else f"{given.kind}-"
    generator = _load(given.generator)
    for draw in map(int, given.draws.split(",")):
        for name in given.names:
            file = given.out / f"{before}{name}-{draw}.json"
            _stored(file, lambda name=name, draw=draw: compute(generator, name, draw))


def _stored(file: Path, compute: Callable[[], dict[str, Any]]) -> None:
    """Compute a cell unless its file is there."""
    if file.exists():
        return
    cell = compute()
    write_json(file, cell)
    scores = {name: np.round(score, 3).tolist() for name, score in cell["scores"].items()}
    print(file.name, scores, cell.get("selected", ""), flush=True)


if __name__ == "__main__":
    main()
