"""What every model is: instance encoder h, aggregator g, classifier f, and a configuration that rebuilds it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict

from torch import Tensor, nn

from dasmil.errors import InputError, unknown_name
from dasmil.models.account import Accountable, Additive, ModelAccount, PlainPooling
from dasmil.models.inputs import take_inputs
from dasmil.models.options import Classes, Length, Option, Probability, Size, options_of
from dasmil.nn import DistanceAwareAttention, Linear, make_encoder
from dasmil.types import Output, Unit

Position = Literal["none", "absolute", "relative"]


class CommonOptions(TypedDict, total=False):
    """The options that every model takes; their defaults are those of MILModel."""

    in_features: Size | None
    encoder: str
    encoder_features: Size | None
    encoder_dropout: Probability | None
    n_classes: Classes
    outputs: Size | None
    distance_scale: Length
    unit: Unit


class Aggregated(NamedTuple):
    """What an aggregator returns: one vector a bag [*batch, f], and what travels on to Output."""

    embedding: Tensor
    aux_loss: Tensor | None = None
    instance_scores: Tensor | None = None
    side_logits: Tensor | None = None
    label_losses: Tensor | None = None
    bag_weight: float = 1.0
    side_weight: float = 1.0


class MILModel(nn.Module):
    """S(X) = f(g(h(x_1), ..., h(x_n))), before the sigmoid.

    Implements eqs. (mil_score_embedded:embedding), (..:aggregation), (..:score) as the submodules ``encoder``,
    ``aggregator`` and ``classifier``. The keyword-only constructor arguments are the whole configuration; ``config``
    keeps them.

    in_features: numbers per instance (not needed by the encoder "mnist-cnn"; of "patch-cnn" the edge of a patch in
    pixels); encoder: "identity", "whitened" (frozen directions, which training fits first), "linear-relu", "mnist-cnn"
    or "patch-cnn"; encoder_features: output size of "whitened" (16), "linear-relu" (512) and "patch-cnn" (64);
    encoder_dropout: before the last layer of "mnist-cnn" (0.5) and "patch-cnn" (0), after "linear-relu" (0);
    n_classes: 2 gives one logit, k > 2 gives k logits; outputs: how many numbers it says instead, where the target is
    no class (a risk, hazards of bins of time, a number, several targets); distance_scale: the length, in the unit of
    the coordinates, that means 1; unit: of the coordinates, "um" or "px".
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    position: ClassVar[Position] = "none"
    permutation_invariant: ClassVar[bool] = True
    stackable: ClassVar[bool] = True
    scale_neighbour: ClassVar[int | None] = None
    """A model that counts in tiles: training takes the distance to this neighbour as distance_scale, unless given."""
    idle_parameters: ClassVar[tuple[str, ...]] = ()
    """Patterns of parameters that belong to the published count although no loss can reach them."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    config: dict[str, Any]
    aggregator: nn.Module
    classifier: nn.Module

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__init__)  # pyright: ignore[reportAttributeAccessIssue]

    def __init__(
        self,
        *,
        in_features: Size | None = None,
        encoder: str = "identity",
        encoder_features: Size | None = None,
        encoder_dropout: Probability | None = None,
        n_classes: Classes = 2,
        outputs: Size | None = None,
        distance_scale: Length = 1.0,
        unit: Unit = "um",
    ) -> None:
        super().__init__()
        self.n_classes, self.outputs, self.distance_scale, self.unit = n_classes, outputs, distance_scale, unit
        self.encoder = make_encoder(encoder, in_features, encoder_features, encoder_dropout)

    @property
    def encoded(self) -> int:
        """d_z: the number of features that the encoder gives to the aggregator."""
        return self.encoder.out_features

    def make_classifier(self, in_features: int) -> Linear:
        """f: eq. (method:score) without the sigmoid."""
        return Linear(in_features, self.n_logits)

    @property
    def n_logits(self) -> int:
        if self.outputs is not None:
            return self.outputs
        return 1 if self.n_classes == 2 else self.n_classes

    def forward(
        self, features: Tensor, coords: Tensor, mask: Tensor | None = None, section: Tensor | None = None
    ) -> Output:
        """features [*batch, n, *f], coords [*batch, n, 2], mask [*batch, n] (False = padding), section [*batch, n].

        Lists, NumPy arrays and other number types are converted to those of the parameters.
        """
        like = next(self.parameters())
        given = take_inputs(self.name, self.encoder.in_shape, like, features, coords, mask, section)
        aggregated: Aggregated = self.aggregator(self.encoder(given.features), given.coords, given.mask, given.section)
        logit = self.classifier(aggregated.embedding)
        travellers = {name: value for name, value in aggregated._asdict().items() if name != "embedding"}
        return Output(logit.squeeze(-1) if self.n_logits == 1 else logit, **travellers)

    # --- what training and explanation ask a model ---

    learns_lengths: ClassVar[bool] = False
    """Whether it may learn at which distance something changes, and so is trained from several starts."""

    @classmethod
    def for_feature_vectors(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Options that suit bags of feature vectors, where neither user (``given``) nor preset chose an encoder."""
        return {"encoder": "whitened"}

    @classmethod
    def seeks_length(cls, options: Mapping[str, Any]) -> bool:
        """Whether, with these options, training has to find a length by itself."""
        return False

    without_distances_it: ClassVar[str] = "sees every instance at the same place and learns nothing of distances"
    """What the model does when all instances of every training bag lie at one place; follows its name in a sentence."""

    @classmethod
    def without_distances(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options for bags whose instances all lie at one place."""
        return dict(options)

    @classmethod
    def starting_at(
        cls, options: Mapping[str, Any], length_at: Callable[[float], float], share: float
    ) -> dict[str, Any]:
        """The options with learned lengths that start where the bags have some; what was given explicitly stays.

        length_at: a length between near neighbours (0) and the whole bag (1); share: which to start from.
        """
        return dict(options)

    def account(self, features: Tensor, coords: Tensor, section: Tensor | None) -> ModelAccount | None:
        """How the embedding of one bag is a sum over instances or pairs; None where no exact split is known.

        Asks the aggregator: what instances add to the embedding (``parts``), or which pooling or attention it is
        (``account``).
        """
        z, ask = self.encoder(features), self.aggregator
        if isinstance(ask, Accountable):
            return ask.account(z, coords, section)
        return PlainPooling(ask.parts(z, coords, section), "sum") if isinstance(ask, Additive) else None

    def begin_near(self, first: Tensor, second: Tensor, length: float, instances: float) -> bool:
        """Start, untrained, as a detector of instances like ``first`` that lie nearer than ``length`` to one like
        ``second`` (both [encoded]; instances: in a usual bag); False where the model cannot.
        """
        return False

    def begin_within(self, first: Tensor | None, second: Tensor, length: float, instances: float, share: float) -> bool:
        """Start, untrained, as a measure of how many instances are like ``first`` (None: of all) and lie nearer than
        ``length`` to one like ``second``, which is this share of all; False where the model cannot. Instances are
        pooled by their mean.
        """
        return False

    def begin_share(self, centre: Tensor, share: float) -> bool:
        """Start, untrained, as a measure of how many instances are like ``centre`` [encoded], steepest where they are
        this share; False where the model cannot.
        """
        return False

    def begin_mean(self, direction: Tensor, *, only: bool = False) -> bool:
        """Start, untrained, as the mean over instances of their encoded features in a direction [encoded]; False
        where the model cannot. only: nothing of the random weights is heard beside it, however weak it is.
        """
        return False

    def distance_parameters(self) -> list[str]:
        """Names of the trainable theta and beta, as in named_parameters; empty for models without."""
        return [name for name, _ in self.named_parameters() if name.rpartition(".")[2] in ("theta", "beta")]

    def learned_distances(self) -> list[dict[str, Any]]:
        """Rows {layer, head, theta, beta, midpoint, width, unit}; the last three as a length; empty for models without.

        theta and beta are in units of distance_scale. width: from 10 % to 90 % of phi (sigmoid, identity) or the full
        width at half maximum (exponential, gaussian).
        """
        layers = [module for module in self.modules() if isinstance(module, DistanceAwareAttention)]
        return [
            {"layer": number, **row, "unit": self.unit}
            for number, layer in enumerate(layers)
            for row in layer.learned_distances()
        ]

    def learned_biases(self) -> list[dict[str, Any]]:
        """Rows {layer, head, bias, slope | length | table, unit}: what each head subtracts with the distance.

        A slope is per unit of the coordinates, a length in it, a table goes from 0 to distance_scale in even steps;
        empty for models without a bias.
        """
        layers = [module for module in self.modules() if isinstance(module, DistanceAwareAttention)]
        return [
            {"layer": number, **row, "unit": self.unit}
            for number, layer in enumerate(layers)
            for row in layer.learned_biases()
        ]

    def save(self, path: str | Path) -> None:
        """Write parameters, buffers and configuration to one safetensors file."""
        from dasmil.models.storage import save

        save(self, Path(path))

    def save_pretrained(self, directory: str | Path) -> None:
        """Write ``model.safetensors`` and, for readers and model hubs, ``config.json`` to a folder."""
        from dasmil.models.storage import save_pretrained

        save_pretrained(self, Path(directory))

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> MILModel:
        """The model that save_pretrained wrote to a local folder."""
        from dasmil.models.storage import read_model

        model = read_model(Path(directory))
        if not isinstance(model, cls):
            raise InputError(f"{directory} holds a {model.name} model, expected {cls.name}: use dasmil.load_model")
        return model

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Every option of the constructor, with its default."""
        return {name: option.default for name, option in cls.schema().items()}

    @classmethod
    def schema(cls) -> dict[str, Option]:
        """Every option of the constructor, with what it may be."""
        found: dict[str, Option] = {}
        for base in cls.__mro__:
            if issubclass(base, MILModel) and "__init__" in base.__dict__:
                for name, option in _own_options(base.__init__).items():
                    found.setdefault(name, option)
        return found


@functools.cache
def _own_options(init: Callable[..., None]) -> dict[str, Option]:
    """The options that a constructor names itself."""
    parameters = inspect.signature(init).parameters.values()
    return options_of(init, {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY})


def _recording(init: Callable[..., None]) -> Callable[..., None]:
    """The same constructor, which first checks its options and notes them and the defaults in ``self.config``."""

    @functools.wraps(init)
    def recorded(self: MILModel, **kwargs: Any) -> None:
        known = type(self).schema()
        unknown = next((name for name in kwargs if name not in known), None)
        if unknown is not None:
            raise unknown_name(f"option of {self.name}", unknown, known)
        config = self.__dict__.setdefault("config", {})
        for name, option in _own_options(init).items():
            if name in kwargs:
                kwargs[name] = option.check(kwargs[name])
            config.setdefault(name, kwargs.get(name, option.default))
        init(self, **kwargs)

    return recorded


# Subclasses are wrapped when they are made; the common arguments of this class are recorded in the same way.
MILModel.__init__ = _recording(MILModel.__init__)  # pyright: ignore[reportAttributeAccessIssue]
