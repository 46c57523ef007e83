"""Sites: groups that stay together, and how well features and labels tell them."""

import numpy as np
import pytest

from dasmil.data.sites import check_site_splits, look_at_sites, site_groups
from dasmil.data.splits import make_folds, split_patients
from dasmil.errors import DataError, InputError


def cohort(n=120, sites=6, seed=0):
    rng = np.random.default_rng(seed)
    patients = [f"p{i // 2}" for i in range(n)]
    site = [f"site {int(rng.integers(sites))}" for _ in range(n // 2)]
    return patients, [site[i // 2] for i in range(n)], rng.integers(0, 2, n // 2).repeat(2).tolist()


def test_no_site_is_on_both_sides_of_a_split():
    patients, sites, labels = cohort()
    groups = site_groups(patients, sites)
    parts = split_patients(groups, labels, {"train": 0.7, "val": 0.15, "test": 0.15}, 3, what="site")
    where = [{sites[i] for i in part} for part in parts.values()]
    assert sum(map(len, where)) == len(set(sites))
    for fold in make_folds(groups, labels, 3, 0, what="site"):
        sides = [{sites[i] for i in part} for part in (fold.train, fold.val, fold.test)]
        assert sum(map(len, sides)) == len(set.union(*sides)) == len(set(sites))


def test_sites_that_share_a_patient_stay_together():
    assert site_groups(["a", "a", "b", "c"], ["x", "y", "y", "z"]) == ["x", "x", "x", "z"]
    assert len(set(site_groups(["a", "b", "b", "c", "c"], ["x", "x", "y", "y", "z"]))) == 1


def test_too_few_sites_are_said_as_sites():
    with pytest.raises(InputError, match="5 folds were asked for, but there are only 3 sites"):
        make_folds(["x", "x", "y", "z"], [0, 1, 0, 1], 5, what="site")
    with pytest.raises(InputError, match="class 1 has 1 site, fewer than the 2 folds"):
        make_folds(["x", "x", "y", "y"], [0, 1, 0, 0], 2, what="site")


def test_a_site_on_both_sides_of_the_split_column_stops():
    check_site_splits({"train": [0], "val": [1], "test": [2]}, ["x", "x", "y"])
    with pytest.raises(DataError, match="1 sites are on both sides of the split column: x"):
        check_site_splits({"train": [0], "val": [1], "test": [2]}, ["x", "y", "x"])


def test_features_that_know_the_site_are_told():
    patients, sites, labels = cohort(sites=3)
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 1, (120, 10))
    blind = look_at_sites(noise, sites, patients, labels, ["a", "b"])
    assert blind.auroc_interval[0] < 0.5 < blind.auroc_interval[1]
    assert blind.warning is None
    shift = 1.5 * np.eye(10)[[int(site[-1]) for site in sites]]
    aware = look_at_sites(noise + shift, sites, patients, labels, ["a", "b"])
    assert aware.auroc > 0.8
    assert aware.warning is None  # the labels do not go with the site
    assert sum(aware.sites.values()) == 120
    confounded = look_at_sites(noise + shift, sites, patients, [int(s[-1] == "0") for s in sites], ["a", "b"])
    assert confounded.cramers_v == pytest.approx(1)
    assert confounded.p < 0.001
    assert "--site-column" in confounded.warning
    assert any("AUROC" in line for line in confounded.lines())


def test_the_association_is_that_of_patients_and_of_the_table():
    patients, sites = ["a", "a", "b", "c", "d"], ["x", "x", "x", "y", "y"]
    found = look_at_sites(np.zeros((5, 2)), sites, patients, [0, 0, 0, 1, 1], ["no", "yes"])
    assert found.by_class == {"x": {"no": 2, "yes": 0}, "y": {"no": 0, "yes": 2}}  # of patients, not of slides
    assert found.cramers_v == pytest.approx(1)
    assert (found.asked, found.auroc) == (0, None)
    one = look_at_sites(np.zeros((3, 2)), ["x"] * 3, ["a", "b", "c"], [0, 1, 1], ["no", "yes"])
    assert (one.cramers_v, one.p) == (None, None)
