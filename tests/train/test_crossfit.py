"""Networks of all folds at once: whose loss decides at which epoch a fold is judged."""

import numpy as np

from dasmil.train.crossfit import outputs_of_folds


def test_a_fold_is_judged_at_the_epoch_that_the_other_folds_choose() -> None:
    found = np.arange(3)[:, None, None] * np.ones((3, 4, 1))
    losses = np.array([[1.0, 1.0, 3.0, 3.0], [2.0, 2.0, 2.0, 2.0], [3.0, 3.0, 1.0, 1.0]])
    chosen = outputs_of_folds(found, losses, [np.array([0, 1]), np.array([2, 3])])
    np.testing.assert_array_equal(chosen[:, 0], [2, 2, 0, 0])


def test_the_loss_of_noise_is_not_flattered_by_the_choice_of_an_epoch() -> None:
    """Epochs that differ by chance alone: the pooled best has a lower loss than usual, what folds are judged by not."""
    rng = np.random.default_rng(0)
    held = np.arange(100).reshape(5, 20)
    pooled, judged = [], []
    for _ in range(200):
        losses = rng.normal(1.0, 0.5, size=(30, 100))
        pooled.append(losses.sum(1).min() / 100)
        judged.append(outputs_of_folds(losses[:, :, None], losses, list(held)).mean())
    assert np.mean(pooled) < 0.92
    assert abs(np.mean(judged) - 1) < 0.015
