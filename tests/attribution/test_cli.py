"""`dasmil explain` from end to end, with a tiny trained run."""

import json
from dataclasses import replace

import h5py
import pytest
import torch

from dasmil.cli import app
from dasmil.cli.display import Display
from dasmil.cli.explain_questions import print_table
from dasmil.data.store import write_bag
from dasmil.errors import DasmilError
from dasmil.models import create_model
from dasmil.train import fit
from dasmil.types import Bag

UM = {"tile_um": 50.0, "mpp": 0.5, "slide_width_px": 800, "slide_height_px": 800}


def call(*arguments):
    return app([str(a) for a in ("explain", *arguments)], exit_on_error=False, result_action="return_value")


def bag(k, n=6, features=5):
    g = torch.Generator().manual_seed(k)
    x = torch.randn(n, features, generator=g) + (k % 2)
    return Bag(x, 300 * torch.rand(n, 2, generator=g) + 50, "um", f"s{k}", label=k % 2, metadata=UM)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "tiny"
    fit(
        "das-mil", [bag(k) for k in range(8)], None, seeds=2, epochs=2, restarts=0, simple_starts=0, out=folder,
        model_options={"hidden": 3, "out_features": 4},
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def bag_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bags") / "s9.h5"
    write_bag(path, bag(9))
    return path


def test_one_bag_gives_a_page_and_its_files(run, bag_file, tmp_path, capsys):
    assert call(run, "--bag", bag_file, "-o", tmp_path / "out", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["bag_id"] == "s9"
    assert printed["sum_of_contributions"] + printed["bias"] == pytest.approx(printed["logit"], abs=1e-5)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "explanation.html", "explanation.json", "instances.csv", "instances.geojson", "pairs.csv",
        "map-contribution.png",
    }  # fmt: skip
    from dasmil import load_model

    call(run, "--bag", bag_file, "-o", tmp_path / "other", "--seed", 1, "--json")
    logits = [printed["logit"], json.loads(capsys.readouterr().out)["logit"]]
    b = bag(9)
    for seed, logit in enumerate(logits):
        expected = load_model(run / f"seed-{seed}")(b.features, b.coords).logit
        assert logit == pytest.approx(float(expected.detach()), abs=1e-6)
    assert logits[0] != logits[1]


def test_text_output_names_pairs_and_files(run, bag_file, tmp_path, capsys):
    call(run, "--bag", bag_file, "-o", tmp_path / "out", "--score", "support")
    printed = capsys.readouterr().out
    assert "6 instances, das-mil, method exact" in printed
    assert "looks at j" in printed
    assert "map-support.png" in printed


def test_learned_distances_of_all_seeds(run, tmp_path, capsys):
    call(run, "--distances", "-o", tmp_path)
    assert "midpoint, µm" in capsys.readouterr().out
    rows = json.loads((tmp_path / "learned-distance.json").read_text())
    assert len(rows[0]["midpoints"]) == 2
    assert (tmp_path / "learned-distance.png").stat().st_size > 5000


def test_built_in_data_space_test_and_key_instances(tmp_path, capsys):
    torch.manual_seed(0)
    create_model("das-mil", preset="mnist-collage").save(tmp_path / "m.safetensors")
    assert (
        call(
            tmp_path / "m.safetensors", "--data", "mnist-collage", "--split", "test", "--index", 3, "-o", tmp_path / "c"
        )
        == 0
    )
    assert (tmp_path / "c" / "tiles-contribution.png").exists()
    capsys.readouterr()
    call(
        tmp_path / "m.safetensors",
        "--data",
        "mnist-collage",
        "--space-test",
        "--split",
        "test",
        "--limit",
        30,
        "--json",
    )
    result = json.loads(capsys.readouterr().out)
    assert result["n_bags"] == 30
    moved = {row["change"]: row["difference"] for row in result["rows"]}
    assert moved["rotate 90"] == pytest.approx(0, abs=1e-6)
    assert moved["mirror"] == pytest.approx(0, abs=1e-6)
    call(
        tmp_path / "m.safetensors",
        "--data",
        "mnist-collage",
        "--key-instances",
        "--split",
        "test",
        "--limit",
        20,
        "-o",
        tmp_path,
    )
    lines = (tmp_path / "key-instances.csv").read_text().splitlines()
    assert lines[0].startswith("data,model,score,auroc_mean")
    assert any(",support," in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no run was given"),
        (["RUN"], "which bag"),
        (["RUN", "--bag", "none.h5"], r"none\.h5 does not exist"),
        (["RUN", "--bag", "BAG", "--slide", "none.svs"], r"the slide none\.svs does not exist"),
        (["RUN", "--bag", "BAG", "--distances"], "ask different questions"),
        (["RUN", "RUN", "--bag", "BAG"], "only --key-instances takes several"),
        (["RUN", "--bag", "BAG", "--seed", "7"], "has no seed 7: it has 0, 1"),
        (["RUN", "--bag", "BAG", "--score", "atention"], r"unknown score 'atention'.*'attention'"),
        (["RUN", "--index", "0"], "was not trained on built-in data"),
        (["RUN", "--data", "mnist-collage", "--index", "0", "--split", "test"], "features of shape"),
        (["RUN", "--data", "mnist-collage", "--index", "999", "--split", "test"], "has the bags 0 to 99"),
        (["nowhere", "--bag", "BAG"], "nowhere does not exist"),
        (["RUN", "--bag", "NOT-A-BAG"], "not an HDF5 file"),
        (["RUN", "--bag", "NO-COORDS"], "coord"),
    ],
)
def test_wrong_use_has_one_clear_message(arguments, message, run, bag_file, tmp_path, monkeypatch):
    import h5py

    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.h5").write_text("hello")
    with h5py.File(tmp_path / "bare.h5", "w") as file:
        file["features"] = [[1.0, 2.0], [3.0, 4.0]]
    names = {"RUN": run, "BAG": bag_file, "NOT-A-BAG": tmp_path / "broken.h5", "NO-COORDS": tmp_path / "bare.h5"}
    with pytest.raises(DasmilError, match=message) as caught:
        call(*[names.get(a, a) for a in arguments])
    assert "\n" not in str(caught.value)


