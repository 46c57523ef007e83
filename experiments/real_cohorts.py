"""Real cohorts as bags, with their covariates; the data are not part of dasmil (real.md says where they come from).

Bags of more than MOST instances are thinned: tiles are pooled to larger tiles by their mean (the cohort says how many),
so that shares and neighbours keep their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import default_training as loaders
import numpy as np
import torch

from dasmil.types import Bag

Values = Mapping[str, list[str | None]]
"""Covariates by name, one value for every bag."""


@dataclass(frozen=True)
class RealCohort:
    """title and question for the page; load: the bags; covariates: table rows by bag, and which columns count.

    source: who published the data; figure: what those who prepared the tables reached with simple rules, by their note.
    """

    title: str
    question: str
    source: str
    load: Callable[[Path], list[Bag]]
    rows: Callable[[Path], Any] | None = None
    covariates: tuple[str, ...] = ()
    survival: bool = False
    figure: str = ""

    def values(self, data: Path, bags: list[Bag]) -> Values:
        """The covariates of every bag as text."""
        if self.rows is None:
            return {}
        table = self.rows(data)
        table.index = table.index.astype(str)
        own = table.loc[[bag.bag_id for bag in bags]]
        return {
            name: [None if value != value or value is None else str(value) for value in own[name]]
            for name in self.covariates
        }


def _csv(name: str, index: str) -> Callable[[Path], Any]:
    def read(data: Path) -> Any:
        import pandas as pd

        return pd.read_csv(data / name).drop_duplicates(index).set_index(index)

    return read


def _timed(bags: list[Bag], times: Any, events: Any) -> list[Bag]:
    """The bags with a time above 0 and a known event."""
    found = []
    for bag in bags:
        time, event = float(times[bag.bag_id]), float(events[bag.bag_id])
        if time > 0 and event in (0.0, 1.0):
            found.append(replace(bag, label=None, targets={"time": time, "event": event}))
    return found


def lung_survival(data: Path) -> list[Bag]:
    """Fields of a patient are sections of one bag; six 0/1 types."""
    import pandas as pd

    cells = pd.read_csv(data / "lung/cells.csv.gz")
    patients = pd.read_csv(data / "lung/patients.csv").set_index("patient")
    bags = []
    for patient, own in cells.groupby("patient"):
        x = torch.from_numpy(own[["ck", "cd8", "cd14", "cd19", "cd4", "other"]].to_numpy(np.float32))
        places = torch.from_numpy(own[["x_um", "y_um"]].to_numpy(np.float32))
        section = torch.from_numpy(pd.factorize(own["image"])[0])
        bags.append(Bag(x, places, "um", str(patient), section=section, patient_id=str(patient)))
    named = {str(key): row for key, row in patients.iterrows()}
    return _timed(bags, {k: row.survival_days for k, row in named.items()}, {k: row.death for k, row in named.items()})


def pooled(frame: Any, names: list[str], side: int, um: float) -> tuple[np.ndarray, np.ndarray]:
    """Means of the columns over squares of side x side tiles of one slide, and the mean place of each in um."""
    square = frame.ix.astype(np.int64) // side * 1_000_000 + frame.iy // side
    means = frame[[*names, "ix", "iy"]].groupby(square.to_numpy()).mean()
    return means[names].to_numpy(np.float32), ((means[["ix", "iy"]] + 0.5) * um).to_numpy(np.float32)


def orion(data: Path) -> list[Bag]:
    """Tiles of 112 um whose largest probability is not background, pooled 4 x 4."""
    import pandas as pd

    tiles = pd.read_parquet(data / "orion_crc/tiles.parquet")
    slides = pd.read_csv(data / "orion_crc/slides.csv").set_index("slide").patient
    patients = pd.read_csv(data / "orion_crc/patients.csv").set_index("patient")
    kinds = ["NORM", "DEB", "TUM", "ADI", "MUC", "MUS", "STR", "LYM"]
    tiles = tiles[tiles[["BACK", *kinds]].to_numpy().argmax(1) > 0]
    bags = []
    for slide, own in tiles.groupby("slide", observed=True):
        x, places = pooled(own, kinds, 4, 112.0)
        patient = str(slides[slide])
        bags.append(Bag(torch.from_numpy(x / 255), torch.from_numpy(places), "um", str(slide), patient_id=patient))
    who = {bag.bag_id: patients.loc[bag.patient_id] for bag in bags}
    return _timed(bags, {k: row.PFSDays for k, row in who.items()}, {k: 1 - row.PFSCensor for k, row in who.items()})


def _orion_rows(data: Path) -> Any:
    import pandas as pd

    slides = pd.read_csv(data / "orion_crc/slides.csv")
    patients = pd.read_csv(data / "orion_crc/patients.csv")
    return slides.merge(patients, on="patient").set_index("slide")


def _til_bags(data: Path, folder: str, slides: Any) -> list[Bag]:
    """Tiles of 200 um with five numbers of the lymphocyte map, pooled 3 x 3."""
    import pandas as pd

    tiles = pd.read_parquet(data / f"tcga_til_maps/{folder}.parquet")
    tiles = tiles[tiles.slide.isin(slides.index)]
    names = ["share", "til_mean", "til_max", "til_pos", "g_mean"]
    tiles = tiles.assign(
        share=tiles.n / 16,
        til_mean=tiles.til_mean / 255,
        til_max=tiles.til_max / 255,
        til_pos=tiles.til_pos.fillna(0) / tiles.n,
        g_mean=tiles.g_mean / 255,
    )
    bags = []
    for slide, own in tiles.groupby("slide", observed=True):
        x, places = pooled(own, names, 3, 200.0)
        patient = str(slides.patient[slide])
        bags.append(Bag(torch.from_numpy(x), torch.from_numpy(places), "um", str(slide), patient_id=patient))
    return bags


def til_msi(folder: str) -> Callable[[Path], list[Bag]]:
    """Microsatellite instability, high or stable (low and indeterminate are left out)."""

    def load(data: Path) -> list[Bag]:
        slides = _csv("tcga_til_maps/slides.csv", "slide")(data)
        slides = slides[(slides.folder == folder) & slides.msi_status.isin(["msi-h", "mss"])]
        bags = _til_bags(data, folder, slides)
        return [replace(bag, label=int(slides.msi_status[bag.bag_id] == "msi-h")) for bag in bags]

    return load


def til_survival(folder: str) -> Callable[[Path], list[Bag]]:
    """Overall survival; the first slide of a patient."""

    def load(data: Path) -> list[Bag]:
        slides = _csv("tcga_til_maps/slides.csv", "slide")(data)
        slides = slides[slides.folder == folder].sort_index()
        slides = slides[~slides.patient.duplicated()]
        return _timed(_til_bags(data, folder, slides), slides["OS.time"], slides.OS)

    return load


def hipt_survival(data: Path) -> list[Bag]:
    """Overall survival with clear-cell kidney cancer; the first slide of a patient."""
    slides = _csv("tcga_hipt_regions/slides.csv", "slide")(data)
    first = slides[~slides.patient.duplicated()]
    bags = [bag for bag in loaders._hipt(data, ("KIRC",)) if bag.bag_id in first.index]
    return _timed(bags, first["OS.time"], first.OS)


def classic(name: str) -> Callable[[Path], list[Bag]]:
    """A set without positions, features as they were published."""

    def load(data: Path) -> list[Bag]:
        import pandas as pd

        rows = pd.read_parquet(data / f"classic_mil/{name}.parquet")
        label = pd.read_csv(data / f"classic_mil/{name}_bags.csv").set_index("bag").label
        label = (label > 0).astype(int)
        x = torch.from_numpy(rows.drop(columns="bag").to_numpy(np.float32))
        return loaders._bags(rows, "bag", x, np.zeros((len(rows), 2)), label, {k: k for k in label.index})

    return load


_CLINIC = ("age", "gender", "stage")
_TIL_ROWS = _csv("tcga_til_maps/slides.csv", "slide")
_HIPT_ROWS = _csv("tcga_hipt_regions/slides.csv", "slide")
_SALTZ = "Saltz et al. 2018 (lymphocyte maps), TCGA"
_HIPT = "Chen et al. 2022 (HIPT features), TCGA"
_DIETTERICH = "Dietterich et al. 1997"
_ANDREWS = "Andrews et al. 2003"
COHORTS: dict[str, RealCohort] = {
    "tnbc": RealCohort("TNBC", "mixed or compartmentalised", "Keren et al. 2018", loaders.tnbc,
                       figure="composition .91, pairs of 10 nearest neighbours .85 (AUROC, leave-one-out)"),
    "breast": RealCohort("Breast IMC", "grade 3 or lower", "Jackson, Fischer et al. 2020", loaders.breast,
                         _csv("breast_imc_grade/images.csv", "image_number"), ("age",),
                         figure="composition .70 [.63, .76], pairs .69 (AUROC)"),
    "pancreas": RealCohort("Pancreas IMC", "three stages of diabetes", "Damond et al. 2019", loaders.pancreas),
    "dcis": RealCohort("DCIS MIBI", "progression", "Risom et al. 2022", loaders.dcis,
                       _csv("dcis_mibi/images.csv", "image"), ("Age", "DCIS_grade", "Necrosis"),
                       figure="mean markers .55 [.50, .64] (AUROC)"),
    "melanoma": RealCohort("Melanoma IMC", "response", "Moldoveanu et al. 2022", loaders.melanoma,
                           _csv("melanoma/samples.csv", "sample"), ("site", "assay")),
    "lung-os": RealCohort("Lung mIF", "survival", "Johnson et al. 2021", lung_survival,
                          _csv("lung/patients.csv", "patient"), ("stage", "age", "gender"), survival=True,
                          figure="composition .605, stage + age + gender .630 (Cox, 20 repeats, C-index)"),
    "orion-pfs": RealCohort("Orion CRC", "progression-free survival", "Lin et al. 2023", orion,
                            _orion_rows, ("Age", "StageAtDiagnosis", "MMRIHC"), survival=True),
    "stomach-msi": RealCohort("Stomach TIL maps", "MSI-H", _SALTZ, til_msi("stad"), _TIL_ROWS, _CLINIC,
                              figure="density .60, + spatial numbers .58 (AUROC)"),
    "uterus-msi": RealCohort("Uterus TIL maps", "MSI-H", _SALTZ, til_msi("ucec"), _TIL_ROWS,
                             ("age", "clinical_stage", "histological_grade"),
                             figure="density .59, + spatial numbers .60 (AUROC)"),
    "melanoma-os": RealCohort("Melanoma TIL maps", "survival", _SALTZ, til_survival("skcm"), _TIL_ROWS, _CLINIC,
                              survival=True),
    "stomach-os": RealCohort("Stomach TIL maps", "survival", _SALTZ, til_survival("stad"), _TIL_ROWS, _CLINIC,
                             survival=True),
    "uterus-os": RealCohort("Uterus TIL maps", "survival", _SALTZ, til_survival("ucec"), _TIL_ROWS,
                            ("age", "clinical_stage", "histological_grade"), survival=True),
    "lung-type": RealCohort("LUAD, LUSC", "which of two types", _HIPT,
                            lambda data: loaders._hipt(data, ("LUAD", "LUSC")), _HIPT_ROWS, _CLINIC,
                            figure="mean pooling + logistic regression .938 (AUROC, 5 folds by patient)"),
    "kidney-type": RealCohort("KIRC, KIRP, KICH", "which of three types", _HIPT,
                              lambda data: loaders._hipt(data, ("KIRC", "KIRP", "KICH")), _HIPT_ROWS, _CLINIC),
    "kidney-os": RealCohort("KIRC", "survival", _HIPT, hipt_survival, _HIPT_ROWS, (*_CLINIC, "histological_grade"),
                            survival=True),
    "musk1": RealCohort("MUSK1", "musk", _DIETTERICH, classic("musk1")),
    "musk2": RealCohort("MUSK2", "musk", _DIETTERICH, classic("musk2")),
    "elephant": RealCohort("Elephant", "picture shows one", _ANDREWS, classic("elephant")),
    "fox": RealCohort("Fox", "picture shows one", _ANDREWS, classic("fox")),
    "tiger": RealCohort("Tiger", "picture shows one", _ANDREWS, classic("tiger")),
    "birds-brcr": RealCohort("Birds BRCR", "song of the brown creeper", "Briggs et al. 2012", classic("birds_BRCR")),
    "birds-wiwr": RealCohort("Birds WIWR", "song of the winter wren", "Briggs et al. 2012", classic("birds_WIWR")),
    "corel": RealCohort("Corel African", "picture of the category", "Chen et al. 2006", classic("corel_african")),
    "mutagenesis1": RealCohort("Mutagenesis 1", "mutagenic", "Srinivasan et al. 1995", classic("mutagenesis1")),
    "mutagenesis2": RealCohort("Mutagenesis 2", "mutagenic", "Srinivasan et al. 1995", classic("mutagenesis2")),
}  # fmt: skip
