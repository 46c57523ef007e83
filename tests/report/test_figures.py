"""Figures: what they show, and their style in pages."""

from __future__ import annotations

import re

import numpy as np
import torch

import dasmil
from dasmil.report import figures
from dasmil.report.collages import attention_map, attention_weights, collages, telling_pair
from dasmil.report.figures import Line, Panel, Series
from dasmil.report.phi import Phi, Truth, phi_figure
from dasmil.report.style import COLOURS, css_variables, to_svg


def test_svg_takes_its_colours_from_the_page_and_keeps_the_digits_of_texts():
    panel = Panel("Loss < 0.12345", "loss", [Series("a", [Line([1, 2, 3], [0.9, 0.5, 0.2])])])
    figure = figures.learning_curve(panel)
    svg = to_svg(figure, 'a "label"')
    assert "Loss &lt; 0.12345" in svg
    assert not re.search("|".join(light for light, _ in COLOURS.values()), svg, re.IGNORECASE)
    assert "var(--accent)" in svg
    assert "font-family" not in svg
    assert 'aria-label="a &quot;label&quot;"' in svg
    assert svg.startswith("<svg")
    assert "http" not in svg
    assert to_svg(figure, "x").partition("<defs>")[2] == to_svg(figure, "y").partition("<defs>")[2]


def test_light_and_dark_define_the_same_roles():
    light, dark = re.findall(r":root\{(?:color-scheme:light dark;)?((?:--\w+:#\w{6};)+)\}", css_variables())[:2]
    assert re.findall(r"--(\w+)", light) == re.findall(r"--(\w+)", dark) == list(COLOURS)
    assert re.findall(r"#\w+", light) != re.findall(r"#\w+", dark)


def test_phi_is_drawn_in_the_unit_of_the_coordinates():
    figure = phi_figure([Phi(0.25, 40.0, 362.0, "px")], 200.0, Truth(80.0))
    axis = figure.axes[0]
    curve = next(line for line in axis.get_lines() if len(line.get_xdata()) > 2)
    x, y = (np.asarray(v) for v in curve.get_data())
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-(x / 362.0 - 0.25) * 40.0)), rtol=1e-6)
    assert x[-1] == 200
    assert "px" in axis.get_xlabel()
    assert [line for line in axis.get_lines() if list(line.get_xdata()) == [80.0, 80.0]]
    assert axis.texts[0].get_text() == "true threshold\n80 px"


def test_curves_of_a_seed_that_did_not_fit_are_dashed_and_named():
    lines = [Line([1, 2], [1.0, 0.1]), Line([1, 2], [1.0, 0.9], stuck=True, name="seed 1")]
    axis = figures.learning_curve(Panel("Loss", "loss", [Series("m", lines)])).axes[0]
    assert [line.get_linestyle() for line in axis.get_lines()] == ["-", "--"]
    assert [text.get_text() for text in axis.texts] == ["seed 1 not fitted"]


def test_labels_at_the_ends_of_curves_do_not_overlap():
    series = [Series(f"model {i}", [Line([1, 2], [1.0, 0.5 + 0.001 * i])]) for i in range(4)]
    axis = figures.learning_curve(Panel("Loss", "loss", series)).axes[0]
    heights = sorted(text.xy[1] for text in axis.texts)  # pyright: ignore[reportAttributeAccessIssue]
    assert np.diff(heights).min() >= 0.074
    assert heights[-1] <= 1


def test_attention_weights_are_those_of_the_equations():
    bag = dasmil.load_dataset("mnist-collage", split="test")[1]
    torch.manual_seed(0)
    model = dasmil.create_model("das-mil", preset="mnist-collage")
    weights = attention_weights(model, bag)
    assert weights is not None
    assert weights.shape == (1, len(bag), len(bag))
    layer = model.aggregator.layers[0]  # pyright: ignore[reportAttributeAccessIssue, reportIndexIssue]
    with torch.no_grad():
        z = model.encoder(bag.features)
        q, k = z @ layer.query.weight.T, z @ layer.key.weight.T
        step = bag.coords[:, None] - bag.coords[None]
        phi = torch.sigmoid((step.norm(dim=-1) / (256 * 2**0.5) - layer.theta) * layer.beta)[..., None]
        on = ~torch.eye(len(bag), dtype=torch.bool)[..., None]  # the preset gives the pair (i, i) no embedding
        b_k, b_q = (on * (phi * e[0, 0] + (1 - phi) * e[0, 1]) for e in (layer.key_embed, layer.query_embed))
        e = q @ k.T + (q[:, None] * b_k).sum(-1) + (k[None] * b_q).sum(-1)
    torch.testing.assert_close(torch.from_numpy(weights[0]), (e / 32**0.5).softmax(-1), rtol=1e-4, atol=1e-5)
    assert attention_weights(dasmil.create_model("max-pool", preset="mnist-collage"), bag) is None
    axis = attention_map(weights[0], bag, "map").axes[0]
    assert bag.instance_labels is not None
    assert [t.get_text() for t in axis.get_xticklabels()] == [str(d) for d in bag.instance_labels.tolist()]


def test_the_shown_collages_need_the_distance_and_are_the_median_of_their_kind():
    bags = list(dasmil.load_dataset("mnist-collage", split="test"))
    logits = [float(i) for i in range(len(bags))]
    chosen = telling_pair(bags, logits)
    assert chosen is not None
    positive, negative = chosen
    assert (positive.label, negative.label) == (1, 0)
    assert positive.key_instances is not None
    assert positive.key_instances.sum() == 2
    assert negative.instance_labels is not None
    assert {0, 1} <= set(negative.instance_labels.tolist())
    both = [
        b for b in bags if b.label == 0 and b.instance_labels is not None and {0, 1} <= set(b.instance_labels.tolist())
    ]
    assert negative is both[len(both) // 2]
    axes = collages(chosen, ["p", "n"]).axes
    zero, one = positive.coords[positive.key_instances]
    assert f"{float((zero - one).norm()):.0f} px" in [t.get_text() for t in axes[0].texts]
    assert len(axes[0].patches) == 2
    assert len(axes[1].patches) == 0
