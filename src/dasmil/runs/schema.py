"""What the files of a run hold: JSON objects with these fields; fields of other versions are kept as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from dasmil.errors import DataError, shown

FORMAT = "dasmil-run"
FORMAT_VERSION = 1


def _float_or_none(value: Any) -> Any:
    if value is not None and not isinstance(value, (int, float)):
        raise ValueError(f"expected a number or null, found {value!r}")
    return value


def _real(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"expected a number, found {shown(value, 60)}")
    return value


Real = Annotated[Any, AfterValidator(_real)]
"""A number as it is, no text that reads like one."""
Number = Annotated[Any, AfterValidator(_float_or_none)]
"""A float, or None where the value does not exist (JSON has no NaN)."""
Values = dict[str, Number]
"""A value per metric."""


class _Record(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # pyright: ignore[reportGeneralTypeIssues]


class ModelRecord(_Record):
    """The model of a run and its resolved options."""

    name: str
    preset: NotRequired[str | None]
    options: NotRequired[dict[str, Any]]


class OriginRecord(_Record):
    """Where the bags of a run come from: a built-in data set, or a cohort of one's own."""

    name: NotRequired[str]
    protocol: NotRequired[str]
    options: NotRequired[dict[str, Any] | None]
    bags: NotRequired[str]
    set: NotRequired[str]
    classes: NotRequired[list[str] | None]
    task: NotRequired[dict[str, Any] | None]
    split_seed: NotRequired[int]
    cohort: NotRequired[dict[str, Any]]
    scale: NotRequired[dict[str, list[float]]]
    held_out: NotRequired[dict[str, list[str]]]
    test_set: NotRequired[str]
    folds: NotRequired[int]
    fold: NotRequired[int]


class TrainingRecord(_Record):
    """The settings of training that others read."""

    lr: NotRequired[Real]
    weight_decay: NotRequired[Real]
    accumulate: NotRequired[Real]
    epochs: NotRequired[Real]


class RunConfig(_Record):
    """config.json: everything that decides what a run becomes."""

    format: NotRequired[str]
    format_version: NotRequired[int]
    model: ModelRecord
    data: OriginRecord
    training: dict[str, Any]
    task: NotRequired[dict[str, Any]]
    seeds: NotRequired[list[int]]


class SetFacts(_Record):
    """A set of bags in data.json."""

    n: int
    positives: NotRequired[int]
    classes: NotRequired[dict[str, int]]
    instances: NotRequired[dict[str, float]]
    unit: NotRequired[str]
    feature_shape: NotRequired[list[int]]
    fingerprint: NotRequired[str]
    bag_ids: NotRequired[list[str]]


class DataRecord(OriginRecord):
    """data.json: the origin, and the sets of bags that the run has seen."""

    fingerprint: NotRequired[str]
    splits: NotRequired[dict[str, SetFacts]]


class SeenBag(_Record):
    """A bag that a run knows: what it did with it, whose it is, and the marks of its content."""

    set: str
    patient: str | None
    content: str


class SeenBags(_Record):
    """bags.json: the bags that a run has seen, trained on or locked, and what its features were made with."""

    encoder: list[str]
    encoder_sha256: list[str]
    stride_um: Number
    bags: dict[str, SeenBag]


CalibrationBin = TypedDict("CalibrationBin", {"from": Real, "to": Real, "predicted": Real, "observed": Real, "n": int})
"""Bags with a probability in one tenth: how many, predicted and observed frequency."""


class Scores(_Record):
    """The scores of one set: per seed (or fold), their mean, deviation and 95 % interval.

    fewest: patients of the rarest class (of folds that do not share bags: over all folds).
    """

    n: int
    mean: Values
    std: Values
    interval: dict[str, list[Number]]
    patients: NotRequired[int]
    fewest: NotRequired[int]
    positives: NotRequired[int]
    classes: NotRequired[dict[str, int]]
    shared_by_folds: NotRequired[bool]
    per_seed: NotRequired[list[Values]]
    per_fold: NotRequired[list[Values]]
    ensemble: NotRequired[dict[str, Any]]
    calibration: NotRequired[list[CalibrationBin]]


