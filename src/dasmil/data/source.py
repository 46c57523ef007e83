"""The one reader of a cohort's feature files: each is opened once, checked, and kept while memory lasts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dasmil.data.checks import Finding, look
from dasmil.data.formats import FeatureFile, read_features, slide_name
from dasmil.data.memory import MEMORY_GB
from dasmil.data.scale import Scale, Scales
from dasmil.errors import DataError
from dasmil.types import Bag

_Version = tuple[tuple[int, int, Scale], ...]


@dataclass(frozen=True)
class _Kept:
    """A bag in memory, with the state of its files when they were read."""

    bag: Bag
    version: _Version
    n_bytes: int


class BagSource:
    """Reads the files of a cohort for all who need them: the report, training, whitening, baselines, predictions.

    A file is read again only if it (or its scale) changed, or if the bags do not fit into ``memory_gb``. Then those
    that were read first stay in memory, because every pass begins with them.
    """

    def __init__(self, scales: Scales | None = None, memory_gb: float = MEMORY_GB) -> None:
        self.scales = scales or Scales()
        self._free = int(memory_gb * 2**30)
        self._kept: dict[Hashable, _Kept] = {}
        self.looks: dict[Path, tuple[dict[str, Any], list[Finding]]] = {}
        """What the doctor says of files whose features were read."""
        self._briefs: dict[Path, tuple[FeatureFile, bool, _Version]] = {}

    def brief(self, path: Path, *, features: bool = False) -> FeatureFile:
        """What a file says, without features and positions; features: they are read, checked and kept as well."""
        version = self._version((path,))
        known = self._briefs.get(path)
        if known is None or known[2] != version or (features and not known[1]):
            file = read_features(path, self._scale(path), features=features)
            _check_finite(path, file)
            if features:
                self.looks[path] = look(file, self._scale(path), slide_name(path))
                self._keep(path, to_bag(file, slide_name(path)), version)
            known = self._note(path, file, features, version)
        return known[0]

    def bag(self, path: Path) -> Bag:
        """The bag in a file."""
        return self.made(path, (path,), lambda: self._read(path))

    def made(self, key: Hashable, paths: Sequence[Path], make: Callable[[], Bag]) -> Bag:
        """A bag that is made of these files; once it is in memory, the files by themselves are let go."""
        version = self._version(paths)
        known = self._kept.get(key)
        if known is not None and known.version == version:
            return known.bag
        bag = make()
        for path in paths:
            self._let_go(path)
        self._keep(key, bag, version)
        return bag

    def _read(self, path: Path) -> Bag:
        version = self._version((path,))
        file = read_features(path, self._scale(path))
        if path not in self._briefs:
            self._note(path, file, False, version)
        return to_bag(file, slide_name(path))

    def _version(self, paths: Sequence[Path]) -> _Version:
        """What changes when files or their scales do; of a missing file it is enough that reading it says so."""
        states = [path.stat() if path.exists() else None for path in paths]
        return tuple(
            (0 if state is None else state.st_size, 0 if state is None else state.st_mtime_ns, self._scale(path))
            for path, state in zip(paths, states, strict=True)
        )

    def _scale(self, path: Path) -> Scale:
        return self.scales.of(slide_name(path))

    def _note(
        self, path: Path, file: FeatureFile, checked: bool, version: _Version
    ) -> tuple[FeatureFile, bool, _Version]:
        nothing = np.empty((0, 0), np.float32)
        brief = replace(file, features=nothing, coords=nothing, optional={}, metadata={}, instance_ids=None)
        self._briefs[path] = brief, checked, version
        return self._briefs[path]

    def _keep(self, key: Hashable, bag: Bag, version: _Version) -> None:
        self._let_go(key)
        n_bytes = bag.features.numel() * bag.features.element_size() + bag.coords.numel() * bag.coords.element_size()
        if n_bytes <= self._free:
            self._free -= n_bytes
            self._kept[key] = _Kept(bag, version, n_bytes)

    def _let_go(self, key: Hashable) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._free += kept.n_bytes


def to_bag(file: FeatureFile, bag_id: str) -> Bag:
    """A feature file as a bag; how its positions were found travels in ``metadata['coords_rule']``."""
    optional = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in file.optional.items()}
    metadata = {"coords_rule": file.rule, "source_format": file.probe.format, **file.metadata}
    for name, value in (("tile_um", file.tile_um), ("mpp", file.mpp), ("encoder", file.probe.encoder)):
        if value is not None:
            metadata.setdefault(name, value)
    return Bag(
        features=file.features,  # type: ignore[arg-type]
        coords=file.coords,  # type: ignore[arg-type]
        unit="um",
        bag_id=bag_id,
        metadata=metadata,
        instance_ids=file.instance_ids,
        **optional,  # type: ignore[arg-type]
    )


def _check_finite(path: Path, file: FeatureFile) -> None:
    if not np.isfinite(file.coords).all():
        raise DataError(f"{path}: instances have NaN or infinite coordinates; repair them")
    if file.features.size and not np.isfinite([file.features.min(), file.features.max()]).all():
        bad = int((~np.isfinite(file.features)).reshape(len(file.features), -1).any(axis=1).sum())
        raise DataError(
            f"{path}: {bad:,} of {len(file.features):,} instances have NaN or infinite features; "
            "extract the slide again, or remove these instances"
        )
