"""Which bags, which labels, which scale: records that say where a cohort is, and that serialise once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from dasmil.data.cohort import Cohort
    from dasmil.data.columns import FurtherColumns
    from dasmil.data.labels import LabelRow
    from dasmil.data.restrict import Restriction
    from dasmil.data.scale import Scales
    from dasmil.data.targets import Request
    from dasmil.tasks import Task
    from dasmil.types import Bag

    class PathText:
        """A path that may be given as text: a type checker lets both in and sees a Path."""

        def __get__(self, instance: object, owner: object = None) -> Path | None: ...

        def __set__(self, instance: object, value: str | Path | None) -> None: ...

    class Names:
        """Names that may be given as a list, or as one text separated by commas: read, they are a tuple."""

        def __get__(self, instance: object, owner: object = None) -> tuple[str, ...] | None: ...

        def __set__(self, instance: object, value: str | Sequence[str | float] | None) -> None: ...

    NO_PATH, NO_NAMES = PathText(), Names()
else:
    PathText, NO_PATH = Path | None, None
    Names, NO_NAMES = tuple[str, ...] | None, None

PATHS = ("bags", "labels", "slide_table", "scale_table", "roi", "exclude")
NAMES = ("classes", "map", "times", "target_columns", "feature_columns", "covariates")


@dataclass(frozen=True, kw_only=True)
class BagSpec:
    """Which bags, which labels, and what the files do not say themselves.

    Parameters
    ----------
    bags
        Folder of feature files (dasmil, CLAM, TRIDENT, STAMP, marugoto, slideflow or slide2vec; the format is
        recognised), or cells: a table (.csv, .parquet, .h5ad) or a folder of files (QuPath, GeoJSON, Xenium, zarr).
    labels
        Table (CSV, Excel, Parquet) with slide, label, and optionally patient and split. CLAM's and STAMP's work too.
    slide_table
        Table of slides and their patients, if --labels is a table of patients (as STAMP's), or without labels.
    slide_column
        Column with the slide, if it is not recognised.
    label_column
        Column with the label.
    patient_column
        Column with the patient.
    classes
        Class names (or grades) in order, separated by commas; the first is class 0. Default: numbers by value, words by
        alphabet, the positive one of two last.
    map
        Other names of classes in the label table, separated by commas: Tumour=tumor,Healthy=normal.
    mpp
        Micrometres per level-0 pixel, if the files do not state it; 'nominal' means 10 um / magnification.
    tile_um
        Edge of a tile in micrometres, if the files do not state it.
    scale_table
        CSV with slide and any of mpp, tile_um, width_px, height_px, if slides differ.
    task
        classification (the label column), survival (--time-column, --event-column), regression, ordinal (grades; their
        order with --classes) or multilabel (--target-columns). Default: what the given columns say.
    time_column
        Survival: column with the time until the event, or until the patient was last seen.
    event_column
        Survival: column that says whether the event was seen: 1 or 0, true or false, dead or alive.
    time_unit
        Unit of the times (or of a regression's number) in the report: days, months.
    survival
        Survival: hazards (bins of time, one output each) or cox (one log-risk).
    time_bins
        Survival: number of bins of the event times (4).
    times
        Survival: times for AUROC and calibration, separated by commas. Default: the quartiles of the event times.
    target_columns
        Regression: the column with the number. Several targets: columns separated by commas; a column of words or of
        at most 10 different values is classes, else a number, unless name:classes, name:number or name:ordinal says so.
    number_loss
        Regression: huber or squared.
    per_patient
        Join the slides of a patient into one bag. Each slide is a section; sections have no distance between them.
    max_instances
        Use at most this many random instances of a bag (the paper: 6,000). Default: all.
    strict
        Stop if a slide has no label, a label has no slide, or a slide cannot be read. Default: leave it out.
    accept
        Accept these errors of `dasmil doctor`, by name, separated by commas: mixed-encoders, same-slides.
    bag_column
        Column that names the bag.
    x_column
        Column with x (default: x).
    y_column
        Column with y (default: y).
    one_hot
        Column of categories (cell types) to use as features.
    feature_columns
        Columns of numbers to use as features, separated by commas.
    unit
        Unit of the positions, if the table does not state it: um or px (px needs --mpp).
    roi
        Annotations: use only instances at least half inside. A folder of files named after their slides (QuPath's
        GeoJSON, ASAP's XML, CSV with x, y and class), or one CSV with a column slide. Slides without a file are used
        whole.
    roi_class
        Classes of --roi that count, separated by commas; default all.
    exclude
        Annotations, as --roi: leave out instances at least half inside.
    exclude_class
        Classes of --exclude that count, separated by commas; default all.
    """

    bags: PathText = NO_PATH
    labels: PathText = NO_PATH
    slide_table: PathText = NO_PATH
    slide_column: str | None = None
    label_column: str | None = None
    patient_column: str | None = None
    classes: Names = NO_NAMES
    map: Names = NO_NAMES
    mpp: str | float | None = None
    tile_um: float | None = None
    scale_table: PathText = NO_PATH
    task: str | None = None
    time_column: str | None = None
    event_column: str | None = None
    time_unit: str | None = None
    survival: str | None = None
    time_bins: int | None = None
    times: Names = NO_NAMES
    target_columns: Names = NO_NAMES
    number_loss: str | None = None
    per_patient: bool = False
    max_instances: int | None = None
    strict: bool = False
    accept: str | None = None
    bag_column: str | None = None
    x_column: str | None = None
    y_column: str | None = None
    one_hot: str | None = None
    feature_columns: Names = NO_NAMES
    unit: str | None = None
    roi: PathText = NO_PATH
    roi_class: str | None = None
    exclude: PathText = NO_PATH
    exclude_class: str | None = None

    def __post_init__(self) -> None:
        for name in PATHS:
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, Path(value))
        for name in NAMES:
            if (value := getattr(self, name, None)) is not None:
                parts = value.split(",") if isinstance(value, str) else map(str, value)
                object.__setattr__(self, name, tuple(text for part in parts if (text := part.strip())))

    def given(self) -> dict[str, Any]:
        """What differs from the defaults."""
        defaults = type(self)()
        return {name: value for name, value in asdict(self).items() if value != getattr(defaults, name)}

    def as_record(self) -> dict[str, Any]:
        """What was given, JSON-able, paths made absolute: enough to load it again."""
        return {name: _recorded(value) for name, value in self.given().items()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The specification that ``as_record`` noted; other entries of the record are not ours."""
        own = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in record.items() if name in own})

    def read_labels(self, classes: Sequence[str] | None = None) -> list[LabelRow] | None:
        """The label table, or None without one; ``classes`` are labels whatever they are called."""
        from dasmil.data.labels import read_labels, renamed

        if self.labels is None:
            return None
        rows = read_labels(self.labels, slide_table=self.slide_table, classes=classes or (), **self._columns())
        return rows if self.map is None else renamed(rows, self.map)

    def asked(self) -> Request | None:
        """The task that columns and options name; None for classification."""
        from dasmil.data.targets import Request
        from dasmil.errors import InputError

        asked = Request.of(
            self.task, self.time_column, self.event_column, self.target_columns, unit=self.time_unit,
            method=self.survival, bins=self.time_bins, loss=self.number_loss, times=self.times, classes=self.classes,
        )  # fmt: skip
        named = (self.label_column, self.map, self.classes if self.task != "ordinal" else None)
        if asked is not None and any(given is not None for given in named):
            raise InputError(f"--label-column, --classes and --map are for classification, the task is {asked.kind}")
        return asked

    def read_task(self, known: Task | None = None) -> tuple[list[LabelRow] | None, Task | None]:
        """The rows of the label table with the values of the task, and the task; known: that of a run."""
        from dasmil.data.targets import read_task_labels

        asked = self.asked()
        if asked is None or self.labels is None:
            return None, None if asked is None else known
        columns = {name: value for name, value in self._columns().items() if name != "label_column"}
        return read_task_labels(self.labels, asked, known, slide_table=self.slide_table, **columns)

    def _slide_column(self) -> str | None:
        """Which column of the label table names the bags: of cells the one of --bag-column, if it has no other."""
        from dasmil.data.labels import names_bags

        if self.slide_column is not None or None in (self.bag_column, self.labels) or self.slide_table is not None:
            return self.slide_column
        assert self.bag_column is not None
        assert self.labels is not None
        return self.bag_column if names_bags(self.labels, self.bag_column) else None

    def _columns(self) -> dict[str, str | None]:
        return {
            "slide_column": self._slide_column(), "label_column": self.label_column,
            "patient_column": self.patient_column,
        }  # fmt: skip

    def _class_order(self) -> dict[str, Any]:
        return {}

    def load(
        self,
        labels: list[LabelRow] | None = None,
        categories: list[str] | None = None,
        classes: Sequence[str] | None = None,
        read_all: bool = False,
        task: Task | None = None,
        memory_gb: float | None = None,
    ) -> Cohort:
        """The cohort; ``labels`` stand in for the table, ``categories`` fix the features of a table of cells.

        classes: those of a run in their order, in place of --classes. read_all: also leave out slides with NaN
        features, for which every file is read. task: that of a run, where it is known. memory_gb: kept at most.
        """
        from dasmil.data.checks import refuse
        from dasmil.data.cohort import load_cohort
        from dasmil.data.labels import read_patients
        from dasmil.data.scale import read_scales
        from dasmil.errors import InputError

        if self.bags is None:
            raise InputError("no bags: give --bags FOLDER (feature files) or --bags TABLE (cells)")
        order = self._class_order() if classes is None else {}
        if classes is None:
            classes = self.classes
        rows, task = self.read_task(task) if labels is None else (labels, None)
        if rows is None and task is None:
            rows = self.read_labels(classes)
        options: dict[str, Any] = {
            "classes": classes, "per_patient": self.per_patient, "max_instances": self.max_instances,
            "strict": self.strict, "task": task, "restriction": self.restriction(), **order,
        }  # fmt: skip
        if rows is None and self.slide_table is not None:
            options["patients"] = read_patients(self.slide_table, self.slide_column, self.patient_column)
        from dasmil.data.tables import is_table

        scales = read_scales(self.mpp, self.tile_um, self.scale_table)
        if is_table(self.bags):
            cohort = load_cohort(self._read_table(scales, categories), rows, read_all=read_all, **options)
        else:
            if memory_gb is not None:
                options["memory_gb"] = memory_gb
            cohort = load_cohort(self.bags, rows, scales=scales, read_all=read_all, **options)
        refuse(cohort.report.findings, self.accepted)
        return cohort

    @property
    def accepted(self) -> list[str]:
        """The checks that ``accept`` names."""
        return [name for part in (self.accept or "").split(",") if (name := part.strip())]

    def restriction(self) -> Restriction | None:
        """The regions inside or outside of which instances are used; None where none were given."""
        from dasmil.data.restrict import read_restriction
        from dasmil.errors import InputError

        for classes, path in (("roi_class", self.roi), ("exclude_class", self.exclude)):
            if getattr(self, classes) is not None and path is None:
                option = f"--{classes.partition('_')[0]}"
                raise InputError(f"{option}-class chooses among the classes of {option}: give that too")

        def split(text: str | None) -> list[str]:
            return [name for part in (text or "").split(",") if (name := part.strip())]

        return read_restriction(self.roi, self.exclude, split(self.roi_class), split(self.exclude_class))

    def read_cells(self) -> list[Bag]:
        """The bags of a table, or of files, of cells, without labels."""
        from dasmil.data.scale import read_scales

        return self._read_table(read_scales(self.mpp, self.tile_um, self.scale_table), None)

    def _read_table(self, scales: Scales, categories: list[str] | None) -> list[Bag]:
        from dasmil.data.tables import read_table
        from dasmil.errors import InputError

        assert self.bags is not None
        if scales.default.nominal:
            raise InputError(f"mpp is {self.mpp!r}, expected the micrometres of one pixel")
        return read_table(
            self.bags, bag=self.bag_column, unit=self.unit, x=self.x_column, y=self.y_column,
            features=self.feature_columns, one_hot=self.one_hot, um_per_unit=scales.default.mpp, scales=scales,
            categories=categories,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CohortSpec(BagSpec):
    """Bags to train on: these may be split by their label table.

    Parameters
    ----------
    positive
        Positive class of two, class 1. Default: by the usual words (tumour, not normal), else the larger
        number or the later in the alphabet.
    split_column
        Name of the column with train, val or test.
    site_column
        Name of the column with the site (hospital, scanner) of a slide: splits and folds then keep every site on one
        side.
    covariates
        Columns of the label table, separated by commas (age,stage,gender): the report then has regressions on them
        beside the model, alone and together with it.
    """

    positive: str | None = None
    split_column: str | None = None
    site_column: str | None = None
    covariates: Names = NO_NAMES

    def further(self, names: Sequence[str], option: str, *, by_slide: bool = False) -> FurtherColumns:
        """Further columns of the label table; option: what named them; by_slide: slides of a patient may differ."""
        from dasmil.data.columns import read_columns
        from dasmil.errors import InputError

        if self.labels is None:
            raise InputError(f"{option} names columns of a label table: give --labels too")
        return read_columns(
            self.labels, names, slide_table=self.slide_table, slide_column=self._slide_column(),
            patient_column=self.patient_column, option=option, by_slide=by_slide,
        )  # fmt: skip

    def _class_order(self) -> dict[str, Any]:
        from dasmil.errors import InputError

        if self.positive is not None and self.classes is not None:
            raise InputError("--positive and --classes both order the classes: give one of them")
        if self.asked() is not None:
            if self.positive is not None:
                raise InputError("--positive is for classification: leave it out")
            return {}
        return {"positive": self.positive}

    def _columns(self) -> dict[str, str | None]:
        return {**super()._columns(), "split_column": self.split_column}


def _recorded(value: Any) -> Any:
    """A value as a run notes it; names in one text, unless one of them has a comma."""
    if isinstance(value, tuple):
        return list(value) if any("," in name for name in value) else ",".join(value)
    return str(value.absolute()) if isinstance(value, Path) else value


def cohort_lines(cohort: Cohort, given: str = "") -> list[str]:
    """What was joined, what was left over, how positions were read, which class is positive (given: who said so)."""
    from dasmil.data.positive import positive_text
    from dasmil.errors import named

    lines = cohort.report.lines()
    if len(cohort):
        lines.append(f"Positions read as {cohort.positions}")
        if not cohort.entries[0].paths and (names := cohort[0].metadata.get("feature_names")):
            lines.append(f"Features of a cell: {named(names)}")
    if cohort.task is not None:
        return [*lines, cohort.task.text, *_targets_described(cohort, cohort.task)]
    if cohort.classes:
        lines.append("Classes: " + ", ".join(f"{i} = {name}" for i, name in enumerate(cohort.classes)))
    if positive := positive_text(cohort.classes, given):
        lines.append(positive)
    return lines


def _targets_described(cohort: Cohort, task: Task) -> list[str]:
    """A line for each target: one row a patient, that of its first slide."""
    from dasmil.data.doctor_tasks import described, numbers_of

    first = {
        entry.patient_id or f"slide {entry.bag_id}": entry.targets
        for entry in reversed(cohort.entries)
        if entry.targets
    }
    return described(task, numbers_of(first.values())) if first else []
