"""`dasmil doctor --device`: the block to paste into an issue, on the CPU and with a pretended GPU."""

from __future__ import annotations

import importlib
import json
import types

import pytest
import torch

from dasmil.errors import InputError

bench = importlib.import_module("dasmil.ops.device_check")
doctor = importlib.import_module("dasmil.cli.doctor")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def report():
    return bench.check_device(CPU, sizes=(20,))


def test_every_backend_of_the_cpu_agrees(report):
    assert report.agrees
    assert {row.case for row in report.parity} == set(bench.CASES)
    assert {row.d for row in report.parity} == {16, 64}
    assert all(0 < row.error < 2e-5 for row in report.parity)
    assert [row for row in report.speed if row.milliseconds is None] == []
    assert "run on GPUs" in report.left_out


def test_the_block_names_what_an_issue_needs(report, capsys, monkeypatch):
    monkeypatch.setattr(bench, "check_device", lambda device: report)
    assert doctor.doctor(device="cpu") == 0
    told = capsys.readouterr().out
    assert told.startswith("```\ndasmil doctor --device\nversions: dasmil ")
    assert f"torch {torch.__version__}" in told
    assert "of 24 results agree" in told or "of 12 results agree" in told  # without a C++ compiler
    assert doctor.doctor(device="cpu", json=True) == 0
    assert json.loads(capsys.readouterr().out)["agrees"] is True


def test_a_wrong_result_is_named_and_the_exit_code_is_1(report, capsys, monkeypatch):
    def wrong(x, settings):
        return bench.chunked(x, settings) + x.key.sum() * 1e-3

    row = bench._parity("sigmoid", 16, "triton tf32x3", wrong, 5e-5, CPU)
    assert not row.agrees

    def fails(x, settings):
        raise RuntimeError("ptxas died\nin many lines")

    failed = bench._parity("sigmoid", 16, "triton ieee", fails, 5e-5, CPU)
    slow = bench._speed(20, 16, "triton ieee", fails, CPU)
    spoilt = bench.DeviceReport(report.about, [row, failed], [slow], None)
    monkeypatch.setattr(bench, "check_device", lambda device: spoilt)
    assert doctor.doctor(device="cpu") == 1
    told = capsys.readouterr().out
    assert "WRONG: the " in told
    assert told.count("RuntimeError: ptxas died\n") == 2
    assert "0 of 2 results agree" in told


def test_a_pretended_gpu_runs_every_precision(monkeypatch):
    """The host code of the check with a stand-in for the kernels: which backends, limits and names a GPU gets."""
    properties = types.SimpleNamespace(name="NVIDIA A100", major=8, minor=0, total_memory=40 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(bench.triton_backend, "unsupported", lambda *_: None)
    monkeypatch.setattr(bench.triton_backend, "fused", lambda x, settings, dot: bench.chunked(x, settings))
    monkeypatch.setattr(bench, "CASES", {name: bench.CASES[name] for name in ("sigmoid", "binned bias")})
    found = bench.check_device(CPU, sizes=(20,))
    assert {row.backend: row.limit for row in found.parity if row.backend.startswith("triton")} == {
        "triton tf32x3": 5e-5, "triton ieee": 5e-5, "triton tf32": 2e-2, "triton bf16": 2e-1,
    }  # fmt: skip
    assert found.agrees
    assert bench.about(torch.device("cuda", 0))["device"] == "NVIDIA A100, compute capability 8.0, 40 GiB"


def test_what_cannot_be_checked_is_refused(tmp_path):
    with pytest.raises(InputError, match="nothing to check"):
        doctor.doctor()
    with pytest.raises(InputError, match="give one of them"):
        doctor.doctor(tmp_path, device="cpu")
