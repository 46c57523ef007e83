"""Units of work for the engine tests."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def square(number: int, result: str, seconds: float = 0.0) -> None:
    time.sleep(seconds)
    print(f"squaring {number}")
    temporary = Path(f"{result}.{os.getpid()}.tmp")
    temporary.write_text(str(number**2))
    os.replace(temporary, result)


def square_once_killed(number: int, result: str, marker: str) -> None:
    """Dies by SIGKILL the first time anyone tries, works afterwards."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        square(number, result)
        return
    os.kill(os.getpid(), signal.SIGKILL)


def always_wrong(result: str) -> None:
    from dasmil.errors import DataError

    raise DataError("slide 'x.svs' is truncated")


def unlucky(result: str) -> None:
    raise ValueError("surprise")


def hungry(result: str, batch: int) -> None:
    if batch > 8:
        raise MemoryError
    square(batch, result)


def forgetful(result: str) -> None:
    """Ends without a result."""


def killer(result: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def tell(result: str, name: str) -> None:
    """The value of an environment variable in the worker."""
    time.sleep(0.3)
    Path(result).write_text(os.environ.get(name, "not set"))
