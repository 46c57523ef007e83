"""Models to hand on: the folder, its card, and what comes back out of it; the hub itself is not reached."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import dasmil
from dasmil.cli import call
from dasmil.errors import DataError, InputError
from dasmil.runs import Run
from dasmil.study.apply import predict_run
from dasmil.study.hub import push_to_hub

STORED = Path(__file__).parent.parent / "runs" / "stored"


@pytest.mark.parametrize("name", ["plain", "folds"])
def test_a_folder_gives_the_predictions_of_its_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["publish", str(STORED / name), "--out", str(tmp_path / "m")]) == 0
    capsys.readouterr()
    run = Run.read(STORED / name)
    model = dasmil.from_pretrained(tmp_path / "m")
    assert len(model.models) == len(run.models())
    bags = dasmil.load_cohort(STORED / "bags")
    rows = predict_run(run, bags)
    np.testing.assert_allclose(model.predict_proba(bags)[:, 1], [row["probability"] for row in rows], atol=1e-7)
    assert model.predict(bags) == [row["class"] for row in rows]
    assert dasmil.load_model(tmp_path / "m").config == run.models()[0].config  # the first, as a model alone


def test_the_card_says_what_the_run_says_and_no_names(tmp_path: Path) -> None:
    run = Run.read(STORED / "folds")
    dasmil.save_pretrained(run, tmp_path / "m")
    card = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
    auroc = run.summary["splits"]["test"]
    low, high = auroc["interval"]["auroc"]
    assert f"{auroc['mean']['auroc']:.3f} ({low:.3f} to {high:.3f})" in card
    assert 'library_name: "dasmil"' in card
    assert "16 slides of 14 patients" in card
    assert "Cross-validation with 3 folds by patient" in card
    assert "Not a medical device." in card
    everything = card + (tmp_path / "m" / "config.json").read_text()
    assert "slide-0" not in everything
    assert "/data/" not in everything


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    dasmil.save_pretrained(STORED / "plain", tmp_path / "m")
    with pytest.raises(InputError, match="is there and not an empty folder"):
        dasmil.save_pretrained(STORED / "plain", tmp_path / "m")
    with pytest.raises(InputError, match=r"nothing to do: give --out FOLDER"):
        call(["publish", str(STORED / "plain")])
    with pytest.raises(InputError, match="no folder a/b/c: expected one"):
        dasmil.from_pretrained("a/b/c")
    with pytest.raises(InputError, match="the repository is 'mine', expected OWNER/NAME"):
        push_to_hub(STORED / "plain", "mine")
    config = tmp_path / "m" / "config.json"
    known = json.loads(config.read_text())
    for change, message in (
        ({"models": ["../../x"]}, "lists no models of dasmil"),
        ({"models": []}, "lists no models of dasmil"),
        ({"classes": ["a"]}, "expected 2 names"),
        ({"models": ["other.safetensors"]}, "does not exist"),
    ):
        config.write_text(json.dumps({**known, **change}))
        with pytest.raises((DataError, InputError), match=message):
            dasmil.from_pretrained(tmp_path / "m")
    shutil.rmtree(tmp_path / "m")
    (tmp_path / "m").mkdir()
    with pytest.raises(DataError, match=r"config\.json is missing"):
        dasmil.from_pretrained(tmp_path / "m")


def test_a_hub_that_is_not_reached_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network: the only thing about the hub that can be tested here."""
    hub = pytest.importorskip("huggingface_hub")

    def refused(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(hub, "snapshot_download", refused)
    with pytest.raises(DataError, match="lab/mine is no folder here, and was not fetched from the hub: no route to"):
        dasmil.from_pretrained("lab/mine")
    monkeypatch.setattr(hub.HfApi, "create_repo", refused)
    with pytest.raises(DataError, match="lab/mine was not uploaded: no route to host"):
        push_to_hub(STORED / "plain", "lab/mine")
