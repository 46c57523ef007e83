"""Where slides come from: groups that stay on one side of a split, and how well features and labels tell the site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from dasmil.data.match import shortened
from dasmil.errors import DataError
from dasmil.stats import FollowUp, auroc, interval, log_rank, resampled

FOLDS, FEWEST_PATIENTS, RESAMPLES, MOST_DIRECTIONS = 5, 4, 500, 20
"""A site with fewer patients than FEWEST_PATIENTS is not asked for; features are read in their main directions."""


def site_groups(patients: Sequence[str], sites: Sequence[str]) -> list[str]:
    """The group of every bag that must stay on one side: its site, with sites that share a patient taken together."""
    leader = {site: site for site in sites}

    def root(site: str) -> str:
        while leader[site] != site:
            site = leader[site]
        return site

    first: dict[str, str] = {}
    for patient, site in zip(patients, sites, strict=True):
        known = first.setdefault(patient, site)
        leader[root(site)] = root(known)
    return [root(site) for site in sites]


def check_site_splits(splits: Mapping[str, Sequence[int]], groups: Sequence[str]) -> None:
    """A site on both sides of the label table's split would let a model know the test slides by their look: stop."""
    where: dict[str, set[str]] = {}
    for name, members in splits.items():
        for i in members:
            where.setdefault(groups[i], set()).add("test" if name == "test" else "train and val")
    both = [site for site, sides in where.items() if len(sides) > 1]
    if both:
        raise DataError(
            f"{len(both)} sites are on both sides of the split column: {shortened(both)}; give every site to training "
            "or to the test set, or leave --site-column or the split column out"
        )


@dataclass(frozen=True)
class SiteFinding:
    """How well the site can be told from mean features alone, and how label and site go together.

    auroc: mean over sites, one against the rest, of slides whose patients the regression had not seen; None where fewer
    than two sites have enough patients. cramers_v: 0 where label and site have nothing to do with each other, 1 where
    one tells the other; p: of that by chance (chi-square, one label a patient).
    """

    sites: dict[str, int]
    asked: int
    auroc: float | None
    auroc_interval: tuple[float, float] | None
    cramers_v: float | None
    p: float | None
    by_class: dict[str, dict[str, int]]
    what: str = "Label"
    log_rank_p: float | None = None
    """Of times until an event: how likely survival of sites differs so much by chance, by the log-rank test."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The finding for people."""
        sizes = shortened([f"{site} {n}" for site, n in sorted(self.sites.items(), key=lambda item: -item[1])], 6)
        found = [f"{len(self.sites)} sites (slides): {sizes}"]
        if self.auroc is None:
            found.append(f"Too few patients per site to ask whether features tell it (fewer than {FEWEST_PATIENTS})")
        else:
            ends = ", 95 % interval {:.3f}-{:.3f}".format(*self.auroc_interval) if self.auroc_interval else ""
            found.append(
                f"The site can be told from mean features alone with AUROC {self.auroc:.3f}{ends} ({self.asked} sites, "
                f"{FOLDS} folds by patient; 0.5 is chance)"
            )
        if self.cramers_v is not None and self.p is not None:
            p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
            found.append(
                f"{self.what} and site go together with Cramer's V {self.cramers_v:.2f} ({p}; 0 none, 1 wholly)"
            )
        if self.log_rank_p is not None:
            p = "p < 0.001" if self.log_rank_p < 0.001 else f"p = {self.log_rank_p:.3f}"
            found.append(f"Survival differs between sites with {p} (log-rank, one slide a patient)")
        return found

    @property
    def warning(self) -> str | None:
        """Why sites must not be split, where both the features and the labels know them."""
        p = self.p if self.log_rank_p is None else self.log_rank_p
        if self.auroc_interval is None or self.auroc_interval[0] <= 0.5 or p is None or p >= 0.05:
            return None
        return (
            "features tell the site and the site tells the label: a model may learn the site instead of the disease; "
            "train with --site-column, so that no site is on both sides of a split"
        )


def look_at_sites(
    means: NDArray[np.float64],
    sites: Sequence[str],
    patients: Sequence[str],
    labels: Sequence[int | None],
    classes: Sequence[str],
    follow: FollowUp | None = None,
    *,
    what: str = "Label",
    seed: int = 0,
) -> SiteFinding:
    """Ask mean features [n, f] of slides for their site, and compare sites with labels (called ``what``), or with times
    until an event.
    """
    counts = {site: sum(s == site for s in sites) for site in dict.fromkeys(sites)}
    asked, value, ends = _told_by_features(means, sites, patients, seed)
    first = {patient: i for i, patient in reversed(list(enumerate(patients)))}
    known = [i for i in first.values() if labels[i] is not None]
    table = {
        site: {name: sum(sites[i] == site and labels[i] == c for i in known) for c, name in enumerate(classes)}
        for site in counts
    }
    v, p = _cramers_v(np.array([list(row.values()) for row in table.values()], dtype=np.float64))
    rank = None
    if follow is not None:
        rank = log_rank(follow[np.array(known)], [sites[i] for i in known])[1]
    return SiteFinding(counts, asked, value, ends, v, p, table, what, None if rank is None or np.isnan(rank) else rank)


def _told_by_features(
    means: NDArray[np.float64], sites: Sequence[str], patients: Sequence[str], seed: int
) -> tuple[int, float | None, tuple[float, float] | None]:
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    holders: dict[str, set[str]] = {}
    for site, patient in zip(sites, patients, strict=True):
        holders.setdefault(site, set()).add(patient)
    names = [site for site, own in holders.items() if len(own) >= FEWEST_PATIENTS]
    if len(names) < 2:
        return len(names), None, None
    rows = [i for i, site in enumerate(sites) if site in names]
    x, y = means[rows], np.array([names.index(sites[i]) for i in rows])
    owners = [patients[i] for i in rows]
    folds = min(FOLDS, min(len(holders[name]) for name in names))
    told = np.zeros((len(rows), len(names)))
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    for rest, fold in splitter.split(x, y, owners):
        directions = PCA(min(MOST_DIRECTIONS, len(rest) - 1, x.shape[1]), random_state=seed)
        rule = make_pipeline(StandardScaler(), directions, StandardScaler(), LogisticRegression(max_iter=2000))
        rule.fit(x[rest], y[rest])
        every = np.zeros((len(fold), len(names)))
        every[:, rule.classes_.astype(int)] = rule.predict_proba(x[fold])
        told[fold] = every

    def mean_auroc(weights: NDArray[np.float64] | None) -> NDArray[np.float64]:
        return np.mean([auroc(told[:, c], y == c, weights) for c in range(len(names))], axis=0)

    draws = [mean_auroc(weights) for weights in resampled(y.astype(np.int64), owners, RESAMPLES, seed)]
    low, high = interval(draws)
    return len(names), float(mean_auroc(None)[0]), (low, high)


def _cramers_v(table: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Of a table [sites, classes]; nothing where one of them does not vary."""
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    if min(table.shape) < 2:
        return None, None
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    statistic = float((np.square(table - expected) / expected).sum())
    sizes = np.array(table.shape) - 1
    return float(np.sqrt(statistic / table.sum() / sizes.min())), float(chi2.sf(statistic, int(sizes.prod())))
