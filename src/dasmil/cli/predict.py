"""`dasmil predict`: probabilities for bags, from all seeds of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="predict", help="Predict bags with a trained run.")


@app.default
def predict(
    run: Path,
    *,
    bags: Path,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("predictions.csv"),
    mpp: str | None = None,
    tile_um: float | None = None,
    scale_table: Path | None = None,
) -> int:
    """Predict every bag of a folder with the mean probability over all seeds (and folds) of a run.

    Example: dasmil predict runs/mine --bags features/ -o predictions.csv

    Parameters
    ----------
    run
        Run directory of dasmil train.
    bags
        Folder of feature files.
    output
        CSV to write: bag_id, probability, prediction (1 from probability 0.5 on), class (its name in the label table);
        with more than two classes one probability each, in the order that training showed.
    mpp
        Micrometres per level-0 pixel, where the files do not say.
    tile_um
        Edge of a tile in micrometres, where the files do not say.
    scale_table
        CSV with slide and any of mpp, tile_um, for slides that differ.
    """
    from dasmil.cli.sources import unlabelled_bags
    from dasmil.files import write_csv
    from dasmil.train.apply import predict_run
    from dasmil.train.run_dir import StoredRun

    stored = StoredRun.read(run)
    found = unlabelled_bags(bags, mpp=mpp, tile_um=tile_um, scale_table=scale_table, config=stored.config)
    rows = predict_run(stored, found)
    write_csv(output, rows)
    models = len(stored.model_files())
    print(f"{len(rows):,} bags, mean of {models} model{'s' if models > 1 else ''}")
    print(output)
    return 0
