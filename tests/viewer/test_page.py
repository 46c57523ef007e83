"""The page in a real browser: load, zoom, click a tile, see the right partners, switch overlay, search."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page

from dasmil.attribution.contributions import both_ways

from .conftest import Viewer


def opened(page: Page, viewer: Viewer, fragment: str = "") -> None:
    page.goto(viewer.url + fragment)
    page.wait_for_selector("body[data-ready]")


def place_of(page: Page, viewer: Viewer, bag: int, instance: int) -> tuple[float, float]:
    """Where an instance is on the screen, from the picture's own corners."""
    corners = page.evaluate(
        """() => { const viewer = OpenSeadragon.getViewer(document.querySelector('#picture'));
        const v = viewer.world.getItemAt(0);
        const a = v.imageToViewerElementCoordinates(new OpenSeadragon.Point(0, 0));
        const b = v.imageToViewerElementCoordinates(new OpenSeadragon.Point(v.source.dimensions.x, 0));
        return [a.x, a.y, (b.x - a.x) / v.source.dimensions.x]; }"""
    )
    opened = viewer.shelf.open(bag)
    assert opened.picture is not None
    x, y = (opened.bag.coords[instance] * opened.picture.px_per_unit).tolist()
    return corners[0] + x * corners[2], corners[1] + y * corners[2]


