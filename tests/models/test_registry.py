"""Names, presets and options: the paper's settings, its parameter counts, and clear errors."""

from __future__ import annotations

import json
import math

import pytest
import torch

import dasmil
from dasmil import create_model, list_models
from dasmil.cli.models import models as models_verb
from dasmil.errors import InputError
from dasmil.models import MODELS, resolve_options

# Counted on the published program; None: the paper has no such row. The two that it does not have stand at the end.
PARAMETERS = {
    "max-pool": (15_585, 769),
    "ab-mil": (16_096, 8_470),
    "sa": (17_249, 27_665),
    "sa-axial": (17_569, 27_665),
    "sa-fourier": (18_401, 41_009),
    "disc-rel-sa": (17_769, 28_025),
    "das-mil": (17_355, 412_251),
    "set-transformer": (17_553, None),
    "iset-transformer": (22_108, None),
    "mil-gnn": (19_198, None),
    "mil-gnn-ds": (19_198, None),
    "gat": (16_733, None),
    "gcn": (16_303, None),
    "transmil": (2_179_281, 2_540_561),
    "mean-pool": (15_585, 769),
    "gated-ab-mil": (16_096 + 32 * 15 + 15, 8_470 + 768 * 10 + 10),
    "sa-alibi": (17_249 + 2 * 32 * 30, None),  # four heads; the slopes are fixed
    "sa-rope": (17_249 + 2 * 32 * 2, None),  # queries and keys of 12 numbers, not 10
    "slide-transformer": (None, None),
}


def count(name: str, **options: object) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in create_model(name, **options).parameters())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name: str) -> None:
    mnist, camelyon = PARAMETERS[name]
    if (
        mnist is None
    ):  # width 768: norms, queries, keys, values, output, MLP of each layer; entry, token, norm, classifier
        layer = 4 * 768 + 4 * 768 * 769 + 768 * (4 * 769) + 4 * 768 * 768 + 768
        assert count(name, in_features=100) == 6 * layer + 768 * 101 + 768 + 2 * 768 + 769
        return
    assert count(name, preset="mnist-collage") == mnist
    if camelyon is not None:
        assert count(name, preset="camelyon16") == camelyon
    else:
        with pytest.raises(InputError, match="the paper has no camelyon16 setting"):
            create_model(name, preset="camelyon16")


def test_parameter_counts_of_the_ablations() -> None:
    """Rows of the ablation table: the paper gives 17.3K or 17.4K."""
    full, none = count("das-mil", preset="mnist-collage"), count("sa", preset="mnist-collage")
    for embeddings, size in {"k": 20, "q": 20, "v": 64, "kq": 40, "kv": 84, "qv": 84, "kqv": 104}.items():
        assert count("das-mil", preset="mnist-collage", embeddings=embeddings) == none + size + 2
    assert count("das-mil", preset="mnist-collage", embeddings="kqv", product_term=True) == full
    assert count("das-mil", preset="mnist-collage", train_embeddings=False) == none + 2
    assert count("das-mil", preset="mnist-collage", train_phi=False) == full - 2
    assert count("das-mil", preset="camelyon16", encoder="identity", encoder_features=None) == 27_739


def test_presets() -> None:
    das = create_model("das-mil", preset="mnist-collage")
    assert (das.distance_scale, das.unit) == (256 * math.sqrt(2), "px")
    assert not das.config["self_pair"]
    assert not create_model("disc-rel-sa", preset="mnist-collage").config["self_pair"]
    assert create_model("das-mil", in_features=4).config["self_pair"], "the equations are the default"
    slide = create_model("das-mil", preset="camelyon16", distance_scale=500.0, hidden=3)
    assert (slide.unit, slide.distance_scale, slide.config["hidden"]) == ("um", 500.0, 3)
    assert slide.config["encoder_features"] == 512
    assert resolve_options("das-mil", "camelyon16", hidden=3)["in_features"] == 768


def test_published_models_have_settings_for_the_collages() -> None:
    counts = {
        "clam-sb": 297_926, "dsmil": 36_354, "psa-mil": 149_285, "sm-abmil": 19_938, "rrt-mil": 60_033,
        "patch-gcn": 96_069, "camil": 33_385,
    }  # fmt: skip
    assert {name: count(name, preset="mnist-collage") for name in counts} == counts
    assert create_model("psa-mil", preset="mnist-collage").get_submodule("aggregator").tile == 42
    assert create_model("sm-abmil", preset="mnist-collage").get_submodule("aggregator").radius == 100


def test_initial_values() -> None:
    torch.manual_seed(0)
    model = create_model("das-mil", in_features=4, hidden=500, out_features=1000, distance_scale=200.0)
    layer = model.get_submodule("aggregator.layers.0")
    assert model.learned_distances() == [
        {
            "layer": 0, "head": 0, "theta": 0.5, "beta": 10.0, "midpoint": 100.0,
            "width": pytest.approx(200.0 * 2 * math.log(9) / 10), "unit": "um",
        }
    ]  # fmt: skip
    for name, std in (("key_embed", 1.0), ("query_embed", 1.0), ("value_embed", 1.0)):
        values = getattr(layer, name)
        assert values.mean().item() == pytest.approx(0, abs=0.15)
        assert values.std().item() == pytest.approx(std, abs=0.1)


