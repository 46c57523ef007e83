"""The bags read last, so that a small cohort is read once and a large one never fills the memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from dasmil.types import Bag

CACHE_BYTES = 2 * 2**30


@dataclass
class BagCache:
    """The bags read last, up to a number of bytes; shared by a cohort and all its subsets."""

    limit: int = CACHE_BYTES
    _held: OrderedDict[str, Bag] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: str, read: Callable[[], Bag]) -> Bag:
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        bag = read()
        size = bag.features.nbytes + bag.coords.nbytes
        with self._lock:
            if key not in self._held and size <= self.limit:
                self._held[key] = bag
                self._bytes += size
                while self._bytes > self.limit:
                    _, old = self._held.popitem(last=False)
                    self._bytes -= old.features.nbytes + old.coords.nbytes
        return bag
