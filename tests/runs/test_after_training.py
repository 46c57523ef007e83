"""What comes after training cannot take it away: a failing page, a kill between two files, closed output."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dasmil
from dasmil.cli import app, call
from dasmil.data.columns import read_columns
from dasmil.errors import DataError, InputError
from dasmil.runs import Run
from dasmil.study import training
from dasmil.study.card import plain
from dasmil.study.rounds import Round
from dasmil.types import Bag, need_sequence

STORED = Path(__file__).parent / "stored"


def bags(n: int = 12) -> list[Bag]:
    torch.manual_seed(0)
    return [
        Bag(torch.randn(6, 4) + k % 2, torch.rand(6, 2) * 100, "um", f"b{k}", label=k % 2, patient_id=f"p{k}")
        for k in range(n)
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("after") / "run"
    dasmil.fit("mean-pool", bags()[4:], bags()[:4], epochs=1, out=out, progress=False)
    return out


def test_a_page_that_fails_leaves_the_training(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def fails(_path: Path) -> Path:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(training, "write_report", fails)
    finished = training.finish(run, [Round(bags(), None, {})], baselines=False, note=said.append)
    assert finished.summary["splits"]
    assert f"ZeroDivisionError: a fault of ours). The training is complete and kept in {run}" in said[-1]
    assert f"`dasmil report {run}`" in said[-1]
    (run / "report.html").unlink(missing_ok=True)
    app(["report", str(run)], result_action="return_value")
    page = (run / "report.html").read_text()
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert script
    allowed = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'" in page
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in page


def test_a_kill_between_the_two_files_of_a_checkpoint_is_mended_by_resuming(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    before = json.loads((copy / "checkpoint.json").read_text())
    (copy / "checkpoint.json").unlink()
    dasmil.fit("mean-pool", bags()[4:], bags()[:4], epochs=1, out=copy, resume=True, progress=False)
    assert json.loads((copy / "checkpoint.json").read_text()) == before


@pytest.mark.parametrize("value", ["inf", "-inf", "1e300"])
def test_covariates_that_overflow_are_refused_before_training(value: str, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text(f"slide,label,age\na,0,50\nb,1,{value}\n")
    with pytest.raises(DataError, match=r"line 3: 'age' is '[-\w]+', expected a number below 1e\+100"):
        read_columns(table, ["age"])


def test_paths_that_are_not_utf_8_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds bytes that are not UTF-8"):
        call(["train", "--data", "mnist-collage", "--out", "a\udcff"])
    with pytest.raises(InputError, match="holds bytes that are not UTF-8"):
        dasmil.fit("mean-pool", bags()[4:], bags()[:4], epochs=1, out=tmp_path / "a\udcff", progress=False)


def test_a_bin_of_the_calibration_without_its_number_is_one_message(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    summary = json.loads((copy / "summary.json").read_text())
    split = next(iter(summary["splits"].values()))
    split["calibration"] = [{"from": 0.0, "to": 0.1, "predicted": 0.05, "observed": 0.0}]
    (copy / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(DataError, match=r"summary.json: splits\..*calibration\.0\.n: Field required"):
        _ = Run.read(copy).summary
    (copy / "summary.json").write_text(json.dumps({**summary, "splits": {"val": 3}}))
    with pytest.raises(DataError, match="it has no scored splits"):
        _ = Run.read(copy).summary


def test_closed_output_is_no_traceback() -> None:
    code = "import os, sys; os.close(1); sys.stdout = None; sys.argv = ['dasmil', 'models']; "
    code += "from dasmil.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_names_in_a_model_card_are_text() -> None:
    assert plain("Classes: 0 = <img src=x>, 1 = [a](http://b) | *c*\n# d") == (
        r"Classes: 0 = &lt;img src=x&gt;, 1 = \[a\](http://b) \| \*c\* \# d"
    )


def test_pandas_objects_that_count_by_their_own_index_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match=r"give a list, such as bags\.tolist\(\)"):
        need_sequence(pandas.Series(bags(3), index=[5, 6, 7]))
    training_set = bags()
    model = dasmil.MILClassifier("mean-pool", epochs=1)
    labels = pandas.Series([bag.label for bag in training_set], index=range(7, 19))
    assert model.fit(training_set, labels).predict(training_set[:2]).shape == (2,)
