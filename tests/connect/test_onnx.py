"""ONNX files give the logits of their models for bags of any size, and what cannot be exported says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import dasmil
from dasmil.cli import call
from dasmil.errors import InputError
from dasmil.models.onnx_form import export_onnx

runtime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")


@pytest.mark.parametrize(("name", "options"), [("das-mil", {"heads": 2}), ("gated-ab-mil", {})])
def test_a_file_gives_the_logits_of_its_model(
    name: str, options: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = dasmil.create_model(name, in_features=6, distance_scale=50.0, **options).eval()
    model.save(tmp_path / "model.safetensors")
    assert call(["export", str(tmp_path / "model.safetensors"), "--onnx", str(tmp_path / "a.onnx")]) == 0
    assert "largest difference" in capsys.readouterr().out
    session = runtime.InferenceSession(str(tmp_path / "a.onnx"), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    for n in (2, 9, 301):
        features = rng.normal(size=(n, 6)).astype(np.float32)
        coords = rng.uniform(0, 500, (n, 2)).astype(np.float32)
        with torch.no_grad():
            expected = float(model(features, coords).logit)
        given = {"features": features, "coords": coords}
        found = session.run(None, {i.name: given[i.name] for i in session.get_inputs()})[0]
        assert float(found) == pytest.approx(expected, abs=1e-5)


def test_a_model_that_cannot_be_exported_says_so_and_nothing_is_written(tmp_path: Path) -> None:
    model = dasmil.create_model("transmil", in_features=5)
    with pytest.raises(InputError, match="transmil cannot be exported to ONNX with a free number of instances"):
        export_onnx(model, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_of_a_cross_validation_the_fold_is_named_and_the_model_is_said(tmp_path: Path, capsys) -> None:
    stored = Path(__file__).parent.parent / "runs" / "stored" / "folds"
    with pytest.raises(InputError, match=r"cross-validation of 3 folds.*name one with --fold 0 to 2"):
        call(["export", str(stored), "--onnx", str(tmp_path / "a.onnx")])
    with pytest.raises(InputError, match="has no fold 3: it has folds 0 to 2"):
        call(["export", str(stored), "--fold", "3", "--onnx", str(tmp_path / "a.onnx")])
    call(["export", str(stored), "--fold", "1", "--seed", "1", "--onnx", str(tmp_path / "a.onnx")])
    said = stored / "fold-1" / "seed-1" / "model.safetensors"
    assert f"Model: {said}, one of 2 seeds." in capsys.readouterr().out
    session = runtime.InferenceSession(str(tmp_path / "a.onnx"), providers=["CPUExecutionProvider"])
    features, coords = torch.randn(9, 3), 500 * torch.rand(9, 2)
    with torch.no_grad():
        expected = float(dasmil.load_model(said)(features, coords).logit)
    found = session.run(None, {"features": features.numpy(), "coords": coords.numpy()})[0]
    assert float(found) == pytest.approx(expected, abs=1e-5)


def test_a_seed_that_is_not_there(tmp_path: Path) -> None:
    stored = Path(__file__).parent.parent / "runs" / "stored" / "plain"
    with pytest.raises(InputError, match="has no trained seed 77"):
        call(["export", str(stored), "--onnx", str(tmp_path / "a.onnx"), "--seed", "77"])
