"""The one loader of compiled kernels: plain C libraries, built beside their operators when the package is installed."""

from __future__ import annotations

import ctypes
from pathlib import Path


def library_path(folder: Path) -> Path | None:
    """The compiled kernel in an operator's folder, or None when the package was installed without a compiler."""
    return next(iter(sorted(folder.glob("_kernel*.*"))), None)


def load(folder: Path, prefix: str, problem: type[ctypes.Structure]) -> ctypes.CDLL | str:
    """The kernel of an operator, or the reason why there is none.

    Its functions are ``<prefix>_forward`` and ``<prefix>_backward``, which take a pointer to ``problem``, and
    ``<prefix>_problem_bytes``, by which a library built from other sources is found.
    """
    path = library_path(folder)
    if path is None:
        return "it was not built when dasmil was installed (no C++ compiler?)"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"{path.name} cannot be loaded: {error}"
    size = getattr(library, f"{prefix}_problem_bytes", None)
    if size is None:
        return f"{path.name} was built from other sources"
    size.restype = ctypes.c_int64
    if size() != ctypes.sizeof(problem):
        return f"{path.name} was built from other sources"
    for name in ("forward", "backward"):
        function = getattr(library, f"{prefix}_{name}")
        function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int
    return library