class Threshold(_Record):
    """Where a probability becomes a positive prediction, and which bags chose it.

    decision: the one threshold of the run, of its seeds and of their mean. Older runs have one per seed and one for the
    mean (ensemble) instead, which then count.
    """

    chosen_on: str
    decision: NotRequired[float]
    per_seed: NotRequired[list[float]]
    ensemble: NotRequired[float]


class Summary(_Record):
    """summary.json: the scores of all sets; seeds that did not fit, or that overfit, are named."""

    splits: dict[str, Scores]
    threshold: Threshold
    seeds: list[int]
    stuck_seeds: list[int] | list[str]
    chance_seeds: NotRequired[list[int] | list[str]]
    unproven_seeds: NotRequired[list[int]]
    selection: str
    folds: NotRequired[int]
    task: NotRequired[str]


class Difference(_Record):
    """AUROC of the model minus that of a baseline on the same bags, and its 95 % interval from paired resamples."""

    difference: Number
    interval: list[Number]


class BaselineScores(_Record):
    """A baseline that was fitted on the training bags of a run: what it is, its scores, the model against it."""

    title: str
    sees: str
    splits: dict[str, Scores]
    against: dict[str, Difference]


class BaselineRecord(_Record):
    """baselines.json: every baseline by name; fingerprint: of the bags that the run was trained on."""

    fingerprint: str
    baselines: dict[str, BaselineScores]


class CovariateScore(_Record):
    """A score with its 95 % interval."""

    mean: Number
    interval: list[Number]


class CovariateRow(CovariateScore):
    """A regression: what it sees, its score, and differences with the ends of their interval.

    model_minus: the model minus it; model_adds: it minus the same regression without the model.
    """

    title: str
    sees: str
    model_minus: NotRequired[list[Number]]
    model_adds: NotRequired[list[Number]]


class CovariateRecord(_Record):
    """covariates.json: regressions on what is known of patients beside the model, on the same bags."""

    covariates: list[str]
    metric: str
    split: str
    folds: int
    bags: int
    model: CovariateScore
    rows: dict[str, CovariateRow]


class AttemptRecord(_Record):
    """One attempt of a seed: where it started, and which other starts it was preferred to."""

    preferred_to: NotRequired[list[dict[str, Any]] | None]


class DistanceRow(_Record):
    """What one head learned of distance."""

    layer: int
    head: int
    unit: str
    theta: Number
    beta: Number
    midpoint: Number
    width: Number


class SeedStatus(_Record):
    """status.json of a seed: whether it fitted its training bags, its attempts, the distances it learned."""

    seed: NotRequired[int]
    lr: NotRequired[float]
    fitted: NotRequired[bool]
    reason: NotRequired[str]
    held_out_evidence: NotRequired[bool]
    train_loss: NotRequired[Number]
    epoch: NotRequired[int]
    restarts: NotRequired[int]
    attempt: NotRequired[int]
    attempts: NotRequired[list[AttemptRecord]]
    learned_distances: NotRequired[list[DistanceRow] | None]
    learned_biases: NotRequired[list[dict[str, Any]] | None]


class CheckpointFacts(_Record):
    """checkpoint.json: how far training has come."""

    attempt: int
    epoch: int
    epochs: int


Record = TypeVar("Record")


def checked(schema: type[Record], value: Any, path: Path) -> Record:
    """The value of a file, if it fits; else one error that names the file, the field and what was found there."""
    if not isinstance(value, dict):
        raise broken(path, f"it holds a {type(value).__name__}, expected an object")
    try:
        TypeAdapter(schema).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise broken(path, f"{where}: {first['msg']} (found {str(first['input'])[:60]})") from None
    return cast(Record, value)  # as it stands in the file, in its order


def broken(path: Path, what: str) -> DataError:
    """The error for a run that cannot be used as it is."""
    return DataError(
        f"{path}: {what}; expected the directory of a finished run: train again, or continue it with "
        "`dasmil train --resume`"
    )
