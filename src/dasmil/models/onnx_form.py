"""Models outside of PyTorch: an ONNX file for bags of any size, compared with the model before it is written."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dasmil.errors import InputError, MissingDependencyError
from dasmil.files import replacing
from dasmil.models.base import MILModel
from dasmil.ops.das_attention import written_out

TOLERANCE = 1e-5
_SIZES = (3, 17, 64)  # bags on which the file is compared; the graph is made from the second


def export_onnx(model: MILModel, path: str | Path) -> float:
    """Write a model as ONNX: features [n, *f] and coords [n, 2] in, logit out; returns the largest difference seen.

    n is free. Attention by distance is written as n x n numbers per head. One section, no padding. The file is compared
    with the model by onnxruntime on random bags of three sizes, and is not written where they differ by more than 1e-5
    (of logits above 1: of their size).
    """
    target = Path(path)
    runtime = _runtime()
    model = model.eval()
    logged = logging.getLogger("torch.onnx").level
    try:
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad(), written_out():
            warnings.simplefilter("ignore")
            n = torch.export.Dim("n", min=2)
            program: Any = torch.onnx.export(
                _LogitOnly(model), _bag(model, _SIZES[1]), dynamo=True, dynamic_shapes=({0: n}, {0: n}),
                input_names=["features", "coords"], output_names=["logit"], verbose=False,
            )  # fmt: skip
    except Exception as error:  # torch.export and the translation to ONNX have many errors of their own
        raise _cannot(model, error) from None
    finally:
        logging.getLogger("torch.onnx").setLevel(logged)
    with replacing(target) as temporary:
        program.save(str(temporary))
        return _compared(runtime, model, temporary)


class _LogitOnly(nn.Module):
    """The logit of one bag."""

    def __init__(self, model: MILModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor, coords: Tensor) -> Tensor:
        return self.model(features, coords).logit


def _bag(model: MILModel, n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    features = torch.randn(n, *model.encoder.in_shape, generator=generator)
    return features, 4 * model.distance_scale * torch.rand(n, 2, generator=generator)


def _compared(runtime: Any, model: MILModel, file: Path) -> float:
    """The largest difference between file and model; more than rounding is an error."""
    worst = 0.0
    try:
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        for n in _SIZES:
            features, coords = _bag(model, n)
            with torch.no_grad():
                expected = model(features, coords).logit
            given = {"features": features.numpy(), "coords": coords.numpy()}
            found = torch.from_numpy(session.run(None, {i.name: given[i.name] for i in session.get_inputs()})[0])
            size = max(1.0, float(expected.abs().max()))
            worst = max(worst, float((found - expected).abs().max()) / size)
    except Exception as error:  # onnxruntime's own: an operator or a shape that it does not take
        raise _cannot(model, error) from None
    if not worst <= TOLERANCE:
        raise InputError(
            f"the ONNX file of this {model.name} differs from the model by {worst:.2g}, more than {TOLERANCE:g}; it "
            "was not written"
        )
    return worst


def _cannot(model: MILModel, error: Exception) -> InputError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(
        f"{model.name} cannot be exported to ONNX with a free number of instances (docs/connect.md lists which can): "
        f"{reason[:150]}"
    )


def _runtime() -> Any:
    try:
        import onnx  # noqa: F401  (torch writes with it)
        import onnxruntime
        import onnxscript  # noqa: F401  (torch translates with it)
    except ImportError:
        raise MissingDependencyError("onnx, onnxscript and onnxruntime", "onnx", "Exporting a model to ONNX") from None
    return onnxruntime
