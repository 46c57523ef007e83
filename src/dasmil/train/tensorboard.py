"""TensorBoard events: the columns of metrics.csv, one run per seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dasmil.errors import MissingDependencyError
from dasmil.train.state import Progress


class EventWriter:
    """Writes one event file per seed, in a folder "tensorboard" of its own folder."""

    def __init__(self, seed_path: Callable[[int], Path]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingDependencyError("tensorboard", "tensorboard", "writing TensorBoard events") from error
        self._seed_path = seed_path
        self._create = SummaryWriter
        self._writers: dict[int, SummaryWriter] = {}

    def __call__(self, progress: Progress) -> None:
        for seed, row in zip(progress.seeds, progress.rows, strict=True):
            if seed not in self._writers:
                folder = self._seed_path(seed) / "tensorboard"
                self._writers[seed] = self._create(str(folder), purge_step=progress.epoch)
            writer = self._writers[seed]
            for name, value in row.items():
                if name != "epoch":
                    writer.add_scalar(name, value, int(row["epoch"]))
            writer.flush()
