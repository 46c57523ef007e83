"""The attention figure shows a bag as the paper's does, and the weights of the model itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from dasmil.data import load_dataset
from dasmil.models import create_model
from dasmil.paper.cells import make_cell
from dasmil.paper.figures import attention_figure, choose_bag, names_of, write_attention_figure
from dasmil.report.collages import attention_weights


def test_the_chosen_bag_has_several_zeros_and_ones_and_one_deciding_pair() -> None:
    bag = choose_bag(load_dataset("mnist-collage", protocol="published", split="test"))
    assert bag.label == 1
    assert bag.instance_labels is not None
    assert bag.key_instances is not None
    digits = bag.instance_labels
    assert int((digits == 0).sum()) >= 2
    assert int((digits == 1).sum()) >= 2
    assert sorted(digits[bag.key_instances].tolist()) == [0, 1]
    a, b = bag.coords[bag.key_instances]
    assert float((a - b).norm()) < 80
    names = names_of(bag)
    assert len(set(names)) == len(names)
    assert [name[0] for name in names] == [str(d) for d in digits.tolist()]


def test_the_figure_draws_the_models_attention(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plan = make_cell("ablations", "kq", "mnist-collage", "published").plan()
    model = create_model("das-mil", preset=plan["preset"], **plan["options"]).eval()
    bags = load_dataset("mnist-collage", protocol="published", split="test")
    bag = choose_bag(bags)
    weights = attention_weights(model, bag)
    assert weights is not None
    np.testing.assert_allclose(weights[0].sum(1), 1, rtol=1e-5)
    figure = attention_figure(bag, weights[0], "title")
    mesh = figure.axes[1].collections[0]
    drawn = np.asarray(mesh.get_array()).reshape(len(bag), -1)
    labels = [text.get_text() for text in figure.axes[1].get_yticklabels()]
    assert labels == sorted(labels)
    place = {name: labels.index(name) for name in names_of(bag)}
    for i, first in enumerate(names_of(bag)):
        for j, second in enumerate(names_of(bag)):
            assert drawn[place[first], place[second]] == weights[0, i, j]
    png, svg = write_attention_figure(model, bags, tmp_path / "figure")
    assert Image.open(png).size == (1520, 740)
    assert svg.read_text().startswith("<?xml")
    assert sorted(p.name for p in (tmp_path / "figure").iterdir()) == ["attention.png", "attention.svg"]
