"""`dasmil export`: a trained model for programs without PyTorch."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

app = App(name="export", help="Write a trained model as ONNX, for programs without PyTorch.")


@app.default
def export(run: Path, *, onnx: Path, seed: int | None = None) -> int:
    """Write a trained model as an ONNX file that takes bags of any size: features [n, f], coords [n, 2]; logit out.

    The file is compared with the model on random bags before it is kept. It holds no threshold and no average over
    seeds: one file is one model.

    Example: dasmil export runs/mine --onnx mine.onnx

    Parameters
    ----------
    run
        Run directory, or a model file.
    onnx
        The file to write.
    seed
        Of a run with several seeds: which one; default the first.
    """
    from dasmil.errors import InputError
    from dasmil.models import read_model
    from dasmil.models.onnx_form import export_onnx
    from dasmil.runs import find_model, model_files, seed_of

    files = model_files(run) or [find_model(run)]
    if seed is not None:
        files = [file for file in files if (found := seed_of(file)) is not None and found.number == seed]
        if not files:
            raise InputError(f"{run} has no trained seed {seed}")
    worst = export_onnx(read_model(files[0]), onnx)
    print(f"{onnx} (largest difference from the model on random bags: {worst:.1e})")
    return 0
