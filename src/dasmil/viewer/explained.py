"""One bag and one model: the account of its logit, made when first asked for, and kept with the run."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from dasmil.attribution.account import Account, check_fit
from dasmil.attribution.deciding import Partner, Sides
from dasmil.attribution.kept import KeptAccount, account_key, read_account, write_account
from dasmil.attribution.layers import Stack
from dasmil.attribution.units import in_unit
from dasmil.errors import StorageError
from dasmil.models.base import MILModel
from dasmil.stats import probabilities
from dasmil.types import Bag, Explanation
from dasmil.vocabulary import A_CLASS, Meaning

KEPT_FROM = 2000  # instances; smaller bags are explained at once
SHOWN_PARTNERS = 20


class BagAccount:
    """The account of one bag by one model; folder: where accounts of large bags are kept, or None.

    target: the output that is explained (None: the class that is told); meaning: what it says, and in which unit.
    """

    def __init__(
        self,
        model: MILModel,
        bag: Bag,
        folder: Path | None = None,
        target: int | None = None,
        meaning: Meaning = A_CLASS,
    ) -> None:
        check_fit(model, bag)
        self.model, self.bag, self.target, self.meaning = model, bag, target, meaning
        self._folder = folder if len(bag) >= KEPT_FROM else None
        self._lock = threading.Lock()
        self._explaining = threading.Lock()
        self._account: Account | None = None
        self._explanation: Explanation | None = None
        self._logits: list[float] = []
        self._found: KeptAccount | None = None
        self.warning: str | None = None

    @property
    def account(self) -> Account:
        """Answers what a single instance looks at: quick, also while the explanation is being computed."""
        with self._lock:
            if self._account is None:
                self._account = Account(self.model, self.bag)
                self._restore()
            return self._account

    def _restore(self) -> None:
        """Tell the account which rows decided, where that is known from an earlier time."""
        if self._account is not None and self._found is not None and self._found.rows:
            self._account.restore(self._found.winners, self._found.rows, self._found.explanation.target)

    @property
    def explanation(self) -> Explanation:
        """Waits for the whole account: as long as one forward pass, or until the one of an earlier time is read."""
        with self._explaining:  # one computation; the others find it done
            if self._explanation is None:
                path = None
                if self._folder is not None:
                    which = "" if self.target is None else f"-{self.target}"
                    path = self._folder / f"{account_key(self.model, self.bag)}{which}.safetensors"
                found = None if path is None else read_account(path)
                if found is None:
                    self._compute(path)
                else:
                    with self._lock:  # an instance may have been asked for already
                        self._found = found
                        self._restore()
                    self._explanation, self._logits = in_unit(found.explanation, self.meaning), found.logits
            assert self._explanation is not None
            return self._explanation

    def _compute(self, path: Path | None) -> None:
        account = self.account
        explanation = account.explain(target=self.target)
        logits = account.logits()
        self._logits = np.atleast_1d(logits.detach().double().cpu().numpy()).tolist()
        if path is not None:
            try:
                write_account(path, explanation, logits, account.deciding)
            except StorageError as error:  # the view is as good without; it is only computed again next time
                self.warning = f"This account could not be kept for the next time: {error}"
        self._explanation = in_unit(explanation, self.meaning)

    @property
    def probability(self) -> float | None:
        """Of the class whose logit is explained, among all classes of the model; None of a risk or a number."""
        explanation, classes = self.explanation, self.model.n_classes
        if self.model.outputs:
            return float(probabilities(np.array(explanation.logit), 2)) if self.meaning.probability else None
        if classes == 2:
            return float(probabilities(np.array(explanation.logit), classes))
        return float(probabilities(np.array(self._logits), classes)[explanation.target])

    @property
    def known(self) -> Explanation | None:
        """The explanation, if it has been computed already."""
        return self._explanation

    @property
    def has_pairs(self) -> bool:
        """Whether the model has attention between instances."""
        return isinstance(self.account.structure, Stack)

    def partners(self, instance: int) -> list[Partner]:
        """What an instance attends to; nothing for models without attention between instances."""
        found = self.account.partners(instance, top=SHOWN_PARTNERS) if self.has_pairs else []
        return [self._told(partner) for partner in found]

    def _told(self, partner: Partner) -> Partner:
        """The same in the unit of what is explained."""
        found = partner.contribution
        return partner if found is None else replace(partner, contribution=self.meaning.scale * found)

    def watchers(self, instance: int) -> tuple[list[Partner], Sides] | None:
        """Which deciding rows look at an instance; None before the account is there, and for models without pairs."""
        if self._explanation is None or not self.has_pairs or self.account.deciding is None:
            return None
        scale, sides = self.meaning.scale, self.account.sides(instance)
        told = replace(sides, looks=scale * sides.looks, looked_at=scale * sides.looked_at)
        return [self._told(partner) for partner in self.account.watchers(instance, top=SHOWN_PARTNERS)], told
