"""Accounts that are kept with a run: a large bag is explained once, and its colours are there at once afterwards.

A file is named by what made it (weights, settings, instances), so that a changed model or bag never finds an old one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dasmil.attribution.deciding import DecidingRows
from dasmil.files import write_tensors
from dasmil.models.base import MILModel
from dasmil.types import Bag, Explanation, Pair, PairSum

FORMAT = "dasmil-account-2"  # raised when a score means something else, so that old files are no longer found
_FACTS = ("bag_id", "unit", "method", "target", "logit", "bias", "residual", "distance_share")


@dataclass(frozen=True, eq=False)
class KeptAccount:
    """An explanation as it was computed, the logits of all classes, and the rows that decided where there are any."""

    explanation: Explanation
    logits: list[float]
    winners: Tensor | None
    rows: tuple[tuple[Tensor, Tensor], ...]


def account_key(model: MILModel, bag: Bag) -> str:
    """Forty hex digits that change with any weight, setting, feature, position, section or kind."""
    total = hashlib.blake2b(digest_size=20)
    total.update(repr((FORMAT, model.name, sorted(model.config.items(), key=str), bag.bag_id, bag.unit)).encode())
    total.update(json.dumps([bag.metadata.get(n) for n in ("instance_label_names", "section_names")]).encode())
    parts: list[Tensor | None] = [bag.features, bag.coords, bag.section, bag.instance_labels]
    for tensor in [*parts, *(value for _, value in sorted(model.state_dict().items()))]:
        if tensor is None:
            total.update(b"none")
        else:
            plain = tensor.detach().cpu().contiguous()
            total.update(repr((plain.dtype, tuple(plain.shape))).encode())
            total.update(plain.view(torch.uint8).numpy().data if plain.ndim else plain.numpy().tobytes())
    return total.hexdigest()


def write_account(path: Path, explanation: Explanation, logits: Tensor, deciding: DecidingRows | None) -> None:
    """Keep an account under its name."""
    tensors = {f"score/{name}": value for name, value in explanation.scores.items()}
    if explanation.distance_part is not None and "distance" not in explanation.scores:
        tensors["distance_part"] = explanation.distance_part
    if deciding is not None:
        if deciding.winners is not None:
            tensors["winners"] = deciding.winners
        for head, (index, norm) in enumerate(deciding.rows):
            tensors |= {f"rows/{head}/index": index, f"rows/{head}/norm": norm}
    facts = {name: getattr(explanation, name) for name in _FACTS}
    facts["pairs"] = [list(asdict(pair).values()) for pair in explanation.pairs]
    facts["sums"] = {name: [asdict(part) for part in parts] for name, parts in explanation.sums.items()}
    facts["logits"] = np.atleast_1d(logits.detach().double().cpu().numpy()).tolist()
    facts["scores"] = list(explanation.scores)
    write_tensors(path, tensors, {"format": FORMAT, "account": json.dumps(facts)})


def read_account(path: Path) -> KeptAccount | None:
    """The account of an earlier time; None where there is none, or its file is damaged (it is then made again)."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                return None
            facts = json.loads(header["account"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        scores = {name: tensors[f"score/{name}"] for name in facts["scores"]}
        explanation = Explanation(
            **{name: facts[name] for name in _FACTS},
            contributions=scores["contribution"],
            distance_part=scores.get("distance", tensors.get("distance_part")),
            pairs=tuple(Pair(*values) for values in facts["pairs"]),
            scores=scores,
            sums={name: tuple(_pair_sum(part) for part in parts) for name, parts in facts["sums"].items()},
        )
        heads = sum(name.endswith("/norm") for name in tensors)
        rows = tuple((tensors[f"rows/{h}/index"], tensors[f"rows/{h}/norm"]) for h in range(heads))
        return KeptAccount(explanation, facts["logits"], tensors.get("winners"), rows)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None


def _pair_sum(part: dict) -> PairSum:
    return PairSum(tuple(part["between"]), part["contribution"], tuple(tuple(place) for place in part["places"]))
