"""What every encoder is: uint8 tiles in, float32 features out, whatever memory there is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dasmil.errors import BackendError, DataError, InputError


class Encoder:
    """Turns tiles into features.

    name, dim, input_px, licence, note: what it is; sha256: checksum of its weights (empty without any).
    batch_size: tiles computed at once, halved when memory runs out and remembered.
    """

    name: str
    dim: int
    input_px: int
    sha256: str
    licence: str
    note: str

    def __init__(
        self,
        name: str,
        *,
        dim: int,
        input_px: int,
        sha256: str = "",
        licence: str = "",
        note: str = "",
        batch_size: int = 256,
    ) -> None:
        if dim < 1 or input_px < 1:
            raise InputError(f"encoder {name!r}: dim is {dim}, input_px {input_px}; expected positive numbers")
        self.name, self.dim, self.input_px = name, dim, input_px
        self.sha256, self.licence, self.note = sha256, licence, note
        self.batch_size = batch_size

    def encode(self, batch: np.ndarray | Tensor) -> np.ndarray:
        """Features [b, dim] (float32) of tiles [b, input_px, input_px, 3] (uint8, RGB).

        Square tiles of another size are resized to input_px first.
        """
        # Read-only arrays (of Pillow) and flipped ones are copied: torch does not take them as they are.
        tiles = batch if isinstance(batch, Tensor) else torch.from_numpy(np.require(batch, requirements=["C", "W"]))
        if tiles.dtype != torch.uint8 or tiles.ndim != 4 or tiles.shape[3] != 3 or tiles.shape[1] != tiles.shape[2]:
            raise InputError(
                f"encoder {self.name!r}: tiles are {tiles.dtype} of shape {tuple(tiles.shape)}, "
                f"expected uint8 [b, {self.input_px}, {self.input_px}, 3]"
            )
        features = np.empty((len(tiles), self.dim), np.float32)
        start = 0
        while start < len(tiles):
            stop = min(start + self.batch_size, len(tiles))
            try:
                found = self._features(tiles[start:stop])
            except (RuntimeError, MemoryError) as error:
                if not _out_of_memory(error):
                    raise
                self._shrink(stop - start, error)
                continue
            if found.shape != (stop - start, self.dim):
                raise DataError(
                    f"encoder {self.name!r}: gave features of shape {tuple(found.shape)} for {stop - start} tiles, "
                    f"expected ({stop - start}, {self.dim})"
                )
            if not np.isfinite(found).all():
                raise DataError(f"encoder {self.name!r}: gave NaN or infinite features; its weights may be damaged")
            features[start:stop] = found
            start = stop
        return features

    def _features(self, tiles: Tensor) -> np.ndarray:
        raise NotImplementedError

    def _shrink(self, tried: int, error: BaseException) -> None:
        if tried == 1:
            raise BackendError(
                f"encoder {self.name!r}: not enough memory for a single tile of {self.input_px} px; "
                "free memory, or choose a smaller encoder or another device"
            ) from error
        self.batch_size = tried // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class NullEncoder(Encoder):
    """Mean colour of a tile and of its quadrants (top left, top right, bottom left, bottom right), from 0 to 1."""

    def __init__(self) -> None:
        super().__init__(
            "null",
            dim=15,
            input_px=224,
            licence="none needed",
            note="mean colours, for measuring speed and for tests; not for learning from tissue",
        )

    def _features(self, tiles: Tensor) -> np.ndarray:
        pixels = tiles.cpu().numpy()
        middle = (pixels.shape[1] + 1) // 2
        # Rows are summed first: that loop is contiguous, twenty times faster than a mean over both axes at once.
        halves = np.stack([pixels[:, :middle].sum(1, np.uint32), pixels[:, middle:].sum(1, np.uint32)], axis=1)
        sums = np.stack([halves[:, :, :middle].sum(2), halves[:, :, middle:].sum(2)], axis=2)
        sizes = np.array([middle, pixels.shape[1] - middle])
        counts = np.maximum(np.outer(sizes, sizes), 1)[:, :, None]
        whole = sums.sum((1, 2)) / pixels.shape[1] ** 2
        return (np.concatenate([whole, (sums / counts).reshape(len(pixels), 12)], axis=1) / 255).astype(np.float32)


class PixelEncoder(Encoder):
    """No encoder: the pixels themselves, uint8 [b, 3, input_px, input_px], for a CNN that is trained with the model."""

    def __init__(self, input_px: int) -> None:
        super().__init__(
            "none",
            dim=3 * input_px**2,
            input_px=input_px,
            licence="none needed",
            note="keeps the pixels, for a small CNN that dasmil train trains with the model",
        )

    def encode(self, batch: np.ndarray | Tensor) -> np.ndarray:
        pixels = batch.cpu().numpy() if isinstance(batch, Tensor) else np.asarray(batch)
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != (self.input_px, self.input_px, 3):
            raise InputError(
                f"encoder 'none': tiles are {pixels.dtype} of shape {pixels.shape}, "
                f"expected uint8 [b, {self.input_px}, {self.input_px}, 3]"
            )
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


class CallableEncoder(Encoder):
    """A Python function from tiles [b, input_px, input_px, 3] (uint8 array) to features [b, dim]."""

    def __init__(
        self,
        function: Callable[[np.ndarray], np.ndarray | Tensor],
        *,
        dim: int,
        input_px: int = 224,
        name: str | None = None,
        sha256: str = "",
        licence: str = "",
        note: str = "",
    ) -> None:
        name = name or f"callable:{getattr(function, '__qualname__', type(function).__qualname__)}"
        super().__init__(name, dim=dim, input_px=input_px, sha256=sha256, licence=licence, note=note)
        self.function = function

    def _features(self, tiles: Tensor) -> np.ndarray:
        if tiles.shape[1] != self.input_px:
            raise InputError(
                f"encoder {self.name!r}: tiles are {tiles.shape[1]} px wide, expected {self.input_px}; "
                "extract with that tile size, or declare another input_px"
            )
        found = self.function(tiles.cpu().numpy())
        if isinstance(found, Tensor):
            found = found.detach().float().cpu().numpy()
        return np.asarray(found)


def _out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
    )
