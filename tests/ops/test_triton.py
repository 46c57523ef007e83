"""The Triton kernels without a GPU: interpreted, compiled ahead, and left alone where they cannot run.

Each part has a process of its own: Triton decides once, when it is imported, whether it interprets or compiles.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dasmil.errors import BackendError
from dasmil.ops import das_attention

package = importlib.import_module("dasmil.ops.das_attention")
backend = importlib.import_module("dasmil.ops.das_attention.triton_backend")
PROJECT = Path(__file__).parents[2]
needs_triton = pytest.mark.skipif(backend.missing() is not None, reason="no triton that can be used")


def child(file: str, *options: str, **environment: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    done = subprocess.run(
        [*command, *options, f"tests/ops/{file}"], cwd=PROJECT, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@needs_triton
@pytest.mark.parametrize("part", ["planted", "not planted"])
def test_interpreted(part):
    child("triton_interpreted.py", "-k", part, TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.parametrize("targets", ["sm_80", "sm_90,gfx942"])
def test_compiled(targets, tmp_path):
    options = ["-k", "spills"] if "," in targets else []
    child(
        "triton_compiled.py",
        *options,
        DASMIL_TRITON_TARGETS=targets,
        TRITON_CACHE_DIR=str(tmp_path),
        TRITON_INTERPRET="0",
    )


def test_auto_and_import_are_unchanged_without_triton():
    """A process in which triton cannot be imported: dasmil is imported, and `auto` computes as ever."""
    code = """
import sys
sys.modules["triton"] = None
import torch
from dasmil.ops import das_attention
q = torch.randn(1, 5, 4)
found = das_attention(q, q, q, torch.rand(5, 2), scale=0.5)
assert found.shape == (1, 5, 4)
assert not [name for name in sys.modules if name.startswith("triton.") or "triton_kernels" in name]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of compute capability 8.0 that only answers questions, and a triton that is new enough."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    pretend_version(monkeypatch, "3.7.1")
    yield torch.device("cuda", 0)
    backend.missing.cache_clear()


def pretend_version(monkeypatch, version: str | None) -> None:
    def found(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(backend.importlib.metadata, "version", found)
    backend.missing.cache_clear()


def test_auto_takes_the_kernels_where_they_can_run(gpu, monkeypatch):
    assert package._choose(gpu, torch.float32, 64) == "triton"
    assert package._choose(gpu, torch.bfloat16, 16) == "triton"
    assert package._choose(gpu, torch.float64, 16) == "chunked"
    assert package._choose(gpu, torch.float32, 129) == "chunked"
    assert package._choose(torch.device("mps"), torch.float32, 16) == "chunked"
    assert package._choose(torch.device("cpu"), torch.float64, 16) == "chunked"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert package._choose(gpu, torch.float32, 64) == "chunked"


@pytest.mark.parametrize(
    ("version", "told"), [(None, "triton is not installed"), ("3.1.0", "triton is 3.1.0, expected")]
)
def test_auto_is_unchanged_without_triton_or_with_an_old_one(gpu, monkeypatch, version, told):
    pretend_version(monkeypatch, version)
    assert package._choose(gpu, torch.float32, 64) == "chunked"
    with pytest.raises(BackendError, match=told):
        backend.check_supported(gpu, torch.float32, 64)


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "width", "told"),
    [(torch.float32, 4, "run on GPUs"), (torch.float64, 4, "float64"), (torch.float32, 200, "at most 128")],
)
def test_asking_for_what_cannot_be_is_an_error(monkeypatch, dtype, width, told):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    q = torch.randn(1, 5, width, dtype=dtype)
    with pytest.raises(BackendError, match=told):
        das_attention(q, q, q, torch.rand(5, 2, dtype=dtype), scale=0.5, backend="triton")


def test_precision_follows_torch(monkeypatch):
    before = torch.get_float32_matmul_precision()
    try:
        found = {}
        for asked in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(asked)
            found[asked] = backend.dot_precision()
    finally:
        torch.set_float32_matmul_precision(before)
    assert found == {"highest": "tf32x3", "high": "tf32", "medium": "bf16"}
