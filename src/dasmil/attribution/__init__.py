"""Which instances, at which distances, decided? Exact accounts of a logit, and what can be drawn from them."""

from __future__ import annotations

from dasmil.attribution.account import METHODS, Account
from dasmil.attribution.deciding import Partner
from dasmil.models.base import MILModel
from dasmil.types import Bag, Explanation

__all__ = ["METHODS", "Account", "Partner", "explain", "partners"]


def explain(
    model: MILModel,
    bag: Bag,
    *,
    method: str = "auto",
    target: int | None = None,
    top: int = 100,
    attention: bool | None = None,
) -> Explanation:
    """Say which instances and pairs made the logit of a bag: ``contributions.sum() + bias + residual == logit``.

    method: "exact" (models whose logit splits once the attention weights are held: das-mil, the sa family, ab-mil and
    the pooling models), "integrated-gradients" (all models), or "auto": exact where there is one.
    target: the class to explain; by default class 1, for more than two classes the predicted one.
    top: how many of the strongest pairs to list. attention: also compute the attention that each instance receives from
    all others, n^2 pairs; by default for bags of at most 20,000 instances.
    """
    return Account(model, bag).explain(method=method, target=target, top=top, attention=attention)


def partners(model: MILModel, bag: Bag, i: int, top: int = 20) -> list[Partner]:
    """What instance i attends to, strongest first, with distances in the bag's unit; to ask often, keep an Account."""
    return Account(model, bag).partners(i, top)