def test_a_slide_that_is_not_the_bags_is_refused(run, tmp_path):
    pytest.importorskip("openslide")
    from PIL import Image

    Image.new("RGB", (800, 800), "white").save(tmp_path / "s.png")
    made = bag(9)
    other = Bag(made.features, made.coords, "um", "s9", metadata=UM | {"source_fingerprint": "sampled-sha256:00"})
    write_bag(tmp_path / "s9.h5", other)
    with pytest.raises(DasmilError, match="not the file that bag 's9' was made from"):
        call(run, "--bag", tmp_path / "s9.h5", "--slide", tmp_path / "s.png")
    write_bag(tmp_path / "s8.h5", made)
    assert call(run, "--bag", tmp_path / "s8.h5", "--slide", tmp_path / "s.png", "-o", tmp_path / "out") == 0
    assert (tmp_path / "out" / "tiles-contribution.png").exists()


def test_a_bag_without_coordinates_is_refused(run, tmp_path):
    write_bag(tmp_path / "s9.h5", bag(9))
    with h5py.File(tmp_path / "s9.h5", "r+") as file:
        del file["coords"]
    with pytest.raises(DasmilError, match="has no coordinates, so nothing can be placed on a map"):
        call(run, "--bag", tmp_path / "s9.h5", "-o", tmp_path / "out")


def test_names_with_square_brackets_are_printed_as_they_are(run, tmp_path, capsys):
    file = tmp_path / "x[b].h5"
    write_bag(file, replace(bag(9), bag_id="x[/b]"))
    assert call(run, "--bag", file, "-o", tmp_path / "slide[he]" / "x[" / "b]") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("x[/b]: 6 instances")
    assert str(tmp_path / "slide[he]" / "x[" / "b]" / "explanation.html") in printed.splitlines()
    print_table(("data",), [("bags[he]",), ("x[/b]",)])
    assert capsys.readouterr().out.split() == ["data", "bags[he]", "x[/b]"]
    with Display("scoring x[/b]: ") as display:
        display.note("slide[/he]")
    assert capsys.readouterr().err == "slide[/he]\n"
