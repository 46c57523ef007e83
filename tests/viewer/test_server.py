"""What the server answers, to whom, and that the numbers are those of the explanation."""

from __future__ import annotations

import http.client
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from dasmil.attribution import Account, explain
from dasmil.models import create_model
from dasmil.types import Bag
from dasmil.viewer.answers import account as account_of
from dasmil.viewer.answers import describe, levels
from dasmil.viewer.shelf import Entry, Picture, Shelf

from .conftest import Viewer, serve


def ask(viewer: Viewer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=60)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    response = connection.getresponse()
    return response.status, response.read(), {k.lower(): v for k, v in response.getheaders()}


def ask_json(viewer: Viewer, path: str) -> dict:
    status, body, _ = ask(viewer, path)
    assert status == 200, body
    return json.loads(body)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1:1"},
        {"Origin": "http://evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_other_hosts_and_other_sites_are_refused(collages: Viewer, headers: dict[str, str]) -> None:
    status, body, _ = ask(collages, "/api/bags", **headers)
    assert status == 403
    assert b"own page" in body


def test_the_own_page_is_served_and_may_load_nothing_from_elsewhere(collages: Viewer) -> None:
    status, _, headers = ask(collages, "/", Host=f"localhost:{collages.port}", Sec_Fetch_Site="none")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "connect-src 'self'" in headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py", "/static/x.txt",
        "/../../etc/passwd", "/api/bag/..%2f..%2fetc", "/api/bag/0/picture/99/0/0", "/api/bag/0/picture/8/5/0",
        "/api/bag/0/picture/8/-1/0", "/api/bag/0/instance/99", "/api/bag/0/picture/7/0/0", "/api/bag/0/picture/0/0/0",
    ],
)  # fmt: skip
def test_nothing_else_is_served(collages: Viewer, path: str) -> None:
    status, body, _ = ask(collages, path)
    assert status == 404
    assert b"nothing at this address" in body


def test_only_reading_is_possible(collages: Viewer) -> None:
    assert ask(collages, "/api/bags", method="POST")[0] == 404


def test_scores_are_those_of_the_explanation(collages: Viewer) -> None:
    bag = collages.shelf.entries[1].load()
    account = explain(collages.shelf.model, bag)
    described = ask_json(collages, "/api/bag/1/account")
    assert described["logit"] == pytest.approx(account.logit, abs=1e-6)
    assert described["distance_share"] == pytest.approx(account.distance_share)
    assert {s["name"] for s in described["scores"]} == set(account.scores)
    assert described["scores"][0]["name"] == "contribution"
    got = np.frombuffer(ask(collages, "/api/bag/1/score/contribution")[1], "<f4")
    np.testing.assert_allclose(got, account.contributions.detach().numpy(), atol=1e-6)
    coords = np.frombuffer(ask(collages, "/api/bag/1/coords")[1], "<f4").reshape(-1, 2)
    np.testing.assert_array_equal(coords, bag.coords.numpy())


def test_places_and_partners_do_not_wait_for_the_contributions(collages: Viewer, monkeypatch) -> None:
    def never(*_args, **_kwargs):
        raise AssertionError("computed")

    with monkeypatch.context() as patch:
        patch.setattr(Account, "explain", never)
        described = ask_json(collages, "/api/bag/3")
        assert described["n"] == len(collages.shelf.entries[3].load())
        reply = ask_json(collages, "/api/bag/3/partners/2")
        assert reply["scores"] == {}
        assert [p["contribution"] for p in reply["partners"]] == [None] * len(reply["partners"])
    ask_json(collages, "/api/bag/3/account")
    assert set(ask_json(collages, "/api/bag/3/partners/2")["scores"]) >= {
        "Contribution to the logit",
        "Attention received",
    }


def test_pairs_that_decided_are_those_of_the_explanation(collages: Viewer) -> None:
    bag = collages.shelf.entries[1].load()
    every = explain(collages.shelf.model, bag, top=10**6).pairs
    pairs = ask_json(collages, "/api/bag/1/account")["pairs"]
    assert len(pairs) == 8
    assert [abs(p["contribution"]) for p in pairs] == sorted((abs(p["contribution"]) for p in pairs), reverse=True)
    for pair in pairs:
        ends = {pair["i"], pair["j"]}
        expected = sum(p.contribution for p in every if {p.i, p.j} == ends)
        assert pair["contribution"] == pytest.approx(expected, abs=1e-5)
        distance = float((bag.coords[pair["i"]] - bag.coords[pair["j"]]).norm())
        assert pair["distance"] == pytest.approx(distance, abs=1e-3)


