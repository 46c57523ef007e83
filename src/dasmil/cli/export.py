"""`dasmil export`: a trained model for programs without PyTorch."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

app = App(name="export", help="Write a trained model as ONNX, for programs without PyTorch.")


@app.default
def export(run: Path, *, onnx: Path, seed: int | None = None, fold: int | None = None) -> int:
    """Write a trained model as an ONNX file that takes bags of any size: features [n, f], coords [n, 2]; logit out.

    The file is compared with the model on random bags before it is kept. It holds no threshold and no average over
    seeds or folds: one file is one model, and the last line says which.

    Example: dasmil export runs/mine --onnx mine.onnx

    Example: dasmil export runs/folds --fold 2 --seed 0 --onnx fold-2.onnx

    Parameters
    ----------
    run
        Run directory, or a model file.
    onnx
        The file to write.
    seed
        Seed to export (default: the first).
    fold
        Fold to export. Required for a cross-validation, because its folds are different models.
    """
    from dasmil.errors import InputError
    from dasmil.models import read_model
    from dasmil.models.onnx_form import export_onnx
    from dasmil.runs import find_model, fold_folder, fold_folders, is_begun, model_files, seed_of

    folds = [] if run.is_file() or is_begun(run) else fold_folders(run)
    if folds and fold is None:
        raise InputError(
            f"{run} is a cross-validation of {len(folds)} folds, each a model of its own: name one with --fold 0 to "
            f"{len(folds) - 1} (dasmil predict gives the mean of all)"
        )
    if fold is not None and not 0 <= fold < len(folds):
        raise InputError(f"{run} has no fold {fold}: it {f'has folds 0 to {len(folds) - 1}' if folds else 'has none'}")
    part = run if fold is None else fold_folder(run, fold)
    files = model_files(part) or [find_model(part)]
    chosen = files
    if seed is not None:
        chosen = [file for file in files if (found := seed_of(file)) is not None and found.number == seed]
        if not chosen:
            raise InputError(f"{part} has no trained seed {seed}")
    worst = export_onnx(read_model(chosen[0]), onnx)
    others = f", one of {len(files)} seeds" if len(files) > 1 else ""
    print(f"Model: {chosen[0]}{others}. It holds no average over seeds or folds.")
    print(f"{onnx} (largest difference from the model on random bags: {worst:.1e})")
    return 0
