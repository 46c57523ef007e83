"""What the viewer shows: bags with a model's predictions, loaded and explained when asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from dasmil.attribution.account import Account, Partner, check_fit
from dasmil.attribution.distance import phi_values
from dasmil.attribution.ground import Ground
from dasmil.attribution.layers import Stack
from dasmil.errors import DasmilError, InputError
from dasmil.models.base import MILModel
from dasmil.train.evaluate import probabilities
from dasmil.types import Bag, Explanation

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
class Entry:
    """One bag of the list; `load` reads it, `picture` finds its picture (None: a plain ground)."""

    bag_id: str
    load: Callable[[], Bag]
    picture: Callable[[Bag], Picture | None] = lambda _bag: None
    label: int | None = None
    prediction: int | None = None
    probability: float | None = None
    split: str | None = None
    patient: str | None = None
    warning: str | None = None


class Opened:
    """A bag with its picture; the account of its logit is made when first asked for, and kept."""

    def __init__(self, model: MILModel, bag: Bag, picture: Picture | None, warnings: tuple[str, ...]) -> None:
        check_fit(model, bag)
        self.bag, self.picture, self.warnings = bag, picture, warnings
        self._model = model
        self._lock = threading.Lock()
        self._explaining = threading.Lock()
        self._account: Account | None = None
        self._explanation: Explanation | None = None

    @property
    def account(self) -> Account:
        """Answers what a single instance looks at: quick, also while the explanation is being computed."""
        with self._lock:
            if self._account is None:
                self._account = Account(self._model, self.bag)
            return self._account

    @property
    def explanation(self) -> Explanation:
        """Waits for the whole account: as long as one forward pass."""
        account = self.account
        with self._explaining:  # one computation; the others find it done
            if self._explanation is None:
                self._explanation = account.explain()
            return self._explanation

    @property
    def probability(self) -> float:
        """Of the class whose logit is explained: among all classes of the model."""
        explanation, classes = self.explanation, self._model.n_classes
        if classes == 2:
            return float(probabilities(np.array(explanation.logit), classes))
        return float(probabilities(self.account.logits().double().cpu().numpy(), classes)[explanation.target])

    @property
    def known(self) -> Explanation | None:
        """The explanation, if it has been computed already."""
        return self._explanation


class Shelf:
    """The bags of a run and the model that explains them; opened bags are kept, the oldest is dropped."""

    def __init__(
        self, title: str, subtitle: str, model: MILModel, entries: list[Entry], classes: tuple[str, ...] | None = None
    ) -> None:
        self.title = title
        self.subtitle = subtitle
        self.model = model.eval()
        self.entries = entries
        numbers = tuple(str(c) for c in range(model.n_classes))
        self.classes = classes or (("negative", "positive") if model.n_classes == 2 else numbers)
        self._opened: OrderedDict[int, Opened] = OrderedDict()
        self._lock = threading.Lock()

    def class_name(self, label: int | None) -> str | None:
        if label is None:
            return None
        return self.classes[label] if label < len(self.classes) else str(label)

    def entry(self, index: int) -> Entry:
        if not 0 <= index < len(self.entries):
            raise InputError(f"there is no bag number {index}; the list has {len(self.entries)} bags")
        return self.entries[index]

    def open(self, index: int) -> Opened:
        entry = self.entry(index)
        with self._lock:  # one bag is read at a time; the others find it done
            if index not in self._opened:
                self._opened[index] = self._read(entry)
                while len(self._opened) > CACHED_BAGS:
                    self._opened.popitem(last=False)
            self._opened.move_to_end(index)
            return self._opened[index]

    def _read(self, entry: Entry) -> Opened:
        bag = entry.load()
        warnings = [entry.warning] if entry.warning else []
        picture = None
        try:
            picture = entry.picture(bag)
        except DasmilError as error:  # the map is still worth showing; the page says what is missing
            warnings.append(f"Shown without its slide: {error}")
        return Opened(self.model, bag, picture, tuple(warnings))

    def partners(self, index: int, instance: int) -> list[Partner]:
        """What an instance attends to; nothing for models without attention between instances."""
        opened = self.open(index)
        if not 0 <= instance < len(opened.bag):
            raise InputError(f"there is no instance number {instance}; the bag has {len(opened.bag)}")
        if not isinstance(opened.account.structure, Stack):
            return []
        return opened.account.partners(instance, top=20)

    def curves(self, furthest: float) -> list[dict]:
        """phi over distances from 0 to `furthest` (in the model's unit), one row a head."""
        distance = np.linspace(0, furthest, 121)
        kind = str(self.model.config.get("phi", "sigmoid"))
        return [
            {
                "layer": row["layer"],
                "head": row["head"],
                "midpoint": row["midpoint"],
                "width": row["width"],
                "distance": distance.tolist(),
                "phi": phi_values(row, self.model.distance_scale, kind, distance).tolist(),
            }
            for row in self.model.learned_distances()
        ]
