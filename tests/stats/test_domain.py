"""Distance of slides to training features: left-out patients by hand, and how often a slide like them is marked."""

from __future__ import annotations

import numpy as np
import pytest

from dasmil.errors import InputError
from dasmil.stats.domain import fit_domain


def slides(rng, patients, features=20, move=0.0):
    own = np.repeat(np.arange(patients), rng.integers(1, 4, patients))
    x = rng.normal(size=(patients, features))[own] + 0.3 * rng.normal(size=(len(own), features)) + move
    return x, [f"p{i}" for i in own]


def test_a_training_slide_is_measured_from_other_patients() -> None:
    x, patients = slides(np.random.default_rng(0), 15)
    found = fit_domain(x, patients)
    for i in (0, 7, len(x) - 1):
        others = x[[j for j, who in enumerate(patients) if who != patients[i]]]
        z = (x[i] - others.mean(0)) / others.std(0, ddof=1)
        assert found.distances[i] == pytest.approx(np.sqrt((z**2).mean()))
    assert found.distance(x[:1] * 0 + x.mean(0)) == pytest.approx([0])


def test_slides_like_those_of_training_are_seldom_unusual_and_shifted_ones_are() -> None:
    rng = np.random.default_rng(1)
    marked = []
    for _ in range(60):
        found = fit_domain(*slides(rng, 80))
        marked.append(found.unusual(found.distance(slides(rng, 40)[0])).mean())
    assert np.mean(marked) <= 0.025, "about one in a hundred"
    found = fit_domain(*slides(rng, 80))
    assert found.unusual(found.distance(slides(rng, 40, move=2.0)[0])).mean() > 0.95
    # of fewer than 100 slides: those farther than all
    few = fit_domain(*slides(rng, 12))
    assert few.unusual(np.array([few.distances.max() * 1.01])).all()
    assert not few.unusual(np.array([np.median(few.distances)])).any()


def test_constant_features_and_few_patients() -> None:
    rng = np.random.default_rng(2)
    x, patients = slides(rng, 20)
    x[:, 3] = 1.0
    found = fit_domain(x, patients)
    assert np.isfinite(found.distances).all()
    assert found.unusual(found.distance(x + np.eye(20)[3])).all(), "a feature that never moved did"
    assert np.isfinite(fit_domain(np.ones((12, 4)), [str(i) for i in range(12)]).distances).all()
    with pytest.raises(InputError, match="9 training patients are too few"):
        fit_domain(*slides(rng, 9))