def test_learned_distances_of_heads_and_layers() -> None:
    options = {"heads": 2, "layers": 2, "theta_init": [0.1, 0.4], "beta_init": [10, -20], "distance_scale": 50.0}
    model = create_model("das-mil", in_features=4, unit="px", **options)
    rows = model.learned_distances()
    assert [(row["layer"], row["head"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [row["midpoint"] for row in rows] == pytest.approx([5, 20, 5, 20])
    # From 10 % to 90 % of phi: the sigmoid is 0.1 and 0.9 at +- log 9.
    low, high = (20 + sign * rows[1]["width"] / 2 for sign in (-1, 1))
    phi = [1 / (1 + math.exp(-(d / 50 - 0.4) * -20)) for d in (low, high)]
    assert phi == pytest.approx([0.9, 0.1])
    assert model.distance_parameters() == [
        f"aggregator.layers.{i}.{name}" for i in (0, 1) for name in ("theta", "beta")
    ]
    assert create_model("das-mil", in_features=4, train_phi=False).distance_parameters() == []
    assert create_model("sa", in_features=4).learned_distances() == []


def test_frozen_parts_are_saved_but_not_trained() -> None:
    model = create_model("das-mil", in_features=4, train_embeddings=False, train_phi=False)
    trainable = {name for name, _ in model.named_parameters()}
    frozen = {f"aggregator.layers.0.{name}" for name in ("key_embed", "query_embed", "value_embed", "theta", "beta")}
    assert frozen.isdisjoint(trainable)
    assert frozen <= set(model.state_dict())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("das_mil", {}), r"unknown model 'das_mil'\. Did you mean 'das-mil'\?"),
        (("das-mil", {"preset": "mnist"}), r"unknown preset 'mnist'\. Did you mean 'mnist-collage'\?"),
        (("das-mil", {"hiden": 3}), r"unknown option of das-mil 'hiden'\. Did you mean 'hidden'\?"),
        (("das-mil", {}), "in_features is missing"),
        (("das-mil", {"in_features": 4, "phi": "sigmoyd"}), "phi is 'sigmoyd', expected one of sigmoid"),
        (("das-mil", {"in_features": 4, "embeddings": "kk"}), "embeddings is 'kk'"),
        (("das-mil", {"in_features": 4, "embeddings": "k", "product_term": True}), "needs both embeddings"),
        (("das-mil", {"in_features": 4, "heads": 3}), "3 heads cannot share"),
        (("das-mil", {"in_features": 4, "heads": 2, "theta_init": [0.1]}), "one finite number for each of 2 heads"),
        (("das-mil", {"in_features": 4, "layers": 0}), "layers is 0"),
        (("das-mil", {"in_features": 4, "dropout": 1.0}), "dropout is 1.0"),
        (
            ("das-mil", {"in_features": 4, "distance_scale": 0}),
            r"distance_scale is 0, expected a number from 1e-12 to 1e\+12",
        ),
        (("das-mil", {"in_features": 4, "unit": "mm"}), "unit is 'mm'"),
        (("das-mil", {"in_features": 4, "pooling": "median"}), "pooling is 'median', expected one of max, mean, sum"),
        (("das-mil", {"in_features": 4, "encoder_features": 7}), "keeps the 4 features"),
        (("max-pool", {"in_features": 4, "n_classes": 1}), "n_classes is 1"),
        (("disc-rel-sa", {"in_features": 4, "bins": 1}), "bins is 1"),
        (("max-pool", {"in_features": 4, "encoder": "resnet"}), "unknown encoder"),
    ],
)
def test_errors_say_what_to_do(call: tuple[str, dict[str, object]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        create_model(call[0], **call[1])  # pyright: ignore[reportArgumentType]


def test_public_names() -> None:
    assert (dasmil.create_model, dasmil.list_models) == (create_model, list_models)
    assert callable(dasmil.load_model)


def test_models_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert models_verb() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["Model", "Position", "mnist-collage", "camelyon16", "MI", "assumption", "Paper"]
    das = next(line for line in lines if line.startswith("das-mil"))
    assert das.split()[1:4] == ["relative", "17,355", "412,251"]
    assert models_verb(json=True) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(MODELS)
    assert rows[1 + list(MODELS).index("sa")]["parameters"] == {"mnist-collage": 17_569, "camelyon16": 27_665}
    assert models_verb("gcn") == 0
    assert "Preset mnist-collage: 16,303 parameters; hidden = 15" in capsys.readouterr().out
    with pytest.raises(InputError, match="Did you mean 'gcn'"):
        models_verb("gnc")
