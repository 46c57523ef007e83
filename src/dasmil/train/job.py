"""What is to be trained, resolved once: `fit`, the trials of a search and `plan` all take the same Job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dasmil.errors import InputError, shown, unknown_name
from dasmil.models import MODELS, MILModel, resolve_options
from dasmil.models.base import Position
from dasmil.models.sizes import sizes_only
from dasmil.tasks import task_from
from dasmil.train.config import TrainingConfig, training_config
from dasmil.train.defaults import default_options, default_settings, freely_shaped
from dasmil.train.recipes import plain_settings
from dasmil.train.state import RunSpec
from dasmil.types import Unit

MOST_SEEDS = 1000


@dataclass(frozen=True)
class Outline:
    """What a job has to know of the training bags; it can be said before a bag is read."""

    bags: int
    feature_shape: tuple[int, ...]
    unit: Unit
    classes: int = 2
    task: dict[str, Any] | None = None
    """What is asked of the bags, as its record, where it is no class."""


@dataclass(frozen=True)
class Given:
    """What the user said: the paper's sizes of the model, options on top of them, settings of training."""

    preset: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A model and how it is trained, with every default filled in but for what is measured in the bags.

    options: of the model; the length that means 1 and the starts of learned distances are found in the bags, where
    neither preset nor user gave them.
    """

    model: str
    preset: str | None
    options: dict[str, Any]
    config: TrainingConfig
    outline: Outline
    position: Position
    """What the model with these options makes of positions; "relative": it needs to know which length means 1."""
    learns_distances: bool
    """Whether theta and beta are trained and start from distances in the bags."""
    at_one_place: bool = False
    """Whether no two instances of a training bag lie apart, so that nothing is learned of distances."""
    shaped_by_rule: bool = False
    """Whether a rule that goes alone says how instances are pooled and by how many heads they look: nobody else did."""

    @property
    def finds_length(self) -> bool:
        """Whether training has to find the length by itself: no start of theta was given."""
        return self.learns_distances and MODELS[self.model].seeks_length(self.options)

    @property
    def competes(self) -> bool:
        """Whether every run is chosen from several starts."""
        return self.config.starts > 1 and self.finds_length

    def has(self, options: Mapping[str, Any]) -> bool:
        """Whether the model as it is trained from random weights has these options."""
        own = {**MODELS[self.model].options(), **self.options}
        return all(own.get(name) == value for name, value in options.items())

    @property
    def whitens(self) -> bool:
        """Whether features are read in directions that are fitted to the training bags first."""
        return self.options.get("encoder") == "whitened"

    def with_settings(self, **settings: Any) -> Job:
        """The same job with other settings of training."""
        return replace(self, config=training_config({**self.config.model_dump(), **settings}))

    def specs(self, seeds: int | Sequence[int]) -> list[RunSpec]:
        """One run a seed; seeds: how many (5 = 0, 1, 2, 3, 4), or which."""
        return [RunSpec(seed, self.config.lr, self.config.weight_decay) for seed in seeds_of(seeds)]

    def as_json(self) -> dict[str, Any]:
        """The job in plain values, for another process."""
        return {**asdict(self), "config": self.config.model_dump(mode="json")}

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Job:
        """The job that `as_json` wrote."""
        outline = {**record["outline"], "feature_shape": tuple(record["outline"]["feature_shape"])}
        return Job(**{**record, "config": training_config(record["config"]), "outline": Outline(**outline)})


def seeds_of(seeds: int | Sequence[int]) -> list[int]:
    """The seeds that a number (5 = 0, 1, 2, 3, 4) or a list of them names."""
    if isinstance(seeds, int):
        numbers = list(range(min(seeds, MOST_SEEDS + 1)))
    else:
        numbers = list(seeds) if isinstance(seeds, Iterable) else []
    whole = all(isinstance(number, int) and 0 <= number < 2**31 for number in numbers)
    if not numbers or len(numbers) > MOST_SEEDS or not whole or len(set(numbers)) < len(numbers):
        raise InputError(
            f"seeds are {shown(seeds)}, expected a number from 1 to {MOST_SEEDS:,}, or different numbers from 0 on"
        )
    return numbers


def prepare(model: str, outline: Outline, given: Given) -> Job:
    """Resolve what is to be trained: the user's word first, then the preset's, then what fits bags of this kind."""
    if model not in MODELS:
        raise unknown_name("model", model, MODELS)
    if given.settings.get("plain"):
        given = _as_in_the_paper(model, outline, given)
    kind = None if outline.task is None else outline.task["kind"]
    usual = default_settings(model, outline.feature_shape, outline.bags, given.settings, kind)
    config = training_config({**usual, **given.settings})
    options = default_options(model, outline.feature_shape, given.preset, given.options, kind)
    options = bag_options(model, given.preset, options, outline)
    asked = without_memory(model, options)  # refuses options that do not go together
    from_data = config.distance_init == "data" and asked.position == "relative"
    learns = from_data and bool(asked.distance_parameters())
    free = freely_shaped(model, given.preset, given.options, "pooling", "heads")
    return Job(model, given.preset, options, config, outline, asked.position, learns, shaped_by_rule=free)


def _as_in_the_paper(model: str, outline: Outline, given: Given) -> Given:
    """What the user said, on top of the paper's settings and sizes (with a preset: its sizes)."""
    settings, options = plain_settings(model, outline.feature_shape)
    sizes = {} if given.preset is not None else options
    return replace(given, settings={**settings, **given.settings}, options={**sizes, **given.options})


