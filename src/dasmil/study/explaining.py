"""One bag of a run explained: the model that speaks for it, its account, and the files that show it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasmil.attribution import explain
from dasmil.attribution.export import summary
from dasmil.attribution.ground import Ground, layout_of
from dasmil.attribution.units import in_unit
from dasmil.errors import StorageError, unknown_name
from dasmil.models import read_model
from dasmil.models.base import MILModel
from dasmil.report.explanation.bundle import write_bundle
from dasmil.report.explanation.heatmap import map_figure
from dasmil.runs import Speaker, verdict_of
from dasmil.study.ground import ground_of
from dasmil.study.lookup import find_bag
from dasmil.study.notes import Note, silent
from dasmil.study.spec import BagSpec
from dasmil.types import Bag, Explanation
from dasmil.vocabulary import A_CLASS, Meaning

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class BagAnswer:
    """What a run says about one bag, and which of its models says it; caveat: what the run has not shown."""

    run: Path
    bag: Bag
    speaker: Speaker
    model: MILModel
    explanation: Explanation
    ground: Ground | None
    caveat: str
    doubtful: bool
    meaning: Meaning = A_CLASS
    """What the explained output says; a number is explained in its unit."""

    @property
    def classes(self) -> list[str]:
        task = self.speaker.task
        if task is not None:
            return task.output_names()
        return [str(name) for name in self.speaker.origin.get("classes") or ()]

    @property
    def origin(self) -> str:
        """Which model explains and what the bag was to it; empty for a lone model file."""
        return self.speaker.describe(self.bag.bag_id) if self.speaker.seed is not None else ""

    def plot(self, score: str = "contribution") -> Figure:
        """The map of a score as a matplotlib figure with scale bar and colour bar, over the slide where there is one.

        Example: ``dasmil.explain_bag("runs/mine", "slide1").plot().savefig("map.pdf")``
        """
        if score not in self.explanation.scores:
            raise unknown_name("score", score, self.explanation.scores)
        values = self.explanation.scores[score].double().cpu().numpy()
        return map_figure(layout_of(self.bag, self.ground), values, score, self.ground, meaning=self.meaning)

    def __repr__(self) -> str:
        return f"BagAnswer({self.bag.bag_id!r}, {self.explanation!r})"

    def as_json(self) -> dict[str, Any]:
        seed = self.speaker.seed
        whose = {
            "fold": self.speaker.fold, "seed": None if seed is None else seed.number,
            "set": self.speaker.sets.get(self.bag.bag_id), "caveat": self.caveat or None,
            "of": self.meaning.quantity,
        }  # fmt: skip
        return summary(self.explanation) | whose

    def write(self, folder: str | Path, score: str = "contribution") -> list[Path]:
        """Page, maps, CSV, JSON and GeoJSON; returns the files, page first."""
        if score not in self.explanation.scores:
            raise unknown_name("score", score, self.explanation.scores)
        folder = make_folder(folder)
        slides = self.bag.metadata.get("slides")
        joined = {} if slides is None else {"slides": slides}  # sections are in this order
        return write_bundle(
            folder, self.model, self.bag, self.explanation, score=score, ground=self.ground, classes=self.classes,
            origin=self.origin, caveat=self.caveat, doubtful=self.doubtful, meaning=self.meaning,
            extra={"run": self.run.name, **joined},
        )  # fmt: skip


def explain_bag(
    run: str | Path,
    name: str,
    *,
    bags: BagSpec | None = None,
    seed: int | None = None,
    slide: str | Path | None = None,
    method: str = "auto",
    target: int | None = None,
    top: int = 100,
    attention: bool | None = None,
    mnist_dir: Path | None = None,
    note: Note = silent,
) -> BagAnswer:
    """Explain a bag by the model of the run that speaks for it, as `dasmil explain RUN --bag NAME`.

    Example: ``dasmil.explain_bag("runs/mine", "slide1").write("explanation-slide1")``

    The bag is found as by ``find_bag``: of a cross-validation the fold that held it out explains. slide: the picture
    under the map. method, target, top, attention: those of ``dasmil.explain``.
    """
    bag, speaker = find_bag(run, name, seed=seed, bags=bags, mnist_dir=mnist_dir, note=note)
    ground = ground_of(bag, None if slide is None else Path(slide))
    return answer(Path(run), bag, speaker, ground, method=method, target=target, top=top, attention=attention)


def answer(run: Path, bag: Bag, speaker: Speaker, ground: Ground | None, **options: Any) -> BagAnswer:
    """What this model of the run says about a bag; options: those of ``dasmil.explain``."""
    model = read_model(speaker.model_file)
    judged, task = verdict_of(run), speaker.task
    explanation = explain(model, bag, **options)
    meaning = A_CLASS if task is None else task.meaning(explanation.target)
    return BagAnswer(
        run, bag, speaker, model, in_unit(explanation, meaning), ground,
        (judged.caveat or "") if judged else "", judged is not None and not judged.told, meaning,
    )  # fmt: skip


def make_folder(folder: str | Path) -> Path:
    """The folder, made if it is not there."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {folder}: {error}") from error
    return Path(folder)
