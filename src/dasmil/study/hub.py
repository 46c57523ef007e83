"""Trained models to hand on: a folder with weights, configuration and card, on disk or on a model hub."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dasmil.errors import DataError, InputError, MissingDependencyError, shown
from dasmil.files import read_object, write_text
from dasmil.models.base import MILModel
from dasmil.models.storage import MODEL_FILE, read_model, save
from dasmil.runs import Run
from dasmil.stats import probabilities
from dasmil.study.apply import MEMORY_GB, check_fits
from dasmil.study.card import model_card
from dasmil.study.checklists import checklists
from dasmil.train.evaluate import model_logits
from dasmil.train.feed import Feed
from dasmil.types import Bag

CONFIG, CARD = "config.json", "README.md"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_NEEDS = ("huggingface_hub", "hub")


@dataclass(frozen=True, eq=False)
class PretrainedModels:
    """The models of a folder that `save_pretrained` wrote: their probabilities are averaged.

    classes: names in order, or numbers; threshold: of two classes, from which probability on it is class 1.
    """

    models: Sequence[MILModel]
    classes: tuple[str, ...]
    threshold: float

    def predict_proba(self, bags: Sequence[Bag]) -> NDArray[np.float64]:
        """Probability of every class [bags, classes]."""
        feed = Feed(bags, torch.device("cpu"), memory_gb=MEMORY_GB, name="given", labelled=False)
        check_fits(self.models[0], feed.facts)
        mean = probabilities(model_logits(self.models, feed), self.models[0].n_classes).mean(0)
        return np.stack([1 - mean, mean], axis=1) if mean.ndim == 1 else mean

    def predict(self, bags: Sequence[Bag]) -> list[str]:
        """The class of every bag by its name."""
        scored = self.predict_proba(bags)
        two = scored.shape[1] == 2
        numbers = (scored[:, 1] >= self.threshold).astype(int) if two else scored.argmax(1)
        return [self.classes[number] for number in numbers]


def save_pretrained(run: Run | str | Path, folder: str | Path) -> Path:
    """Write the models of a run (all seeds and folds) with a model card to a folder of their own; returns it.

    Example: ``dasmil.save_pretrained("runs/mine", "share/mine")``

    model.safetensors is the first model, model-1.safetensors and so on are the others; config.json lists them;
    README.md is the card; TRIPOD-AI.md and CLAIM.md are checklists with the items that the run knows. Neither paths
    nor names of bags and patients are written.
    """
    stored = run if isinstance(run, Run) else Run.read(run)
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is there and not an empty folder: choose another")
    card = model_card(stored)
    models = stored.models()
    files = [MODEL_FILE, *(f"model-{number}.safetensors" for number in range(1, len(models)))]
    for model, file in zip(models, files, strict=True):
        save(model, target / file)
    config = {
        "library_name": "dasmil", "format_version": 1, "model": stored.model, "options": models[0].config,
        "models": files, "classes": stored.class_names or [str(number) for number in range(stored.classes)],
        "threshold": 0.5 if stored.decision is None else stored.decision,
    }  # fmt: skip
    write_text(target / CONFIG, json.dumps(config, indent=2, sort_keys=True) + "\n")
    write_text(target / CARD, card)
    for name, text in checklists(stored).items():
        write_text(target / name, text)
    return target


def from_pretrained(source: str | Path, *, revision: str | None = None) -> PretrainedModels:
    """The models of a folder that `save_pretrained` wrote, or of a repository OWNER/NAME of the Hugging Face hub.

    Only a name that is no folder here is looked up on the hub, and then files are fetched (extra ``hub``).
    """
    folder = Path(source)
    if not folder.is_dir():
        folder = _fetched(str(source), revision)
    known = read_object(folder / CONFIG, "the configuration of a model that dasmil.save_pretrained wrote")
    files, classes, threshold = known.get("models"), known.get("classes"), known.get("threshold")
    plain = isinstance(files, list) and files and all(isinstance(f, str) and Path(f).name == f for f in files)
    if known.get("library_name") != "dasmil" or not plain:
        raise DataError(f"{folder / CONFIG} lists no models of dasmil: expected what dasmil.save_pretrained wrote")
    assert isinstance(files, list)
    if len(set(files)) < len(files):
        raise DataError(f"{folder / CONFIG} lists a model twice, expected {len(set(files))} different ones")
    models = [read_model(folder / file) for file in files]
    if len({(model.name, model.n_classes, model.encoder.in_shape) for model in models}) > 1:
        raise DataError(f"{folder} holds models of several kinds, expected those of one training")
    count = models[0].n_classes
    named = isinstance(classes, list) and len(classes) == count and all(isinstance(name, str) for name in classes)
    if not named or isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise DataError(
            f"{folder / CONFIG}: classes are {shown(classes)} with threshold {shown(threshold)}, expected {count} "
            "names and a number from 0 to 1"
        )
    assert isinstance(classes, list)
    return PretrainedModels(models, tuple(map(str, classes)), float(threshold))


def push_to_hub(run: Run | str | Path, repository: str, *, private: bool = True) -> str:
    """Write a run's models and card and upload them to OWNER/NAME of the Hugging Face hub; returns its address.

    The only function that sends anything. It uses the login of huggingface_hub; a new repository is private unless
    told otherwise.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise InputError(f"the repository is {shown(repository)}, expected OWNER/NAME")
    hub = _hub("Uploading a model")
    with tempfile.TemporaryDirectory() as temporary:
        folder = save_pretrained(run, Path(temporary) / "model")
        try:
            hub.HfApi().create_repo(repository, private=private, exist_ok=True)
            return str(hub.HfApi().upload_folder(repo_id=repository, folder_path=str(folder)))
        except Exception as error:  # the hub's, the network's and the login's errors
            raise DataError(f"{repository} was not uploaded: {error}") from error


def _fetched(source: str, revision: str | None) -> Path:
    if not _REPOSITORY.fullmatch(source):
        raise InputError(
            f"no folder {source}: expected one that dasmil.save_pretrained wrote, or OWNER/NAME on the hub"
        )
    hub = _hub("Fetching a model from the hub")
    try:
        return Path(hub.snapshot_download(source, revision=revision, allow_patterns=["*.safetensors", CONFIG]))
    except Exception as error:  # the hub's and the network's errors
        raise DataError(f"{source} is no folder here, and was not fetched from the hub: {error}") from error


def _hub(purpose: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingDependencyError(*_NEEDS, purpose) from None
    return huggingface_hub
