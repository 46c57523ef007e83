"""The page in a real browser: the table sorts and filters, nothing is fetched, dark and light both work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from dasmil.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_the_page_works_in_a_browser(trained: Path, pages: dict[str, str], browser: Browser):
    assert pages["binary"]
    page = browser.new_page(color_scheme="light", viewport={"width": 1100, "height": 900})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((trained / "binary" / "report.html").as_uri())

    def column(number: int) -> list[str]:
        return page.eval_on_selector_all(
            "#bags tbody tr:not([hidden])", f"rows => rows.map(row => row.cells[{number}].textContent)"
        )

    assert set(column(1)) == {"test"}  # the split of the result comes first
    assert len(column(0)) == 16
    probability = page.locator("#bags th button", has_text="Probability")
    probability.click()
    values = [float(value) for value in column(4)]
    assert values == sorted(values)
    assert len(set(values)) > 5
    probability.click()
    assert [float(value) for value in column(4)] == sorted(values, reverse=True)
    page.check("[data-filter=wrong]")
    wrong = [a != b for a, b in zip(column(2), column(3))]
    assert all(wrong)
    assert page.text_content(".count") == f"{len(wrong)} bags, {len(wrong)} wrong"
    page.uncheck("[data-filter=wrong]")
    page.select_option("[data-filter=split]", "")
    page.fill("[data-filter=text]", "val-1")
    assert set(column(1)) == {"val"}
    assert len(column(0)) == 7  # val-1, val-10 ... val-15

    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 1100
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ground) == "rgb(19, 20, 21)"
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert problems == []
    assert len(requests) == 1


TOPS = """label => [...document.querySelectorAll(`svg[aria-label^='${label}']`)]
    .map(s => s.getBoundingClientRect().top)"""
SCALES = """() => [...document.querySelectorAll('figure svg')]
    .map(s => s.getBoundingClientRect().width / s.viewBox.baseVal.width)"""


def test_the_row_of_the_roc_has_no_hole_and_curves_can_be_read_on_a_phone(
    trained: Path, pages: dict[str, str], browser: Browser
):
    assert pages["binary"]
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto((trained / "binary" / "report.html").as_uri())
    row = [page.evaluate(TOPS, label) for label in ("ROC curve", "Confusion matrix")]
    assert len({round(top[0]) for top in row}) == 1
    assert len({round(top) for top in page.evaluate(TOPS, "Learning curve")}) == 1
    page.set_viewport_size({"width": 390, "height": 844})
    assert min(page.evaluate(SCALES)) > 0.55, "no figure is shrunk beyond reading"
    curves = page.evaluate(TOPS, "Learning curve")
    assert len(curves) >= 2
    assert curves == sorted(set(curves)), "one below the other"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_long_path_is_broken_on_a_phone(binary: Path, browser: Browser):
    config = json.loads((binary / "config.json").read_text())
    config["data"]["bags"] = "trident/20x_256px_0px_overlap_of_the_second_scanner/features_uni_v1_without_stain"
    (binary / "config.json").write_text(json.dumps(config))
    page_file = write_report(binary)
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(page_file.as_uri())
    assert "features_uni_v1_without_stain" in (page.text_content("h1") or "")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