def test_partners_are_the_largest_weights_of_the_row(collages: Viewer) -> None:
    model, bag = collages.shelf.model, collages.shelf.entries[1].load()
    weights = torch.stack([_weight_row(collages, i) for i in range(len(bag))])
    torch.testing.assert_close(weights.sum(1), torch.ones(len(bag)), atol=1e-4, rtol=0)
    reply = ask_json(collages, "/api/bag/1/partners/3")
    assert reply["x"] == pytest.approx(float(bag.coords[3, 0]))
    found = reply["partners"]
    assert found[0]["index"] == int(weights[3].argmax())
    for partner in found:
        distance = float((bag.coords[3] - bag.coords[partner["index"]]).norm())
        assert partner["distance"] == pytest.approx(distance, abs=1e-3)
        row = model.learned_distances()[0]
        phi = 1 / (1 + np.exp(-(distance / model.distance_scale - row["theta"]) * row["beta"]))
        if partner["index"] != 3:
            assert partner["phi"] == pytest.approx(phi, abs=1e-4)


def _weight_row(viewer: Viewer, i: int) -> torch.Tensor:
    partners = ask_json(viewer, f"/api/bag/1/partners/{i}")["partners"]
    row = torch.zeros(len(viewer.shelf.entries[1].load()))
    for partner in partners:
        row[partner["index"]] = partner["weight"]
    return row


def test_deep_zoom_tiles_show_the_picture(slide: Viewer) -> None:
    described = ask_json(slide, "/api/bag/0")["picture"]
    assert (described["width"], described["height"]) == (8000, 6000)
    assert (described["min_level"], described["max_level"]) == (8, 13)
    pixels = np.asarray(Image.open(io.BytesIO(ask(slide, "/api/bag/0/picture/13/3/4")[1]))).astype(int)
    assert pixels.shape == (256, 256, 3)
    # Level-0 pixel (768, 1024) is at (384 um, 512 um): column 0, row 1, so white; 500 um is pixel 1000 = 768 + 232.
    assert np.abs(pixels[10, 200] - 255).max() < 12
    assert np.abs(pixels[10, 250] - [40, 60, 200]).max() < 12
    corner = np.asarray(Image.open(io.BytesIO(ask(slide, "/api/bag/0/picture/13/31/23")[1])))
    assert corner.shape == (6000 - 23 * 256, 8000 - 31 * 256, 3)


def test_a_small_picture_is_shrunk_without_being_laid_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (301, 700, 3), dtype=np.uint8)
    ground = SimpleNamespace(width=700.0, height=301.0, thumbnail=lambda _per_px: pixels)
    picture = Picture(ground, 1.0)  # pyright: ignore[reportArgumentType]
    assert levels(picture) == (8, 10)
    made: list[tuple[int, int]] = []
    new = Image.new
    monkeypatch.setattr(Image, "new", lambda mode, size, *rest: (made.append(size), new(mode, size, *rest))[1])
    assert np.array_equal(picture.region(256, 0, 1, 256), pixels[:256, 256:512])
    half = picture.region(512, 0, 2, 256)
    expected = pixels[:300, 512:].reshape(150, 2, 94, 2, 3).mean((1, 3))
    assert np.abs(half[:150, :94] - expected).max() <= 1
    assert (half[151:] == 255).all()
    assert (half[:, 94:] == 255).all()
    quarter = pixels[:300].reshape(75, 4, 175, 4, 3).mean((1, 3))
    assert np.abs(picture.region(0, 0, 4, 256)[:75, :175] - quarter).max() <= 1
    assert set(made) == {(256, 256)}


@pytest.mark.parametrize("name", ["sa", "transmil"])
def test_the_probability_of_several_classes_is_among_all_of_them(name: str) -> None:
    torch.manual_seed(0)
    model = create_model(name, in_features=4, n_classes=3, unit="um").eval()
    bag = Bag(torch.randn(6, 4), torch.rand(6, 2) * 100, "um", "b")
    shelf = Shelf("three classes", "for tests", model, [Entry("b", lambda: bag)])
    account = account_of(shelf, 0, None)
    with torch.no_grad():
        expected = model(bag.features, bag.coords).logit.softmax(-1)
    assert account["target_name"] == str(int(expected.argmax()))
    assert account["probability"] == pytest.approx(float(expected.max()), abs=1e-6)