def bag_options(name: str, preset: str | None, given: Mapping[str, Any], outline: Outline) -> dict[str, Any]:
    """The options of preset and user, with what the bags themselves say: input size, unit and number of classes."""
    shape, classes = outline.feature_shape, outline.classes
    options = resolve_options(name, preset, **given)
    if "encoder" not in options and shape == (1, 28, 28):
        options["encoder"] = "mnist-cnn"
    patches = len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2]
    if patches:
        options.setdefault("encoder", "patch-cnn")
    if options.get("encoder") == "patch-cnn":
        if not patches:
            raise InputError(f"instances have shape {shape}: the encoder 'patch-cnn' takes square patches (3, s, s)")
        if options.setdefault("in_features", shape[2]) != shape[2]:
            raise InputError(f"in_features is {options['in_features']}, but the patches are {shape[2]} px wide")
    elif options.get("encoder") != "mnist-cnn":
        if len(shape) != 1:
            raise InputError(
                f"instances have features of shape {shape}: only the encoders 'mnist-cnn' (1, 28, 28) and 'patch-cnn' "
                "(square RGB patches: 3, s, s) take pictures"
            )
        if options.setdefault("in_features", shape[0]) != shape[0]:
            raise InputError(f"in_features is {options['in_features']}, but the bags have {shape[0]} features")
    if "unit" in options and options["unit"] != outline.unit:
        raise InputError(f"the model's unit is {options['unit']!r}, but the bags' coordinates are in {outline.unit!r}")
    options["unit"] = outline.unit
    if outline.task is not None:
        if "n_classes" in options:
            raise InputError(f"n_classes was given, but the task is {outline.task['kind']}, which has no classes")
        outputs = task_outputs(outline.task)
        if options.setdefault("outputs", outputs) != outputs:
            raise InputError(f"outputs is {options['outputs']}, but the task needs {outputs}: leave it out")
        return options
    if options.setdefault("n_classes", classes) != classes:
        raise InputError(f"n_classes is {options['n_classes']}, but the training labels have {classes} classes")
    return options


def task_outputs(record: Mapping[str, Any]) -> int:
    """How many numbers a model says for a task."""
    task = task_from(record)
    assert task is not None
    return task.outputs


def without_memory(name: str, options: Mapping[str, Any]) -> MILModel:
    """The model without memory for its parameters, to ask what it has."""
    with sizes_only():
        return MODELS[name](**options)
