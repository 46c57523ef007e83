"""The registry: name -> class, one file per paper."""

from __future__ import annotations

from typing import Any

from dasmil.errors import InputError, unknown_name
from dasmil.models.ab_mil import ABMIL, GatedABMIL
from dasmil.models.abmilx import ABMILX
from dasmil.models.acmil import ACMIL
from dasmil.models.aem import AEM
from dasmil.models.bag_summary import BagSummary
from dasmil.models.base import MILModel
from dasmil.models.camil import CAMIL
from dasmil.models.clam import CLAMMB, CLAMSB
from dasmil.models.combined import ModelSum
from dasmil.models.das_mil import DASMIL
from dasmil.models.dgr_mil import DGRMIL
from dasmil.models.disc_rel_sa import DiscRelSA
from dasmil.models.dsmil import DSMIL
from dasmil.models.dtfd import DTFDMIL
from dasmil.models.feather import Feather
from dasmil.models.gabmil import GABMIL
from dasmil.models.gnn import GAT, GCN
from dasmil.models.ilra import ILRAMIL
from dasmil.models.long_mil import LongMIL
from dasmil.models.mamba_2d import Mamba2D
from dasmil.models.mamba_mil import MambaMIL
from dasmil.models.mean_mlp import MeanMLP
from dasmil.models.mil_gnn import MILGNN, MILGNNDS
from dasmil.models.nnmil import NnMIL
from dasmil.models.patch_gcn import PatchGCN
from dasmil.models.pooling import MaxPool, MeanPool
from dasmil.models.presets import PRESETS
from dasmil.models.psa_mil import PSAMIL
from dasmil.models.rrt_mil import RRTMIL
from dasmil.models.sa import SA
from dasmil.models.sa_distance import SAAlibi, SARope
from dasmil.models.sa_position import SAAxial, SAFourier
from dasmil.models.set_transformer import ISetTransformer, SetTransformer
from dasmil.models.sizes import sizes_only
from dasmil.models.slide_transformer import SlideTransformer
from dasmil.models.sm_abmil import SmABMIL
from dasmil.models.snuffy import Snuffy
from dasmil.models.span import SPAN
from dasmil.models.stamp_vit import StampViT
from dasmil.models.storage import read_model
from dasmil.models.transformer_mil import TransformerMIL
from dasmil.models.transmil import TransMIL
from dasmil.models.wikg import WiKG

MODELS: dict[str, type[MILModel]] = {
    "max-pool": MaxPool,
    "mean-pool": MeanPool,
    "ab-mil": ABMIL,
    "gated-ab-mil": GatedABMIL,
    "mil-gnn": MILGNN,
    "mil-gnn-ds": MILGNNDS,
    "gat": GAT,
    "gcn": GCN,
    "set-transformer": SetTransformer,
    "iset-transformer": ISetTransformer,
    "sa": SA,
    "sa-axial": SAAxial,
    "sa-fourier": SAFourier,
    "disc-rel-sa": DiscRelSA,
    "transmil": TransMIL,
    "das-mil": DASMIL,
    "sa-alibi": SAAlibi,
    "sa-rope": SARope,
    "slide-transformer": SlideTransformer,
    "clam-sb": CLAMSB,
    "clam-mb": CLAMMB,
    "dsmil": DSMIL,
    "dtfd-mil": DTFDMIL,
    "ilra-mil": ILRAMIL,
    "transformer-mil": TransformerMIL,
    "stamp-vit": StampViT,
    "long-mil": LongMIL,
    "psa-mil": PSAMIL,
    "sm-abmil": SmABMIL,
    "patch-gcn": PatchGCN,
    "camil": CAMIL,
    "wikg": WiKG,
    "rrt-mil": RRTMIL,
    "mean-mlp": MeanMLP,
    "feather": Feather,
    "acmil": ACMIL,
    "aem": AEM,
    "nnmil": NnMIL,
    "abmilx": ABMILX,
    "gabmil": GABMIL,
    "snuffy": Snuffy,
    "mamba-mil": MambaMIL,
    "2dmamba-mil": Mamba2D,
    "span": SPAN,
    "dgr-mil": DGRMIL,
}

STORED: dict[str, type[MILModel]] = {**MODELS, "bag-summary": BagSummary, "auto": ModelSum}
"""All that a model file may hold: also what default training fits, which no gradient trains."""

MOST_PARAMETERS = 500_000_000

__all__ = ["MODELS", "PRESETS", "STORED", "MILModel", "create_model", "list_models", "read_model", "resolve_options"]


def list_models() -> list[str]:
    """The names that create_model takes."""
    return list(MODELS)


def resolve_options(name: str, preset: str | None = None, **options: Any) -> dict[str, Any]:
    """The options of a model: those of the preset, overruled by those given; checked, without defaults."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    cls = MODELS[name]
    resolved: dict[str, Any] = {}
    if preset is not None:
        if preset not in PRESETS:
            raise unknown_name("preset", preset, PRESETS)
        if preset not in cls.presets:
            raise InputError(
                f"the paper has no {preset} setting of {name}: leave the preset out and give in_features "
                "and the other options"
            )
        resolved |= PRESETS[preset] | cls.presets[preset]
    known = cls.schema()
    for option in options:
        if option not in known:
            raise unknown_name(f"option of {name}", option, known)
    return resolved | {option: known[option].check(value) for option, value in options.items()}


def create_model(name: str, in_features: int | None = None, preset: str | None = None, **options: Any) -> MILModel:
    """A new model by name, for example ``create_model("das-mil", in_features=768, distance_scale=500.0)``.

    preset: "mnist-collage" or "camelyon16" start from the paper's settings; further options overrule them.
    """
    if in_features is not None:
        options["in_features"] = in_features
    resolved = resolve_options(name, preset, **options)
    if any(isinstance(value, int) and value > 4096 for value in resolved.values()):
        _check_size(name, resolved)
    return MODELS[name](**resolved)


def _check_size(name: str, options: dict[str, Any]) -> None:
    """Refuse a model of more parameters than any bag could teach, before memory is taken for it."""
    with sizes_only():
        parameters = sum(p.numel() for p in MODELS[name](**options).parameters())
    if parameters > MOST_PARAMETERS:
        raise InputError(
            f"this {name} would have {parameters:,} parameters, expected at most {MOST_PARAMETERS:,}: "
            "choose smaller sizes"
        )