def test_errors_are_messages_and_the_viewer_goes_on(collages: Viewer) -> None:
    status, body, _ = ask(collages, "/api/bag/4")
    assert status == 422
    assert "does-not-fit" in json.loads(body)["error"]
    assert ask(collages, "/api/bag/77")[0] == 422
    assert ask(collages, "/api/bag/1/score/nonsense")[0] == 422
    assert ask(collages, "/api/bag/1/partners/500")[0] == 422
    described = ask_json(collages, "/api/bag/2")
    assert described["picture"] is None
    assert described["warnings"] == ["Shown without its slide: no slide named lost is in slides"]


def test_a_bag_with_nan_features_is_a_message() -> None:
    features = torch.randn(20, 4)
    features[3, 1] = float("nan")
    bag = Bag(features, torch.rand(20, 2) * 100, "um", "slide-1")
    model = create_model("das-mil", in_features=4)
    for viewer in serve(Shelf("das-mil", "for tests", model, [Entry("slide-1", lambda: bag)])):
        status, body, _ = ask(viewer, "/api/bag/0")
        assert status == 422
        assert "1 of 20 instances have NaN or infinite features; remove them" in json.loads(body)["error"]


@pytest.mark.parametrize("damage", ["weights", "lengths", "places"])
def test_numbers_that_no_page_can_draw_are_a_message(damage: str) -> None:
    torch.manual_seed(0)
    places = torch.rand(20, 2) * (1e30 if damage == "places" else 100)
    bag = Bag(torch.randn(20, 4), places, "um", "slide-1")
    model = create_model("das-mil", in_features=4).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if damage == "weights" or (damage == "lengths" and name.endswith("theta")):
                parameter.fill_(float("nan") if damage == "weights" else float("inf"))
    for viewer in serve(Shelf("das-mil", "for tests", model, [Entry("slide-1", lambda: bag)])):
        answers = [ask(viewer, f"/api/bag/0{what}")[:2] for what in ("", "/account", "/partners/3")]
        assert {status for status, _ in answers} <= {200, 422}
        messages = [json.loads(body)["error"] for status, body in answers if status == 422]
        assert messages
        assert all("infinite or no number" in message or "no map can show" in message for message in messages), messages


def test_a_header_that_stands_twice_is_refused(collages: Viewer) -> None:
    twice = {"Origin": (collages.url[:-1], "http://evil.example"), "Sec-Fetch-Site": ("none", "cross-site")}
    for name, values in twice.items():
        connection = http.client.HTTPConnection("127.0.0.1", collages.port, timeout=60)
        connection.putrequest("GET", "/api/bags")
        for value in reversed(values):
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 403


def test_what_a_bias_and_a_radius_say_of_distance_is_told() -> None:
    model = create_model("sa", in_features=4, bias="cauchy", bias_init=0.5, distance_scale=80.0, radius=90.0)
    bag = Bag(torch.randn(5, 4), torch.rand(5, 2) * 100, "um", "five")
    shelf = Shelf("sa", "for tests", model, [Entry("five", lambda: bag)])
    assert describe(shelf, 0, None)["told"] == [
        "A weight is half as large at 40 µm (cauchy, length 40 µm).",
        "Instances more than 90 µm apart do not see each other.",
    ]


@pytest.mark.parametrize("path", ["/api/bag/{}", "/api/bag/0/partners/{}", "/api/bag/0/picture/1/{}/0"])
def test_a_number_of_thousands_of_digits_is_no_fault_of_the_server(collages: Viewer, path: str) -> None:
    status, body, headers = ask(collages, path.format("9" * 5000))
    assert (status, json.loads(body)) == (414, {"error": "The address is too long."})
    assert "content-security-policy" in headers


def test_where_cells_lie_is_found_once_for_a_bag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their size is that of the spacing, which of half a million cells is seconds to find."""
    import scipy.spatial

    trees: list[int] = []

    class Counted(scipy.spatial.KDTree):
        def __init__(self, points: np.ndarray) -> None:
            trees.append(len(points))
            super().__init__(points)

    monkeypatch.setattr(scipy.spatial, "KDTree", Counted)
    y, x = torch.meshgrid(torch.arange(200), torch.arange(250), indexing="ij")
    bag = Bag(torch.randn(50_000, 2), torch.stack([x, y], -1).reshape(-1, 2) * 7.0, "um", "cells")
    shelf = Shelf("cells", "", create_model("mean-pool", in_features=2, unit="um"), [Entry("cells", lambda: bag)])
    told = describe(shelf, 0, None)
    assert told["instance_size"] == 7.0
    assert told["round"]
    assert told["frame"]["width"] == 249 * 7.0 + 14
    assert shelf.open(0).layout.n == 50_000
    assert trees == [50_000]
