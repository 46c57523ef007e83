"""Directions of features in which some instances stand out: types of instances without labels, the rare ones too.

A rare type of instances has little variance, so principal components do not show it; but a projection on which it lies
far to one side is skewed, while noise of any covariance is not. Projection pursuit by the third moment (Huber 1985;
Pena and Prieto 2001 do it with the fourth) finds one direction for every type, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SEARCHED = 48
"""Searches at a time, half of them from instances far from the centre."""
STEPS = 30
ROUNDS = 2
MOST = 24
ALIKE = 0.5  # directions with a larger cosine are the same
FEWEST_INSTANCES = 200
CLEARLY_SKEWED = 0.25
"""Skewness on instances that were not searched; a normal distribution has 0.03 at most in so large samples."""
AGREES = 0.4  # skewness that was found but for at most this share on other instances was found by chance


@dataclass(frozen=True, eq=False)
class Standouts:
    """axes [k, s]: unit directions of whitened features in which a type of instances lies far to the positive side.

    places [s]: where it lies on its axis; limits [s]: beyond which an instance counts as of the type.
    """

    axes: NDArray[np.float32]
    places: NDArray[np.float64]
    limits: NDArray[np.float64]

    def __len__(self) -> int:
        return self.axes.shape[1]


def find_standouts(x: NDArray[np.float32], half: NDArray[np.bool_], most: int = MOST) -> Standouts:
    """The directions of x [n, k] (variance one in every direction) with the largest skewness, largest first.

    half [n]: instances that are searched; the others (of other bags) have to confirm what is found, and then all
    refine it.
    """
    searched, others = x[half], x[~half]
    if min(len(searched), len(others)) < FEWEST_INSTANCES:
        return Standouts(np.zeros((x.shape[1], 0), np.float32), np.zeros(0), np.zeros(0))
    rng = np.random.default_rng(0)
    axes = _search(searched, rng)
    found, confirmed = _skewness(searched @ axes), _skewness(others @ axes)
    axes = axes[:, (confirmed > CLEARLY_SKEWED) & (confirmed > AGREES * found)]
    axes = _distinct(_climb(x, axes), x)[:, :most]
    return Standouts(axes, *_places(x @ axes))


def _search(x: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    rest, found = x, []
    for _ in range(ROUNDS):
        starts = rng.standard_normal((SEARCHED, x.shape[1])).astype(np.float32)
        far = np.argsort(-np.square(rest).sum(1))[: max(SEARCHED, len(rest) // 20)]
        starts[: SEARCHED // 2] = rest[rng.choice(far, SEARCHED // 2, replace=False)]
        axes = _distinct(_climb(rest, starts.T), rest)[:, :MOST]
        found.append(axes)
        basis = np.linalg.qr(axes)[0]
        rest = rest - (rest @ basis) @ basis.T
    return np.concatenate(found, axis=1)


def _climb(x: NDArray[np.float32], axes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Directions of locally largest skewness, by the power iteration u <- E[(u.x)^2 x] of the third moment."""
    axes = axes / np.maximum(np.linalg.norm(axes, axis=0), 1e-12)
    for _ in range(STEPS if axes.shape[1] else 0):
        new = x.T @ np.square(x @ axes)
        new /= np.maximum(np.linalg.norm(new, axis=0), 1e-12)
        moved = 1 - (axes * new).sum(0)
        axes = new
        if moved.max() < 1e-4:
            break
    return axes


def _distinct(axes: NDArray[np.float32], x: NDArray[np.float32]) -> NDArray[np.float32]:
    """One of each group of directions that are alike, the most skewed first."""
    axes = axes[:, np.argsort(-_skewness(x @ axes), kind="stable")]
    kept: list[int] = []
    for number in range(axes.shape[1]):
        if all(abs(float(axes[:, number] @ axes[:, other])) < ALIKE for other in kept):
            kept.append(number)
    return axes[:, kept]


def _skewness(y: NDArray[np.float32]) -> NDArray[np.float64]:
    y = y - y.mean(0)
    return (y**3).mean(0, dtype=np.float64) / np.maximum(y.std(0, dtype=np.float64), 1e-12) ** 3


def _places(y: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where the type lies on each axis [n, s], and from where on an instance is more likely of it than not.

    A share p of instances at d and the others about 0 has third moment p d^3 and excess of the fourth p d^4.
    """
    third = (y**3).mean(0, dtype=np.float64)
    excess = (y**4).mean(0, dtype=np.float64) - 3
    places = np.clip(excess / np.maximum(third, 1e-9), 2.0, 30.0)
    shares = np.clip(third / places**3, 1e-4, 0.5)
    return places, places / 2 + np.log((1 - shares) / shares) / places
