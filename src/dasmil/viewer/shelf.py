"""What the viewer shows: bags, and the models that explain them, loaded and computed when asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from dasmil.attribution.deciding import Partner
from dasmil.attribution.distance import phi_values, told_distances
from dasmil.attribution.edits import edited, read_edits
from dasmil.attribution.ground import Ground, Layout, layout_of
from dasmil.attribution.names import InstanceNames
from dasmil.errors import DasmilError, InputError
from dasmil.models.base import MILModel
from dasmil.types import Bag, Explanation
from dasmil.viewer.clusters import cluster
from dasmil.viewer.explained import BagAccount
from dasmil.vocabulary import A_CLASS, Meaning

CACHED_BAGS = 4
SMALL_PICTURE = 2048  # px, longer side


class Picture:
    """The picture under the instances in level-0 pixels; its `Ground` measures in the unit of the bag."""

    def __init__(self, ground: Ground, px_per_unit: float) -> None:
        self.ground = ground
        self.px_per_unit = px_per_unit
        self.width, self.height = (max(1, round(side * px_per_unit)) for side in (ground.width, ground.height))
        # A small picture is kept whole; a slide is read piece by piece.
        small = max(self.width, self.height) <= SMALL_PICTURE
        self._whole = Image.fromarray(ground.thumbnail(1 / px_per_unit)) if small else None

    def region(self, x: int, y: int, step: int, side_px: int) -> np.ndarray:
        """The square with its top left level-0 pixel at (x, y), uint8 [side_px, side_px, 3]; white outside.

        One of its pixels is the mean of step x step of level 0.
        """
        side = step * side_px
        if self._whole is None:
            k = self.px_per_unit
            return self.ground.tile(x / k, y / k, side / k, side_px)
        found = Image.new("RGB", (side_px, side_px), "white")
        box = (x, y, min(x + side, self._whole.width), min(y + side, self._whole.height))
        found.paste(self._whole.reduce(step, box))
        return np.asarray(found)


@dataclass(frozen=True)
class Voice:
    """One trained model that can explain bags; title: which one ("seed 0", "fold 2, seed 1").

    kept: the folder in which accounts of large bags are kept, or None; target: which output it explains (None: the
    class it tells), meaning: what that output says.
    """

    title: str
    load: Callable[[], MILModel]
    kept: Path | None = None
    target: int | None = None
    meaning: Meaning = A_CLASS


@dataclass(frozen=True)
class Entry:
    """One bag of the list; `load` reads it, `picture` finds its picture (None: a plain ground).

    voice: the number of the model that explains it first; sets: what the bag was to each model (train, test, ...).
    Where the target is no class, truth is what is known of the bag, and probability is what the model says of it: a
    risk, a number.
    """

    bag_id: str
    load: Callable[[], Bag]
    picture: Callable[[Bag], Picture | None] = lambda _bag: None
    label: int | None = None
    prediction: int | None = None
    probability: float | None = None
    split: str | None = None
    patient: str | None = None
    warning: str | None = None
    voice: int = 0
    sets: Mapping[int, str] = field(default_factory=dict)
    truth: str | None = None


class OpenBag:
    """A bag with its picture and its accounts, one for each model that was asked."""

    def __init__(self, bag: Bag, picture: Picture | None, warnings: tuple[str, ...]) -> None:
        self.bag, self.picture, self.warnings = bag, picture, warnings
        self.names = InstanceNames(bag)
        self.accounts: dict[int, BagAccount] = {}

    @cached_property
    def layout(self) -> Layout:
        """Where the instances lie and how large they are."""
        return layout_of(self.bag, None if self.picture is None else self.picture.ground)

    @property
    def is_round(self) -> bool:
        """Whether an instance is a point (drawn round) rather than a tile."""
        bag = self.bag
        return not (bag.metadata.get("tile_um") or (bag.features.ndim == 4 and bag.unit == "px"))

    @cached_property
    def clusters(self) -> Tensor:
        """The cluster of every instance by its features."""
        return cluster(self.bag.features)


class EditedBag(OpenBag):
    """An opened bag after edits: on the same picture, in the same frame, every instance under the name that it had."""

    def __init__(self, source: OpenBag, edits: str) -> None:
        bag, self.origin = edited(source.bag, read_edits(edits, len(source.bag)))
        names = tuple(source.names.own(k) for k in self.origin.tolist())
        super().__init__(replace(bag, instance_ids=names), source.picture, source.warnings)
        self.source = source

    @cached_property
    def layout(self) -> Layout:
        before, old = self.source.layout, self.source.bag.coords[self.origin]
        moved = (self.bag.coords - old)[:, :2].double().numpy()
        return replace(before, centres=before.centres[self.origin] + moved)

    @cached_property
    def clusters(self) -> Tensor:
        return self.source.clusters[self.origin]


class Shelf:
    """The bags of a run and the models that explain them; opened bags are kept, the oldest is dropped."""

    def __init__(
        self,
        title: str,
        subtitle: str,
        voices: MILModel | Sequence[Voice],
        entries: list[Entry],
        classes: tuple[str, ...] | None = None,
        caveat: str = "",
    ) -> None:
        self.caveat = caveat  # what the run has not shown: it stands with every bag
        self.title = title
        self.subtitle = subtitle
        self.voices = [Voice("", lambda: voices)] if isinstance(voices, MILModel) else list(voices)
        self.entries = entries
        self._models: dict[int, MILModel] = {}
        self._opened: OrderedDict[tuple[int, str], OpenBag] = OrderedDict()
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        n_classes = self.model.n_classes
        numbers = tuple(str(c) for c in range(n_classes))
        self.classes = classes or (("negative", "positive") if n_classes == 2 else numbers)

    @property
    def model(self) -> MILModel:
        """The first of the models."""
        return self.model_of(0)

    def model_of(self, voice: int) -> MILModel:
        if not 0 <= voice < len(self.voices):
            raise InputError(f"there is no model number {voice}; there are {len(self.voices)}")
        with self._loading:
            if voice not in self._models:
                self._models[voice] = self.voices[voice].load().eval()
            return self._models[voice]

    def class_name(self, label: int | None) -> str | None:
        if label is None:
            return None
        return self.classes[label] if label < len(self.classes) else str(label)

    def entry(self, index: int) -> Entry:
        if not 0 <= index < len(self.entries):
            raise InputError(f"there is no bag number {index}; the list has {len(self.entries)} bags")
        return self.entries[index]

    def open(self, index: int, edits: str = "") -> OpenBag:
        """A bag of the list; edits: as text, see `dasmil.attribution.edits`."""
        entry = self.entry(index)
        source = self.open(index) if edits else None
        key = index, edits
        with self._lock:  # one bag is read at a time; the others find it done
            if key not in self._opened:
                self._opened[key] = self._read(entry) if source is None else EditedBag(source, edits)
                while len(self._opened) > CACHED_BAGS:
                    self._opened.popitem(last=False)
            self._opened.move_to_end(key)
            return self._opened[key]

    def _read(self, entry: Entry) -> OpenBag:
        bag = entry.load()
        warnings = [entry.warning] if entry.warning else []
        picture = None
        try:
            picture = entry.picture(bag)
        except DasmilError as error:  # the map is still worth showing; the page says what is missing
            warnings.append(f"Shown without its slide: {error}")
        return OpenBag(bag, picture, tuple(warnings))

    def explained(self, index: int, voice: int | None = None, edits: str = "") -> BagAccount:
        """The account of a bag by one of the models, by default the one that the entry names.

        After edits, the account is of the class that was explained before them, so that logits can be compared.
        """
        opened = self.open(index, edits)
        chosen = self.entry(index).voice if voice is None else voice
        model, told = self.model_of(chosen), self.voices[chosen]
        kept, target = told.kept, told.target
        if edits:
            kept, target = None, self.explanation(index, chosen).target  # what was tried is not kept with the run
        with self._lock:
            if chosen not in opened.accounts:
                opened.accounts[chosen] = BagAccount(model, opened.bag, kept, target, told.meaning)
            return opened.accounts[chosen]

    def explanation(self, index: int, voice: int | None = None, edits: str = "") -> Explanation:
        """Waits for the whole account of a bag."""
        return self.explained(index, voice, edits).explanation

    def partners(self, index: int, instance: int, voice: int | None = None, edits: str = "") -> list[Partner]:
        """What an instance attends to; nothing for models without attention between instances."""
        n = len(self.open(index, edits).bag)
        if not 0 <= instance < n:
            raise InputError(f"there is no instance number {instance}; the bag has {n}")
        return self.explained(index, voice, edits).partners(instance)

    def told(self, voice: int = 0) -> list[str]:
        """What a bias or a radius says of distance, as sentences."""
        model = self.model_of(voice)
        return told_distances(model.learned_biases(), model.config, model.unit)

    def curves(self, furthest: float, voice: int = 0) -> list[dict]:
        """phi over distances from 0 to `furthest` (in the model's unit), one row a head."""
        model = self.model_of(voice)
        distance = np.linspace(0, furthest, 121)
        kind = str(model.config.get("phi", "sigmoid"))
        return [
            {
                "layer": row["layer"],
                "head": row["head"],
                "midpoint": row["midpoint"],
                "width": row["width"],
                "distance": distance.tolist(),
                "phi": phi_values(row, model.distance_scale, kind, distance).tolist(),
            }
            for row in model.learned_distances()
        ]
