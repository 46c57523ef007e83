"""Daily use in a real browser: colours that leave the tissue alone, both sides of an instance, two models, tools."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import Page

from dasmil.attribution.contributions import both_ways
from dasmil.attribution.scale import colour_scale
from dasmil.models import create_model
from dasmil.report.explanation.heatmap import colours_of
from dasmil.types import Bag
from dasmil.viewer.shelf import Entry, Picture, Shelf, Voice

from .conftest import Checkered, Viewer, serve
from .test_page import opened, pixels, place_of, wait_until

OUTSIDE = """() => [...document.querySelectorAll('aside *')]
    .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))"""
KINDS = ["lymphocyte", "tumour", "stroma"]


def grid(columns: int = 30, rows: int = 20) -> torch.Tensor:
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2) * 100.0 + 250.0


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory) -> Iterator[Viewer]:
    """600 named cells on a slide of 0.5 um per pixel, explained by two seeds; the second was trained on the bag."""
    torch.manual_seed(4)
    bag = Bag(
        torch.randn(600, 16), grid(), "um", "slide-1", 1,
        instance_labels=torch.arange(600) % 3,
        instance_ids=tuple(f"cell-{k:04d}" for k in range(600)),
        metadata={"tile_um": 100.0, "mpp": 0.5, "instance_label_names": KINDS},
    )  # fmt: skip
    made = [create_model("das-mil", in_features=16, out_features=8, unit="um", distance_scale=200.0) for _ in range(2)]
    voices = [Voice(f"seed {k}", lambda k=k: made[k]) for k in range(2)]
    entry = Entry("slide-1", lambda: bag, lambda _b: Picture(Checkered(), 2.0), 1, split="test", sets={1: "train"})
    yield from serve(Shelf("two seeds", "for tests", voices, [entry], ("benign", "malignant")))


@pytest.fixture(scope="module")
def tissue() -> Iterator[Viewer]:
    """600 tiles of which only the first two speak, both for the class."""
    torch.manual_seed(6)
    model = create_model("mean-pool", in_features=1, unit="um", encoder="identity")
    with torch.no_grad():
        model.classifier.weight.fill_(1.0)  # pyright: ignore[reportAttributeAccessIssue]
    features = torch.zeros(600, 1)
    features[0], features[1] = 4.0, 2.0
    bag = Bag(features, grid(), "um", "quiet", 1, metadata={"tile_um": 100.0, "mpp": 0.5})
    entry = Entry("quiet", lambda: bag, lambda _b: Picture(Checkered(), 2.0), 1, split="train")
    yield from serve(Shelf("quiet tissue", "for tests", model, [entry]))


def test_tissue_keeps_its_colours_where_nothing_was_contributed(page: Page, tissue: Viewer, tmp_path) -> None:
    opened(page, tissue)
    page.wait_for_timeout(900)
    shown = pixels(page, str(tmp_path / "shown.png"))
    column, row = map(round, place_of(page, tissue, 0, 305))
    nearest = min(([40, 60, 200], [255, 255, 255]), key=lambda c: np.abs(shown[row, column] - c).sum())
    assert np.abs(shown[row, column] - nearest).max() <= 12, "the slide as it is (JPEG)"
    column, row = map(round, place_of(page, tissue, 0, 0))
    assert shown[row, column][0] > 150 > shown[row, column][2], "orange over the strongest"


def test_the_colours_of_a_signed_score_do_not_flip_without_negative_values(page: Page, tissue: Viewer) -> None:
    opened(page, tissue)
    low, zero, high = page.locator("#bar-labels span").all_inner_texts()
    assert zero == "0"
    assert low == high.replace("+", "−")
    assert (
        page.evaluate("[...document.querySelector('#bar').getContext('2d').getImageData(80, 31, 1, 1).data][0]") > 235
    )


def test_an_instance_shows_who_looks_at_it_and_what_that_gave(page: Page, two_seeds: Viewer) -> None:
    opened(page, two_seeds)
    explained = two_seeds.shelf.explained(0)
    account = explained.account
    j = int(explained.explanation.scores["taken"].abs().argmax())
    page.goto(two_seeds.url + f"#bag=slide-1&tile={j}")
    page.reload()
    page.wait_for_selector("#tile table[aria-label='Looked at by']")
    assert page.inner_text("#tile h2") == f"Instance cell-{j:04d}"
    assert KINDS[j % 3] in page.inner_text("#tile .who p")
    rows = page.locator("#tile table[aria-label='Looked at by'] tbody tr").all_inner_texts()
    expected = account.watchers(j)
    assert [row.split()[0] for row in rows] == [f"cell-{p.j:04d}" for p in expected[: len(rows)]]
    gave = float(rows[0].split("\t")[-1].replace("−", "-"))
    assert gave == pytest.approx(expected[0].contribution, rel=0.01)
    sides = account.sides(j)
    text = page.inner_text("#tile p.small").replace("−", "-")
    assert f"{sides.watchers} deciding rows took" in text
    assert f"{sides.looked_at:+.2f}"[:4] in text or f"{sides.looked_at:+.3f}"[:5] in text


def test_where_no_pair_decided_the_panel_says_so_and_adds_up(page: Page, slide: Viewer) -> None:
    opened(page, slide)
    strongest = both_ways(slide.shelf.explanation(0).pairs)[0].contribution
    assert page.locator("#tile h3").first.inner_text() == "Pairs that decided"
    assert f"the strongest gave {strongest:+.2g} of the logit" in page.inner_text("#tile p.small")
    tables = page.locator("#tile table").evaluate_all("all => all.map((t) => t.getAttribute('aria-label'))")
    assert "Pairs by distance, added up" in tables
    assert "Pairs by neighbourhood, added up" in tables


def test_kinds_and_clusters_are_colours_with_names(page: Page, two_seeds: Viewer) -> None:
    opened(page, two_seeds)
    page.select_option("#score", label="Kind of instance")
    page.wait_for_selector("body[data-shown='group:kinds']")
    assert page.locator("#groups li").all_inner_texts() == [f"{k}\n200" for k in sorted(KINDS, key=KINDS.index)]
    page.mouse.move(*place_of(page, two_seeds, 0, 4))
    wait_until(page, "document.getElementById('tooltip').textContent.includes('tumour')")
    assert "cell-0004" in page.inner_text("#tooltip")
    # Kinds have no order: the strip and the keys go by what each instance contributed.
    scores = two_seeds.shelf.explained(0, 0).explanation.contributions.abs()
    first = int(scores.argmax())
    page.wait_for_selector(f"#strip button[data-instance='{first}']")
    assert page.locator("#strip button").count() >= 24
    page.locator("body").press("n")
    shown = page.locator("#strip button").first.get_attribute("data-instance")
    wait_until(page, f"document.getElementById('tile').textContent.includes('cell-{int(shown or -1):04d}')")
    assert page.locator("#message").is_hidden()
    page.select_option("#score", label="Clusters of the features (k-means, 8)")
    page.wait_for_selector("body[data-shown='group:clusters']")
    counts = [int(text.split()[-1]) for text in page.locator("#groups li").all_inner_texts()]
    assert sum(counts) == 600
    assert counts == sorted(counts, reverse=True)


def test_two_seeds_stand_side_by_side_on_one_scale(page: Page, two_seeds: Viewer, tmp_path) -> None:
    opened(page, two_seeds)
    assert "this bag was in its test set" in page.inner_text("#bag")
    page.select_option("#beside", label="seed 1 (train)")
    page.wait_for_selector("#second-caption:not([hidden])")
    first, other = (two_seeds.shelf.explained(0, k) for k in (0, 1))
    assert page.inner_text("#first-caption").startswith("seed 0; this bag was in its test set: probability")
    assert f"{other.probability:.2f}" in page.inner_text("#second-caption")
    assert "it was trained on this bag" in page.inner_text("#second-caption")
    high = max(float(np.abs(e.explanation.contributions.numpy()).max()) for e in (first, other))
    wait_until(page, "document.getElementById('bar-title').textContent.includes('one scale for both')")
    shown = page.locator("#bar-labels span").nth(2).inner_text()
    assert float(shown) == pytest.approx(high, rel=0.01)
    page.wait_for_timeout(600)
    boxes = [page.locator(f"#{name}").bounding_box() for name in ("picture", "second-picture")]
    assert boxes[0]["width"] == pytest.approx(boxes[1]["width"], abs=2)
    page.mouse.move(300, 400)
    page.mouse.wheel(0, -400)
    page.wait_for_timeout(1500)
    zooms = page.evaluate("""() => ['#picture', '#second-picture'].map((id) => {
        const v = OpenSeadragon.getViewer(document.querySelector(id)).viewport;
        return [v.getZoom(), v.getCenter().x, v.getCenter().y]; })""")
    np.testing.assert_allclose(zooms[0], zooms[1], rtol=1e-3)
    assert "beside=1" in page.url


def test_the_range_of_colours_is_chosen_and_what_it_clips_is_stated(page: Page, two_seeds: Viewer) -> None:
    opened(page, two_seeds)
    sizes = np.abs(two_seeds.shelf.explanation(0).contributions.double().numpy())
    assert "beyond the range" not in page.inner_text("#bar-title")
    page.locator("#range").fill("50")
    wait_until(page, "document.getElementById('bar-title').textContent.includes('beyond the range')")
    shown = float(page.locator("#bar-labels span").nth(2).inner_text())
    assert shown == pytest.approx(sizes.max() / 2, rel=0.01)
    assert f"{(sizes > sizes.max() / 2).sum()} of 600 values beyond the range" in page.inner_text("#bar-title")
    assert "range=50" in page.url


def test_a_logarithmic_scale_is_the_same_in_the_page_and_in_python(page: Page, two_seeds: Viewer) -> None:
    opened(page, two_seeds)
    values = np.append(np.linspace(-0.01, 0.01, 400), [5.0, 0.3, -1.0])
    scale = colour_scale("contribution", values)
    places = page.evaluate(
        """async ([values, info]) => { const { makeScale } = await import('/static/colour.js');
        const scale = makeScale(Float32Array.from(values), info, { tints: [], palette: [] }, false);
        return values.map(scale.place); }""",
        [values.tolist(), {"low": scale.low, "high": scale.high, "signed": True, "linear": scale.linear}],
    )
    np.testing.assert_allclose(places, scale.place(values), atol=1e-9)


def test_the_ruler_measures_in_micrometres(page: Page, two_seeds: Viewer) -> None:
    opened(page, two_seeds)
    page.keyboard.press("r")
    assert page.get_attribute("#ruler", "aria-pressed") == "true"
    for k in (0, 10):
        page.mouse.click(*place_of(page, two_seeds, 0, k))
        page.wait_for_timeout(400)
    assert float(page.inner_text("#ruler-value").split()[0]) == pytest.approx(1000, rel=0.02)
    page.keyboard.press("Escape")
    assert page.get_attribute("#ruler", "aria-pressed") == "false"


def test_annotations_are_drawn_where_they_are_and_bad_files_are_refused(
    page: Page, two_seeds: Viewer, tmp_path
) -> None:
    opened(page, two_seeds)
    square = [[4500, 3500], [5500, 3500], [5500, 4500], [4500, 4500], [4500, 3500]]  # level-0 pixels of 0.5 um
    kind = {"name": "Tumor", "color": [200, 0, 0]}
    feature = {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [square]},
        "properties": {"classification": kind},
    }
    file = tmp_path / "slide.geojson"
    file.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    page.set_input_files("#annotations", file)
    wait_until(page, "document.getElementById('bag').textContent.includes('1 shape of slide.geojson')")
    page.wait_for_timeout(900)
    shown = pixels(page, str(tmp_path / "shown.png"))
    x, y = (round(v) for v in np.mean([place_of(page, two_seeds, 0, k) for k in (320, 320)], axis=0))
    around = shown[y - 250 : y + 250, max(0, x - 250) : x + 250].reshape(-1, 3)
    assert (np.abs(around - [200, 0, 0]).max(1) < 40).any(), "the outline in QuPath's colour"
    (tmp_path / "bad.geojson").write_text("{")
    page.set_input_files("#annotations", tmp_path / "bad.geojson")
    page.wait_for_selector("#message.error")
    assert "not GeoJSON" in page.inner_text("#message")


def test_csv_and_geojson_are_saved_from_the_page(page: Page, two_seeds: Viewer, tmp_path: Path) -> None:
    opened(page, two_seeds)
    for name in ("csv", "geojson"):
        with page.expect_download() as download:
            page.click(f"#{name}")
        download.value.save_as(tmp_path / download.value.suggested_filename)
    rows = list(csv.DictReader((tmp_path / "slide-1-instances.csv").open()))
    assert rows[4]["instance_id"] == "cell-0004"
    assert rows[4]["instance_name"] == "tumour"
    expected = two_seeds.shelf.explanation(0).contributions
    assert float(rows[4]["contribution"]) == pytest.approx(float(expected[4]), rel=1e-6)
    features = json.loads((tmp_path / "slide-1-instances.geojson").read_text())["features"]
    assert len(features) == 600
    assert features[4]["properties"]["color"] == colours_of("contribution", expected.double().numpy())[4].tolist()
    assert features[4]["properties"]["classification"]["name"] == "tumour"


def test_a_smooth_map_has_colours_between_the_tiles(page: Page, two_seeds: Viewer, tmp_path) -> None:
    opened(page, two_seeds)
    page.wait_for_timeout(900)
    tiles = pixels(page, str(tmp_path / "tiles.png"))
    page.keyboard.press("s")
    page.wait_for_timeout(400)
    smooth = pixels(page, str(tmp_path / "smooth.png"))
    assert "smooth=1" in page.url
    (left, top), (right, bottom) = (place_of(page, two_seeds, 0, k) for k in (31, 568))
    inside = np.s_[round(top) : round(bottom), round(left) : round(right)]
    assert np.abs(tiles[inside] - smooth[inside]).max() > 20
    steps = [np.abs(np.diff(picture[inside][:, :, 0], axis=1)).mean() for picture in (tiles, smooth)]
    assert steps[1] < steps[0], "no edges between neighbours"


def test_every_button_of_the_strip_has_a_name_and_bags_say_what_they_were_used_for(page: Page, tissue: Viewer) -> None:
    opened(page, tissue)
    names = page.locator("#strip button").evaluate_all("all => all.map((b) => b.getAttribute('aria-label'))")
    assert names[0].startswith("Instance #0, contribution to the logit")
    assert all(names)
    assert page.locator("#list .badge").inner_text() == "train"
    assert page.locator("#bag .badge").get_attribute("title") == "the model was trained on this bag"


@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_sticks_out_of_the_window(page: Page, two_seeds: Viewer, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    opened(page, two_seeds)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    out = page.evaluate(OUTSIDE)
    assert out == []