def wait_until(page: Page, expression: str) -> None:
    """Playwright's own waiting evaluates strings in the page, which the page's security policy forbids."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never true: {expression}")


def pixels(page: Page, path: str) -> np.ndarray:
    page.screenshot(path=path)
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


PLACE_ON_GROUND = """([column, row]) => { // of a grid of 40 columns with half a tile around it
    const item = OpenSeadragon.getViewer(document.querySelector('#picture')).world.getItemAt(0);
    const side = item.source.dimensions.x / 41;
    const p = item.imageToViewerElementCoordinates(new OpenSeadragon.Point((column + 1) * side, (row + 1) * side));
    return [p.x, p.y]; }"""

SEAMS = """async ([columns, rows, side]) => {
    const { Overlay } = await import('/static/overlay.js');
    const canvas = document.createElement('canvas');
    canvas.style.cssText = 'position: fixed; left: 0; top: 0; width: 600px; height: 300px';
    document.body.append(canvas);
    const n = columns * rows; // 64 columns: a bitmap of 2048 pixels, 32 a tile
    const overlay = new Overlay(canvas, () => ({ x0: 0.1875, y0: 0.1875, scale: 20 / 30 }));
    const place = (k) => 15 + 0.46875 + 30 * k; // edges at .5 of a pixel, on the screen and in the bitmap
    const x = Float32Array.from({ length: n }, (_, i) => place(i % columns));
    const y = Float32Array.from({ length: n }, (_, i) => place(Math.floor(i / columns)));
    overlay.setBag({ x, y, side, round: false, width: 1920, height: 1500 });
    overlay.setColours(new Int16Array(n), [[0, 0, 0]]);
    overlay.draw({ opacity: 0.5, selected: -1, lines: [], theme: {} });
    const { data } = canvas.getContext('2d').getImageData(10, 10, 580, 280);
    return [...new Set(data.filter((_, k) => k % 4 === 3))].sort((a, b) => a - b); }"""


def test_a_click_shows_what_the_instance_attends_to(page: Page, collages: Viewer) -> None:
    opened(page, collages, "#bag=mnist-collage/test/0001")
    page.mouse.click(*place_of(page, collages, 1, 4))
    page.wait_for_selector("#tile h2")
    assert page.inner_text("#tile h2") == "Instance #4"
    expected = collages.shelf.partners(1, 4)
    rows = page.locator("#tile table[aria-label='Strongest partners'] tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == [f"#{p.j}" for p in expected[:12]]
    assert f"{100 * expected[0].weight:.1f} %" in rows[0]
    assert page.locator("#tile svg line.partner").count() == len({p.j for p in expected} - {4})
    assert "tile=4" in page.url
    page.reload()
    page.wait_for_selector("#tile h2")
    assert page.inner_text("#tile h2") == "Instance #4", "the view is in the address"
    assert all(url.startswith((collages.url, "data:", "blob:")) for url in page.requests)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_link_to_a_bag_that_is_not_here_says_so(page: Page, collages: Viewer) -> None:
    opened(page, collages, "#bag=elsewhere&tile=4")
    wait_until(page, "document.getElementById('message').textContent.startsWith('There is no bag')")
    first = collages.shelf.entries[0].bag_id
    assert page.inner_text("#message") == f"There is no bag elsewhere here. This is {first}."
    assert "tile=4" not in page.url


def test_the_picture_begins_below_controls_of_two_lines(page: Page, collages: Viewer) -> None:
    page.set_viewport_size({"width": 760, "height": 800})
    opened(page, collages, "#bag=mnist-collage/test/0001")
    height = page.evaluate("document.getElementById('controls').offsetHeight")
    assert height > 60, "two lines"
    page.keyboard.press("f")
    page.wait_for_timeout(1500)
    top = min(place_of(page, collages, 1, i)[1] for i in range(len(collages.shelf.open(1).bag)))
    assert top > height


def test_without_a_selection_the_pairs_that_decided_are_shown(page: Page, collages: Viewer) -> None:
    opened(page, collages, "#bag=mnist-collage/test/0001")
    strongest = both_ways(collages.shelf.explanation(1).pairs)[0]
    first = page.locator("#tile tbody tr").first
    digits = collages.shelf.open(1).bag.instance_labels
    assert digits is not None
    ends = [f"#{k} [{digits[k]}]" for k in (strongest.i, strongest.j)]
    assert first.inner_text().split("\t")[0] == " – ".join(ends)
    assert f"{strongest.distance:.0f}" in first.inner_text() or f"{strongest.distance:.1f}" in first.inner_text()
    first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#tile h2")
    assert page.inner_text("#tile h2") == f"Instance #{strongest.i}"
    page.keyboard.press("Escape")
    page.wait_for_selector("#tile h3")
    assert page.inner_text("#tile h3") == "Pairs that decided"


def test_search_sort_and_keys(page: Page, collages: Viewer) -> None:
    opened(page, collages)
    assert page.inner_text("#count") == "5 bags"
    assert page.get_attribute("body", "data-placed") == "0"  # what dasmil bench viewer waits for
    assert page.get_attribute("body", "data-shown") == "contribution"
    page.fill("#search", "0003")
    assert page.locator("#list li").count() == 1
    assert page.inner_text("#count") == "1 of 5 bags"
    page.fill("#search", "")
    page.select_option("#sort", "high")
    assert "0003" in page.locator("#list li").first.inner_text()
    page.select_option("#sort", "order")
    page.locator("#list").focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("body[data-ready='1']")
    assert page.get_attribute("#bag-1", "aria-selected") == "true"
    page.keyboard.press("n")
    page.wait_for_selector("#tile h2")
    top = int(collages.shelf.explanation(1).scores["contribution"].abs().argmax())
    assert page.inner_text("#tile h2") == f"Instance #{top}"
    page.keyboard.press("Escape")
    page.wait_for_selector("#tile h2", state="detached")


def test_the_strongest_instances_are_those_for_and_against_the_class(page: Page, plain: Viewer) -> None:
    opened(page, plain)
    values = plain.shelf.explanation(0).scores["contribution"].numpy()
    order = np.argsort(-np.abs(values), kind="stable")[:24]
    assert values[order[0]] < 0 < values[order].max(), "the strongest speaks against, others for the class"
    shown = page.locator("#strip button").evaluate_all("buttons => buttons.map((b) => Number(b.dataset.instance))")
    assert shown == order.tolist()
    for key, expected in (("n", order[0]), ("n", order[1]), ("p", order[0])):
        page.keyboard.press(key)
        wait_until(page, f"document.querySelector('#tile h2')?.textContent === 'Instance #{expected}'")


def test_the_worst_errors_of_several_classes_come_first(page: Page, three_classes: Viewer) -> None:
    opened(page, three_classes)
    page.select_option("#sort", "wrong")
    ids = [text.split()[0] for text in page.locator("#list li").all_inner_texts()]
    assert ids == ["surely-wrong", "nearly-right", "hardly-right", "surely-right"]


def test_the_sort_by_probability_is_named_for_what_it_is(page: Page, three_classes: Viewer, collages: Viewer) -> None:
    opened(page, three_classes)
    page.select_option("#sort", label="surest prediction first")  # whatever the class is
    ids = [text.split()[0] for text in page.locator("#list li").all_inner_texts()]
    assert ids == ["surely-right", "surely-wrong", "hardly-right", "nearly-right"]
    page.select_option("#sort", label="least sure first")
    assert page.locator("#list li").first.inner_text().startswith("nearly-right")
    assert "positive" not in page.inner_text("#sort")
    opened(page, collages)
    page.select_option("#sort", label="most positive first")
    assert "0003" in page.locator("#list li").first.inner_text()


def test_zoom_overlay_threshold_and_export(page: Page, slide: Viewer, tmp_path) -> None:
    opened(page, slide)
    wait_until(page, "OpenSeadragon.getViewer(document.querySelector('#picture')).world.getItemAt(0).getFullyLoaded()")
    before = pixels(page, str(tmp_path / "a.png"))
    page.select_option("#score", "pairs")
    wait_until(page, "document.querySelector('#bar-title').textContent.startsWith('Share')")
    page.wait_for_timeout(300)
    assert (pixels(page, str(tmp_path / "b.png")) != before).any(), "another score, other colours"
    page.locator("#opacity").fill("0")
    page.wait_for_timeout(300)
    x, y = place_of(page, slide, 0, 1530)
    bare = pixels(page, str(tmp_path / "c.png"))[round(y), round(x)]
    assert np.abs(bare - [40, 60, 200]).max() < 15 or np.abs(bare - 255).max() < 15, "the slide itself"
    bar = page.inner_text("#scalebar span")
    page.mouse.move(x, y)
    for _ in range(4):
        page.mouse.wheel(0, -400)
        page.wait_for_timeout(150)
    page.wait_for_timeout(900)
    assert page.inner_text("#scalebar span") != bar, "the scale bar follows the zoom"
    with page.expect_download() as download:
        page.click("#export")
    download.value.save_as(tmp_path / "view.png")
    assert Image.open(tmp_path / "view.png").size == (840, 800)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_on_a_plain_ground_are_those_of_the_legend(page: Page, plain: Viewer, theme, tmp_path) -> None:
    page.emulate_media(color_scheme=theme)
    opened(page, plain)
    page.wait_for_timeout(800)
    against = [31, 78, 121]  # the lower end of the scale
    bar = page.locator("#bar").bounding_box()
    assert bar is not None
    shown = pixels(page, str(tmp_path / "opaque.png"))
    assert shown[round(bar["y"] + bar["height"]) - 5, round(bar["x"])].tolist() == against, "the legend"
    column, row = map(round, page.evaluate(PLACE_ON_GROUND, [777 % 40, 777 // 40]))
    assert shown[row, column].tolist() == against, "the map"
    assert "opacity" not in page.url, "not chosen"
    page.locator("#opacity").fill("50")
    page.wait_for_timeout(300)
    ground = np.array([255, 255, 255] if theme == "light" else [20, 20, 20])
    half = pixels(page, str(tmp_path / "half.png"))[row, column]
    assert np.abs(half - (np.array(against) + ground) / 2).max() <= 2
    assert "opacity=50" in page.url


def test_over_a_picture_the_tiles_let_it_show_through(page: Page, slide: Viewer) -> None:
    opened(page, slide)
    assert page.input_value("#opacity") == "85"


@pytest.mark.parametrize(("columns", "rows"), [(40, 20), (64, 50)], ids=["drawn one by one", "drawn as a bitmap"])
@pytest.mark.parametrize("side", [29.998, 30.002])
def test_no_seams_between_tiles_that_touch(page: Page, plain: Viewer, columns: int, rows: int, side: float) -> None:
    """Tiles 30 apart whose edges fall halfway between two pixels, and whose side is rounded."""
    opened(page, plain)
    alphas = page.evaluate(SEAMS, [columns, rows, side])
    assert alphas == [128], "0 is a gap, 192 two tiles on one another"


def test_messages_for_what_cannot_be_shown(page: Page, collages: Viewer) -> None:
    opened(page, collages)
    page.click("#bag-4")
    page.wait_for_selector("#message.error")
    assert "does-not-fit" in page.inner_text("#message")
    page.click("#bag-2")
    page.wait_for_selector("body[data-ready='2']")
    assert page.is_hidden("#message")
    assert "no slide named lost" in page.inner_text("#bag .warn")
