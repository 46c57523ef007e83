"""Every setting of training, with its default, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dasmil.errors import InputError, shown, unknown_name
from dasmil.train.optim import OptimizerName
from dasmil.train.schedule import Schedule


class TrainingConfig(BaseModel):
    """How runs are trained; the same for all runs that train together, but for seed, learning rate and weight decay."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: int = Field(50, ge=1, le=100_000, description="passes over the training bags")
    lr: float = Field(1e-3, gt=0, le=1000, description="learning rate")
    weight_decay: float = Field(1e-2, ge=0, le=1000, description="weight decay")
    optimizer: OptimizerName = Field("adamw", description="adamw, adam or radam")
    lookahead: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Lookahead over the optimiser every this many steps; 0 = without",
    )
    lookahead_alpha: float = Field(0.5, gt=0, le=1, description="how far Lookahead's slow weights follow")
    schedule: Schedule = Field(
        "constant", description="constant, linear, cosine, or hold-linear (the last third falls)"
    )
    warmup_epochs: float = Field(0.0, ge=0, description="epochs of linear rise of the learning rate")
    accumulate: int = Field(1, ge=1, le=1_000_000, description="bags per optimiser step")
    clip: float | None = Field(None, gt=0, le=1e9, description="largest norm of a run's gradient")
    balance_classes: bool = Field(True, description="weigh classes by their inverse frequency in the training bags")
    sampling: Literal["all", "balanced"] = Field(
        "all",
        description="balanced: an epoch has as many bags of each class as the rarest class, drawn anew every epoch; "
        "classes are then not weighed",
    )
    instances_share: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="a training step sees at most this share of the median bag's number of instances, drawn anew; "
        "0 = all instances",
    )
    mixup: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the training steps whose bag is mixed with the bag of the step before: a random part of "
        "each, the losses of both labels in the same proportion",
    )
    augment: Literal["none", "digits", "patches"] = Field(
        "none", description="digits: small random shift, turn and scale; patches: quarter turns and mirroring"
    )
    feature_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the encoder's output while training")

    plain: bool = Field(
        False,
        description="as in the paper, on features of any width and any unit: its layers, optimiser, schedule, random "
        "weights",
    )
    distance_init: Literal["data", "model"] = Field(
        "data", description="where theta and beta start: from the distances in the training bags, or as the model says"
    )
    distance_lr: Annotated[float, Field(gt=0, le=1e6)] | Literal["common"] = Field(
        4.0, description="step of theta and beta as a share of their start, in units of lr; 'common' = as all others"
    )
    feature_step: Annotated[float, Field(gt=0, le=1e6)] | Literal["common"] = Field(
        20.0,
        description="how far, in units of lr, a step may move the outputs of the layer that reads feature vectors; "
        "'common' = learning rate as all others",
    )
    starts: int = Field(
        1, ge=1, le=1000, description="starts, at different lengths, that a run with learned distances is chosen from"
    )
    starts_share: float = Field(0.25, gt=0, le=1, description="share of the epochs after which one start goes on alone")
    starts_until: float = Field(
        0.6,
        gt=0,
        description="without held-out bags, a start whose training loss falls below this share of a constant guess is "
        "taken at once",
    )
    starts_instances: int = Field(
        500,
        ge=2,
        le=10**9,
        description="while starts compete, larger bags are given as random parts of this size, drawn anew",
    )
    simple_starts: int = Field(
        6,
        ge=0,
        description="starts, besides those at different lengths, from pairs of instance types that come near; "
        "with them the simple rule that leads (mean features, a type's share, a pair, how many lie near); 0 = none",
    )
    held_out: bool = Field(
        True, description="starts compete on a quarter of the training bags that they do not see until one is chosen"
    )
    restarts: int = Field(
        2,
        ge=0,
        le=1000,
        description="further attempts, from other starts, of a run with learned distances that did not fit",
    )
    stuck_above: float = Field(
        0.25, gt=0, description="a run did not fit if its final training loss is above this share of a constant guess"
    )

    enough: float = Field(
        0.0,
        ge=0,
        description="a run ends when its training loss was below this share of a constant guess for three "
        "epochs; 0 = never",
    )

    selection: Literal["last", "best-val"] = Field("last", description="which epoch's weights are kept")
    monitor: str = Field("loss", description="what best-val compares: loss, or a metric that the task has")
    early_stopping: int = Field(
        0, ge=0, le=100_000, description="stop after this many epochs without a better validation score; 0 = never"
    )

    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="where to compute")
    precision: Literal["float32", "bfloat16"] = Field("float32", description="bfloat16: mixed precision")
    stacked_instances: int = Field(
        20_000,
        ge=1,
        le=10**9,
        description="runs train stacked while bag size x runs stays within this; else one by one per step",
    )
    memory_gb: float = Field(
        1.0,
        ge=0,
        le=1e6,
        description="training bags up to this size are kept in memory, larger are read",
    )
    tensorboard: bool = Field(False, description="also write TensorBoard events")

    @model_validator(mode="after")
    def _consistent(self) -> TrainingConfig:
        if self.early_stopping and self.selection != "best-val":
            raise ValueError("early_stopping keeps the best validation epoch: also set selection to 'best-val'")
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs is {self.warmup_epochs}, expected less than epochs ({self.epochs})")
        return self


def training_config(settings: Mapping[str, Any]) -> TrainingConfig:
    """The configuration from a mapping; a wrong name or value is one clear error."""
    for name in settings:
        if name not in TrainingConfig.model_fields:
            raise unknown_name("training setting", name, TrainingConfig.model_fields)
    try:
        return TrainingConfig(**settings)
    except ValidationError as error:
        found = error.errors()[0]
        where = ".".join(str(part) for part in found["loc"])
        message = found["msg"].removeprefix("Value error, ")
        value = f" (found {shown(found['input'])})" if where else ""
        raise InputError(f"training setting {where}: {message}{value}" if where else message) from None
