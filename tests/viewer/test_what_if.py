"""Regions and what-if in a real browser: draw, name, save and load regions; delete, keep and move instances."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Page

from dasmil.attribution import explain
from dasmil.attribution.edits import edited, read_edits
from dasmil.data.annotations import read_annotations
from dasmil.data.restrict import level0
from dasmil.models import create_model
from dasmil.types import Bag
from dasmil.viewer.shelf import Entry, Picture, Shelf

from .conftest import Checkered, Viewer, serve
from .test_page import opened, place_of, wait_until
from .test_server import ask, ask_json


def made() -> Bag:
    torch.manual_seed(8)
    y, x = torch.meshgrid(torch.arange(20), torch.arange(30), indexing="ij")
    coords = torch.stack([x, y], -1).reshape(-1, 2) * 100.0 + 250.0
    return Bag(torch.randn(600, 8), coords, "um", "slide-1", 1, metadata={"tile_um": 100.0, "mpp": 0.5})


@pytest.fixture(scope="module")
def viewer() -> Iterator[Viewer]:
    """600 tiles of 100 um in 30 columns on a slide of 0.5 um per pixel."""
    bag = made()
    model = create_model("das-mil", in_features=8, out_features=4, unit="um", distance_scale=200.0)
    entry = Entry("slide-1", lambda: bag, lambda _b: Picture(Checkered(), 2.0), 1)
    yield from serve(Shelf("what if", "for tests", model, [entry], ("benign", "malignant")))


def logit_after(viewer: Viewer, edits: str) -> float:
    return explain(viewer.shelf.model, edited(made(), read_edits(edits, 600))[0]).logit


def shown_logit(page: Page) -> float:
    return float(page.locator("#bag dt:text-is('Logit') + dd").inner_text().replace("−", "-"))


def draw_square(page: Page, viewer: Viewer, first: int, last: int) -> None:
    """A region by its corners, around the tiles from `first` (top left) to `last` (bottom right)."""
    (left, top), (right, bottom) = (place_of(page, viewer, 0, k) for k in (first, last))
    half = (place_of(page, viewer, 0, first + 1)[0] - left) / 2 * 0.8
    page.keyboard.press("d")
    assert page.get_attribute("#draw", "aria-pressed") == "true"
    for x, y in ((left - half, top - half), (right + half, top - half), (right + half, bottom + half)):
        page.mouse.click(x, y)
        page.wait_for_timeout(350)  # two presses in less are a double click
    page.mouse.click(left - half, bottom + half)
    page.keyboard.press("Enter")


def test_a_region_is_drawn_named_saved_and_read_again(page: Page, viewer: Viewer, tmp_path: Path) -> None:
    opened(page, viewer)
    page.wait_for_timeout(900)
    draw_square(page, viewer, 125, 187)  # rows 4 to 6, columns 5 to 7
    name = page.locator("#regions input")
    wait_until(page, "document.activeElement.matches('#regions input')")  # its name can be typed at once
    page.keyboard.type("Tumour")
    page.keyboard.press("Escape")
    wait_until(page, "document.querySelector('#regions li span').textContent.includes(',')")
    inside = [r * 30 + c for r in (4, 5, 6) for c in (5, 6, 7)]
    total = float(viewer.shelf.explanation(0).contributions.double()[inside].sum())
    count, contributed = page.inner_text("#regions li span").replace("−", "-").split(",")
    assert int(count) == 9
    assert float(contributed) == pytest.approx(total, abs=0.006 * max(1, abs(total)))
    with page.expect_download() as download:
        page.click("#save-regions")
    file = tmp_path / "slide-1.geojson"
    assert download.value.suggested_filename == file.name
    download.value.save_as(file)
    feature = json.loads(file.read_text())["features"][0]
    assert feature["properties"]["objectType"] == "annotation"
    assert feature["properties"]["classification"]["name"] == "Tumour"
    read = read_annotations(file)
    assert read.names == ["Tumour"]
    assert np.flatnonzero(read.shares(*level0(made())) > 0.5).tolist() == inside
    page.reload()
    page.wait_for_selector("#regions li")
    assert name.input_value() == "Tumour", "the region is in the address"
    page.click("text=Remove")
    assert page.locator("#regions li").count() == 0
    page.set_input_files("#annotations", file)
    page.wait_for_selector("#regions li")
    assert name.input_value() == "Tumour"
    assert page.inner_text("#regions li span").startswith("9")
    name.fill("Stroma")
    with page.expect_download() as download:
        page.click("#save-regions")
    download.value.save_as(tmp_path / "renamed.geojson")
    assert read_annotations(tmp_path / "renamed.geojson").names == ["Stroma"]


def test_a_region_is_drawn_with_the_keyboard_alone(page: Page, viewer: Viewer) -> None:
    opened(page, viewer)
    page.keyboard.press("d")
    for key, times in (("ArrowRight", 6), ("ArrowDown", 6), ("ArrowLeft", 6)):
        for _ in range(times):
            page.keyboard.press(key)
        page.keyboard.press("Space")
    page.keyboard.press("Enter")
    page.wait_for_selector("#regions li")
    page.keyboard.press("d")
    page.keyboard.press("Escape")
    assert page.get_attribute("#draw", "aria-pressed") == "false"
    assert page.locator("#regions li").count() == 1


def test_deleting_keeping_and_moving_show_the_logit_of_the_model(page: Page, viewer: Viewer) -> None:
    opened(page, viewer)
    page.wait_for_timeout(900)
    before = shown_logit(page)
    assert before == pytest.approx(logit_after(viewer, ""), abs=6e-4)
    first = int(viewer.shelf.explanation(0).contributions.abs().argmax())
    page.keyboard.press("n")
    page.wait_for_selector("#tile h2")
    page.keyboard.press("x")
    page.wait_for_selector("#whatif >> text=1 instance marked")
    page.get_by_role("button", name="Delete", exact=True).click()
    page.wait_for_selector("#whatif ol li")
    page.wait_for_selector("body[data-ready]")
    assert page.inner_text("#whatif ol li") == "Deleted 1 instance"
    edits = f"drop:{first}"
    assert shown_logit(page) == pytest.approx(logit_after(viewer, edits), abs=6e-4)
    assert f"{before:.3f}".replace("-", "−") in page.locator("dt:text-is('Before the edits') + dd").inner_text()
    assert f"edits={quote(edits)}" in page.url
    second = (first + 301) % 600
    number = second - (second > first)  # its number after the deletion
    page.keyboard.press("f")
    page.wait_for_timeout(1500)
    page.keyboard.down("Shift")
    x, y = place_of(page, viewer, 0, second)
    page.mouse.click(x, y)
    page.keyboard.up("Shift")
    page.wait_for_selector("#whatif >> text=1 instance marked")
    page.fill("#by-x", "250")
    page.fill("#by-y", "-30")
    page.get_by_role("button", name="Move", exact=True).click()
    page.wait_for_selector("#whatif ol li:nth-child(2)")
    page.wait_for_selector("body[data-ready]")
    edits += f";move:{second}@250,-30"
    assert shown_logit(page) == pytest.approx(logit_after(viewer, edits), abs=6e-4)
    places = np.frombuffer(ask(viewer, f"/api/bag/0/coords?edits={quote(edits)}")[1], "<f4").reshape(-1, 2)
    np.testing.assert_allclose(places[number] - made().coords[second].numpy(), [250, -30], atol=1e-3)
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.locator("#whatif ol li").all_inner_texts()[1].startswith("Moved 1 instance by +250 µm, −30")
    assert shown_logit(page) == pytest.approx(logit_after(viewer, edits), abs=6e-4)
    page.keyboard.press("u")
    wait_until(page, "document.querySelectorAll('#whatif ol li').length === 1 && document.body.dataset.ready")
    assert shown_logit(page) == pytest.approx(logit_after(viewer, f"drop:{first}"), abs=6e-4)
    page.get_by_role("button", name="All back").click()
    wait_until(page, "document.querySelectorAll('#whatif ol li').length === 0 && document.body.dataset.ready")
    assert shown_logit(page) == before
    assert "edits" not in page.url


def test_a_region_is_kept_alone(page: Page, viewer: Viewer) -> None:
    opened(page, viewer)
    page.wait_for_timeout(900)
    draw_square(page, viewer, 125, 187)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Mark the instances in Region 1").click()
    page.wait_for_selector("#whatif >> text=9 instances marked")
    page.get_by_role("button", name="Keep only").click()
    page.wait_for_selector("#whatif ol li")
    page.wait_for_selector("body[data-ready]")
    assert shown_logit(page) == pytest.approx(logit_after(viewer, "keep:125-127.155-157.185-187"), abs=6e-4)
    assert page.locator("#bag dt:text-is('Instances') + dd").inner_text() == "9"
    page.mouse.click(*place_of(page, viewer, 0, 156))
    page.wait_for_selector("#tile h2")
    assert page.inner_text("#tile h2") == "Instance #156", "under the name that it had"


def test_the_server_answers_for_the_edited_bag_and_refuses_other_texts(viewer: Viewer) -> None:
    edits = "drop:0-9;move:600"
    status, body, _ = ask(viewer, f"/api/bag/0?edits={edits}")
    assert status == 422
    assert b"expected for example" in body
    found = ask_json(viewer, "/api/bag/0/account?edits=drop:0-9")
    assert found["logit"] == pytest.approx(logit_after(viewer, "drop:0-9"), abs=1e-6)
    assert found["unedited"]["logit"] == pytest.approx(logit_after(viewer, ""), abs=1e-6)
    assert ask_json(viewer, "/api/bag/0/account")["unedited"] is None
    numbers = np.frombuffer(ask(viewer, "/api/bag/0/numbers?edits=drop:0-9")[1], "<f4")
    assert numbers.tolist() == list(range(10, 600))
    table = ask(viewer, "/api/bag/0/instances.csv?edits=drop:0-9")[1].decode().splitlines()
    assert len(table) == 591
    assert "#10" in table[1]
    clusters = [np.frombuffer(ask(viewer, f"/api/bag/0/group/clusters{q}")[1], "<f4") for q in ("", "?edits=drop:0-9")]
    assert np.array_equal(clusters[0][10:], clusters[1]), "the same clusters as before"


def test_letters_are_keys_of_the_page_not_of_the_picture(page: Page, viewer: Viewer) -> None:
    opened(page, viewer)
    page.wait_for_timeout(900)
    page.mouse.click(*place_of(page, viewer, 0, 200))  # the picture has the focus
    page.wait_for_selector("#tile h2")
    for key in ("r", "Escape", "f"):
        page.keyboard.press(key)
    page.wait_for_timeout(900)
    turned = page.evaluate(
        "(() => { const v = OpenSeadragon.getViewer(document.querySelector('#picture')).viewport;"
        " return [v.getRotation(), v.getFlip()]; })()"
    )
    assert turned == [0, False]


def test_a_damaged_address_opens_the_bag(page: Page, viewer: Viewer) -> None:
    opened(page, viewer, "#bag=slide-1&regions=%25E0:zz:1,2;Good:c80000:0,0,900,0,900,900,0,0;Cut:c80000:0,0,5")
    assert page.locator("#regions li").count() == 1
    assert page.input_value("#regions input") == "Good"
    page.goto(viewer.url + "#bag=slide-1&edits=burn:1")
    page.reload()
    page.wait_for_selector("#message.error")
    assert "expected for example drop:0-5.9" in page.inner_text("#message")


def test_a_figure_is_saved_in_every_format(page: Page, viewer: Viewer, tmp_path: Path) -> None:
    opened(page, viewer)
    page.select_option("#score", "pairs")
    page.wait_for_selector("body[data-shown='pairs']")
    for kind, begins in (("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
        with page.expect_download() as download:
            page.click(f"#figure-{kind}")
        assert download.value.suggested_filename == f"slide-1-pairs.{kind}"
        download.value.save_as(tmp_path / f"figure.{kind}")
        assert (tmp_path / f"figure.{kind}").read_bytes().startswith(begins)
    texts = (tmp_path / "figure.svg").read_text()
    assert ">a<" in texts
    assert ">b<" in texts, "the slide and the map"
    assert "µm" in texts, "a scale bar"
    assert Image.open(tmp_path / "figure.png").info["dpi"] == pytest.approx((300, 300), abs=1)
    assert ask(viewer, "/api/bag/0/figure.exe")[0] == 404
    assert ask(viewer, "/api/bag/0/figure.svg?score=group:kinds")[0] == 422
