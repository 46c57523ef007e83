"""Run by test_triton.py in a process of its own: the Triton kernels are compiled for GPUs that are not here.

A pretended driver names the GPU; the host code runs as it would on it, each launch is specialised and compiled, and
none is executed. Registers and spills are read off the machine code.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

backend = importlib.import_module("dasmil.ops.das_attention.triton_backend")
kernels = importlib.import_module("dasmil.ops.das_attention.triton_kernels")
TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), "tf32x3"), "sm_90": (GPUTarget("cuda", 90, 32), "tf32x3"),
    "gfx942": (GPUTarget("hip", "gfx942", 64), "ieee"),
}  # fmt: skip
DOT = os.environ.get("DASMIL_TRITON_DOT")  # other products than the default, to count what they cost
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
SINGLE = {"FFMA", "FADD", "FMUL", "FSEL", "FMNMX", "FSETP"}
ASKED = os.environ.get("DASMIL_TRITON_TARGETS", ",".join(TARGETS)).split(",")


class Pretended:
    """A driver of a GPU that is not here."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def compiled(monkeypatch):
    """What is compiled, by kernel, instead of launched; the host computes on with zeros."""
    found: list[tuple[str, object]] = []

    def launcher(kernel, grid):
        def warm_up(*tensors, **more):
            for tensor in tensors:
                if isinstance(tensor, torch.Tensor):
                    assert tensor.is_contiguous()
                    assert tensor.data_ptr() % 16 == 0
            found.append((kernel.__name__, kernel.warmup(*tensors, grid=grid, **more)))

        return warm_up

    monkeypatch.setattr(JITFunction, "__getitem__", launcher)
    monkeypatch.setattr(backend, "_empty", lambda like, *shape: torch.ones(shape))
    monkeypatch.setattr(backend, "unsupported", lambda *_: None)
    trust = importlib.import_module("dasmil.ops.das_attention.triton_trust")
    monkeypatch.setattr(trust, "distrust", lambda *_: None)
    return found


def pretend(monkeypatch, name: str) -> None:
    target, dot = TARGETS[name]
    driver.set_active(Pretended(target))
    monkeypatch.setattr(backend, "dot_precision", lambda: DOT or dot)
    for kernel in (kernels.forward, kernels.columns, kernels.rows):
        kernel.device_caches.clear()


def registers_and_spills(kernel, folder: Path) -> tuple[int, int]:
    if "cubin" in kernel.asm:
        path = folder / "kernel.cubin"
        path.write_bytes(kernel.asm["cubin"])
        command = [TOOLS / "cuobjdump", "--dump-resource-usage", path]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return int(re.search(r"REG:(\d+)", told)[1]), int(re.search(r"STACK:(\d+)", told)[1])
    text = kernel.asm["amdgcn"]
    spills = sum(int(re.search(rf"\.{name}:\s*(\d+)", text)[1]) for name in ("vgpr_spill_count", "sgpr_spill_count"))
    return int(re.search(r"\.vgpr_count:\s*(\d+)", text)[1]), spills


def instructions_of_a_pair(path: Path, blocks: backend.Blocks) -> dict[str, float]:
    """Of a thread, in the main loop: the longest stretch of machine code that ends with a jump to its beginning."""
    told = subprocess.run([TOOLS / "nvdisasm", "-c", path], capture_output=True, text=True, check=True).stdout
    places: dict[str, int] = {}
    code: list[str] = []
    for line in told.splitlines():
        if label := re.match(r"\s*(\.L\S+):", line):
            places[label[1]] = len(code)
        elif instruction := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            code.append(instruction[1])
    jumps = ((re.search(r"BRA.*?`\((\.L\S+)\)", text), end) for end, text in enumerate(code))
    loops = [code[places[jump[1]] : end] for jump, end in jumps if jump and places.get(jump[1], end) < end]
    names = [re.sub(r"^@\S+\s+", "", text).split()[0].split(".")[0] for text in max(loops, key=len)]
    share = 32 * blocks.warps / (blocks.rows * blocks.columns)
    kinds = {"all": len(names), "MUFU": names.count("MUFU"), "FP32": sum(name in SINGLE for name in names)}
    return {kind: round(count * share, 1) for kind, count in kinds.items()}


@pytest.mark.parametrize("d", [16, 32, 64])
@pytest.mark.parametrize("target", ASKED)
def test_no_spills(problem, compiled, monkeypatch, tmp_path, target, d):
    pretend(monkeypatch, target)
    problem(64, d=d, o=d).run("triton", torch.float32)
    assert [name for name, _ in compiled] == ["forward", "columns", "rows"]
    for name, kernel in compiled:
        registers, spills = registers_and_spills(kernel, tmp_path)
        print(f"{target} d={d} {name}: {registers} registers, {kernel.metadata.shared} B shared")
        assert spills == 0, (name, registers, spills)
        assert registers > 64  # a kernel that keeps its tiles elsewhere has few
        assert kernel.metadata.shared <= 99 * 1024  # what every GPU since compute capability 8.6 gives a block
        if target != "gfx942":
            counted = instructions_of_a_pair(tmp_path / "kernel.cubin", backend.BLOCKS[name][d])
            print("  for each pair:", counted)
            assert 4 <= counted["MUFU"] <= 4.3  # a square root, two for the sigmoid, an exponential


def test_sizes_share_their_kernels(problem, compiled, monkeypatch):
    """n = 1, multiples of 16 and odd ones would each make kernels of their own, if they were allowed to."""
    pretend(monkeypatch, ASKED[0])
    for n in (1, 37, 64, 130):
        problem(n, d=16, o=16).run("triton", torch.float32)
    assert len(compiled) == 12
    assert len({id(kernel) for _, kernel in compiled}) == 3


def test_every_option_compiles(problem, compiled, monkeypatch):
    pretend(monkeypatch, ASKED[0])
    monkeypatch.setattr(backend, "WORTH_ORDERING", 0)
    problem(
        70, bias="bins", radius=0.5, section=True, mask=True, tokens=1, self_pair=False, product_term=True, axes=3,
        dropout_p=0.3, lead=(2,),
    ).run("triton", torch.float32)  # fmt: skip
    assert len(compiled) == 3
