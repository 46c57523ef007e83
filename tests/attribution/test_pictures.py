"""Maps and files of an explanation: every pixel and every coordinate where it belongs."""

import csv
import io
import json

import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.colors import AsinhNorm

from dasmil.attribution import explain
from dasmil.attribution.distance import learned_distances, phi_values
from dasmil.attribution.export import write_geojson, write_instances, write_pairs
from dasmil.attribution.ground import CollageGround, check_ground, layout_of, level0_boxes
from dasmil.attribution.scale import ColourScale, colour_scale
from dasmil.errors import DataError
from dasmil.models import create_model
from dasmil.report.explanation.bundle import write_bundle
from dasmil.report.explanation.heatmap import (
    colours_of,
    compose,
    free_place,
    map_figure,
    map_image,
    nice_length,
    paint,
    tiles_figure,
)
from dasmil.report.phi import phi_figure, phis
from dasmil.types import Bag, Pair

MPP = 0.5
META = {"tile_um": 100.0, "mpp": MPP, "slide_width_px": 1600, "slide_height_px": 1200}


def slide_bag(metadata=None):
    """Four tiles of 100 um (200 px) on a slide of 800 x 600 um, in two rows that touch."""
    corners = torch.tensor([[100.0, 100.0], [200.0, 100.0], [100.0, 200.0], [600.0, 400.0]])
    g = torch.Generator().manual_seed(0)
    return Bag(
        torch.randn(4, 6, generator=g), corners + 50, "um", "slide/1", metadata=META if metadata is None else metadata
    )


class Plain:
    """A ground of one colour, 800 x 600 um."""

    width, height = 800.0, 600.0

    def __init__(self, value=200):
        self.value = value

    def thumbnail(self, per_px):
        return np.full((round(600 / per_px), round(800 / per_px), 3), self.value, np.uint8)

    def tile(self, x, y, side, side_px):
        return np.full((side_px, side_px, 3), int(x) % 256, np.uint8)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return create_model("das-mil", in_features=6, distance_scale=200.0, heads=2, unit="um").eval()


def test_level0_boxes_are_right_to_the_pixel():
    assert level0_boxes(slide_bag()).tolist() == [
        [200.0, 200.0, 400.0, 400.0],
        [400.0, 200.0, 600.0, 400.0],
        [200.0, 400.0, 400.0, 600.0],
        [1200.0, 800.0, 1400.0, 1000.0],
    ]
    pixels = Bag(torch.randn(2, 1, 28, 28), torch.tensor([[20.0, 30.0], [100.0, 14.0]]), "px", "c")
    assert level0_boxes(pixels).tolist() == [[6.0, 16.0, 34.0, 44.0], [86.0, 0.0, 114.0, 28.0]]
    with pytest.raises(DataError, match="no 'mpp'"):
        level0_boxes(slide_bag({"tile_um": 100.0}))


def test_geojson_is_what_qupath_reads(tmp_path, model):
    bag = slide_bag()
    e = explain(model, bag)
    write_geojson(tmp_path / "a.geojson", bag, e)
    content = json.loads((tmp_path / "a.geojson").read_text())
    assert content["type"] == "FeatureCollection"
    assert len(content["features"]) == 4
    last = content["features"][3]
    assert last["geometry"] == {
        "type": "Polygon",
        "coordinates": [[[1200.0, 800.0], [1400.0, 800.0], [1400.0, 1000.0], [1200.0, 1000.0], [1200.0, 800.0]]],
    }
    assert last["properties"]["objectType"] == "tile"
    assert last["properties"]["measurements"].keys() == e.scores.keys()
    assert last["properties"]["measurements"]["contribution"] == pytest.approx(float(e.contributions[3]), rel=1e-6)
    assert len({f["id"] for f in content["features"]}) == 4
    write_geojson(tmp_path / "b.geojson", bag, e)
    assert (tmp_path / "a.geojson").read_bytes() == (tmp_path / "b.geojson").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.geojson", "b.geojson"]  # nothing left over


def test_csv_holds_every_instance_and_pair(tmp_path, model):
    bag = slide_bag()
    e = explain(model, bag, top=5)
    write_instances(tmp_path / "i.csv", bag, e)
    write_pairs(tmp_path / "p.csv", bag, e)
    rows = list(csv.DictReader((tmp_path / "i.csv").open()))
    assert [float(r["x_um"]) for r in rows] == [150.0, 250.0, 150.0, 650.0]
    assert [float(r["contribution"]) for r in rows] == pytest.approx(e.contributions.tolist(), rel=1e-6)
    assert sum(float(r["taken"]) for r in rows) + e.bias == pytest.approx(e.logit, abs=1e-5)
    pairs = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert len(pairs) == 5
    first = pairs[0]
    i, j = int(first["i"]), int(first["j"])
    assert float(first["distance_um"]) == pytest.approx(float(torch.dist(bag.coords[i], bag.coords[j])), abs=1e-3)


def test_paint_puts_each_tile_on_its_pixels():
    layout = layout_of(slide_bag())
    assert layout.field == (0.0, 0.0, 800.0, 600.0)
    raster = paint(layout, np.array([1.0, 2.0, 3.0, -4.0]), per_px=10.0)
    assert raster.shape == (60, 80)
    expected = np.full((60, 80), np.nan)
    expected[10:20, 10:20], expected[10:20, 20:30], expected[20:30, 10:20], expected[40:50, 60:70] = 1, 2, 3, -4
    np.testing.assert_array_equal(raster, expected)
    twice = layout_of(Bag(torch.randn(2, 3), torch.tensor([[150.0, 150], [150, 150]]), "um", "x", metadata=META))
    assert paint(twice, np.array([1.0, 3.0]), 10.0)[15, 15] == 2.0  # the mean where tiles overlap


def test_sections_are_drawn_side_by_side_and_exported_where_they_are():
    places = torch.tensor([[150.0, 150], [250, 150], [150, 150], [150, 650]])
    bag = Bag(torch.randn(4, 3), places, "um", "x", section=torch.tensor([0, 0, 1, 1]), metadata=META)
    layout = layout_of(bag)
    gap = 4 * layout.side
    np.testing.assert_allclose(layout.centres, [[0, 0], [100, 0], [100 + gap, 0], [100 + gap, 500]])
    assert layout.field[0] < 0
    assert layout.field[2] > 100 + gap
    boxes = level0_boxes(bag)
    np.testing.assert_allclose(boxes[0], boxes[2])  # each on its own slide


def test_colours_are_blue_white_orange_about_zero_and_leave_white_ground_white():
    raster = np.array([[-1.0, 0.0, 1.0, np.nan]])
    out = compose(raster, np.full((1, 4, 3), 255, np.uint8), ColourScale(-1.0, 1.0, True))[0]
    accent, orange = np.array([0x1F, 0x4E, 0x79]), np.array([0xC4, 0x59, 0x0F])
    np.testing.assert_allclose(out[0], 0.15 * 255 + 0.85 * accent, atol=1)
    assert out[1].tolist() == [255, 255, 255]
    np.testing.assert_allclose(out[2], 0.15 * 255 + 0.85 * orange, atol=1)
    assert out[3].tolist() == [255, 255, 255]
    plain = compose(raster, None, ColourScale(-1.0, 1.0, True))[0]
    assert plain[0].tolist() == accent.tolist()
    assert plain[1].min() > 240
    assert plain[2].tolist() == orange.tolist()
    assert plain[3].tolist() == [238, 238, 238]
    attention = compose(np.array([[0.0, 1.0]]), None, ColourScale(0.0, 1.0, False))[0]
    assert attention[0].tolist() == [0, 34, 78]  # the ends of cividis
    assert attention[1].tolist() == [254, 232, 56]


@pytest.mark.parametrize("signed", [True, False])
def test_tissue_keeps_its_colours_where_a_score_is_zero_and_less_of_them_the_stronger_it_is(signed):
    tissue = np.full((1, 4, 3), (225, 140, 190), np.uint8)
    out = compose(np.array([[0.0, 0.25, 0.5, 1.0]]), tissue, ColourScale(-1.0 if signed else 0.0, 1.0, signed))[0]
    assert out[0].tolist() == [225, 140, 190]
    change = np.abs(out.astype(int) - tissue[0]).sum(1)
    assert 0 < change[1] < change[2] < change[3]


def test_map_lies_on_the_ground_pixel_by_pixel():
    values = np.array([1.0, -1.0, 0.5, 0.0])
    image = map_image(layout_of(slide_bag(), Plain()), values, "contribution", Plain(), largest_px=80)
    assert image.shape == (60, 80, 3)
    assert image[5, 5].tolist() == [200, 200, 200]  # ground as it is
    orange, blue = image[15, 15].astype(int), image[15, 25].astype(int)
    assert orange[0] > orange[1] > orange[2]
    assert blue[2] > blue[1] > blue[0]


def test_lengths_of_lines_that_cross_do_not_lie_on_each_other():
    bag = slide_bag()
    pairs = [
        Pair(i, j, 0, contribution=1.0, distance_part=0.0, weight=0.5, distance=distance, phi=0.1)
        for i, j, distance in ((0, 3, 583.1), (1, 3, 500.0), (2, 3, 538.5))
    ]
    figure = map_figure(layout_of(bag, Plain()), np.ones(4), "contribution", Plain(), mark=pairs)
    figure.savefig(io.BytesIO(), format="png", dpi=72)
    texts = [text for text in figure.axes[0].texts if text.get_text() in ("583 µm", "500 µm", "538 µm")]
    assert len(texts) == 3
    boxes = [text.get_window_extent() for text in texts]
    assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])


def test_lengths_of_lines_that_run_side_by_side_stay_each_on_its_line():
    ends = torch.tensor([[400.0, 60.0], [250.0, 540.0], [330.0, 540.0]])
    bag = Bag(torch.zeros(3, 2), ends, "um", "s", metadata=META | {"tile_um": 20.0})
    pairs = [
        Pair(0, j, 0, contribution=1.0, distance_part=0.0, weight=0.5, distance=distance, phi=0.1)
        for j, distance in ((2, 485.1), (1, 502.9))
    ]
    figure = map_figure(layout_of(bag, Plain()), np.ones(3), "contribution", Plain(), mark=pairs)
    figure.savefig(io.BytesIO(), format="png", dpi=72)
    texts = {text.get_text(): text for text in figure.axes[0].texts}
    first, second = texts["485 µm"], texts["503 µm"]
    assert not first.get_window_extent().overlaps(second.get_window_extent())
    for text, x1 in ((first, 330.0), (second, 250.0)):
        x, y = text.get_position()
        assert x == pytest.approx(400 + (x1 - 400) * (y - 60) / 480, abs=0.01)


def test_a_label_goes_beside_what_is_there_and_is_left_out_where_nothing_is_free():
    assert free_place((0, 0), (10, 4), []) == (0, 0)
    assert free_place((0, 0), (10, 4), [(1, 1, 10, 4)]) is not None
    assert free_place((0, 0), (10, 4), [(0, 0, 10, 4)]) == (0, -4)
    assert free_place((0, 0), (10, 4), [(0, 0, 10, 4), (0, -4, 10, 4)]) == (0, 4)
    assert free_place((0, 0), (10, 4), [(0, 0, 40, 40)]) is None


def test_scales_are_symmetric_where_signed_and_reach_the_largest_value():
    assert colour_scale("contribution", np.array([-3.0, 1.0])) == ColourScale(-3.0, 3.0, True)
    assert colour_scale("attention", np.array([0.1, 0.4])) == ColourScale(0.0, 0.4, False)
    values = np.zeros(1000)
    values[0] = 100.0
    values[1:] = np.linspace(0, 1, 999)
    scale = colour_scale("contribution", values)
    assert (scale.low, scale.high) == (-100.0, 100.0)
    assert 0.9 < scale.linear < 1.1
    assert scale.note == "logarithmic beyond ±1"
    assert colour_scale("contribution", np.zeros(5)) == ColourScale(-1.0, 1.0, True)


@pytest.mark.parametrize("values", [[0.5, 1.0, 2.0], [-0.5, -1.0, -2.0], [-2.0, 1.0, 2.0]])
def test_the_scale_of_a_signed_score_never_depends_on_the_signs_in_a_bag(values):
    assert colour_scale("contribution", np.array(values)) == ColourScale(-2.0, 2.0, True)


def test_one_tile_that_decided_does_not_make_hundreds_look_decisive():
    """49,049 tiles of at most 0.0015 and one of 3.05: only this one has the last colour, and order is kept."""
    rng = np.random.default_rng(0)
    values = np.append(rng.normal(0, 0.0005, 49_049), [3.05, 0.3, -0.3])
    scale = colour_scale("contribution", values)
    strength = scale.strength(values)
    assert (strength > 0.9).sum() == 1
    assert strength[:-3].max() < 0.12
    assert 0.5 < strength[-1] < 0.8
    assert scale.place(values)[-2] == pytest.approx(1 - scale.place(values)[-1])
    np.testing.assert_array_equal(np.argsort(scale.place(values)), np.argsort(values))
    colours = colours_of("contribution", values).astype(int)
    assert (np.abs(colours - colours[-3]).max(1) < 10).sum() == 1


def test_the_colour_bar_is_that_of_the_map():
    values = np.append(np.linspace(-0.01, 0.01, 400), 5.0)
    scale = colour_scale("contribution", values)
    bar = AsinhNorm(scale.linear, scale.low, scale.high)
    np.testing.assert_allclose(np.asarray(bar(values)), scale.place(values), atol=1e-6)


def test_scale_bar_lengths():
    assert [nice_length(v) for v in (1.0, 4.9, 5.0, 64.0, 199.0, 250.0, 999.0)] == [1, 2, 5, 50, 100, 200, 500]


def test_a_slide_that_the_tiles_do_not_lie_on_is_refused():
    check_ground(slide_bag(), Plain(), "a.svs")

    class Small(Plain):
        width, height = 400.0, 300.0

    with pytest.raises(DataError, match=r"a\.svs is 400 x 300 µm.*up to \(650, 450\) µm.*not the slide"):
        check_ground(slide_bag(), Small(), "a.svs")


def collage():
    g = torch.Generator().manual_seed(0)
    digits = torch.full((3, 1, 28, 28), -0.4242)
    digits[:, :, 8:20, 8:20] = 2.8215
    centres = torch.tensor([[30.0, 30.0], [200.0, 40.0], [100.0, 220.0]])
    return Bag(
        digits + 0 * torch.rand(1, generator=g),
        centres,
        "px",
        "c/0",
        1,
        metadata={"collage_px": 256, "threshold_px": 80.0},
    )


def test_collages_are_their_own_ground():
    ground = CollageGround(collage())
    picture = ground.thumbnail(1.0)
    assert picture.shape == (256, 256, 3)
    assert picture[30, 30].tolist() == [0, 0, 0]  # ink at the centre of the first digit
    assert picture[100, 100].tolist() == [255, 255, 255]
    assert ground.thumbnail(0.5).shape == (512, 512, 3)
    tile = ground.tile(200 - 14, 40 - 14, 28, 56)
    assert tile.shape == (56, 56, 3)
    assert tile[28, 28].tolist() == [0, 0, 0]
    assert tile[2, 2].tolist() == [255, 255, 255]


def test_bundle_writes_every_file_and_a_page_that_stands_alone(tmp_path):
    torch.manual_seed(0)
    m = create_model("das-mil", preset="mnist-collage").eval()
    bag = collage()
    e = explain(m, bag)
    files = write_bundle(tmp_path, m, bag, e, ground=CollageGround(bag))
    assert sorted(f.name for f in files) == sorted(p.name for p in tmp_path.iterdir())
    assert {f.suffix for f in files} == {".html", ".png", ".csv", ".json", ".geojson"}
    page = (tmp_path / "explanation.html").read_text()
    for word in ("http://www", "https://", "<script", 'src="http'):
        assert word not in page.replace("http://www.w3.org", "")
    assert f"{e.pairs[0].contribution:+.4f}" in page
    assert "true threshold" in page
    assert "80 px" in page
    picture = matplotlib.image.imread(tmp_path / "map-contribution.png")
    assert min(picture.shape[:2]) > 500
    corner = (picture[:8, :8, :3] * 255).round()
    assert corner.min() > 250  # on white
    orange = (np.abs(picture[..., :3] * 255 - (0xC4, 0x59, 0x0F)).sum(-1) < 30).mean()
    blue = (np.abs(picture[..., :3] * 255 - (0x1F, 0x4E, 0x79)).sum(-1) < 30).mean()
    assert orange + blue > 0.001  # the strongest tile and the end of the colour bar
    summary = json.loads((tmp_path / "explanation.json").read_text())
    assert summary["sum_of_contributions"] + summary["bias"] == pytest.approx(summary["logit"], abs=1e-5)


def test_names_from_files_are_escaped_in_the_page(tmp_path, model):
    bag = slide_bag()
    bad = Bag(bag.features, bag.coords, "um", "<script>alert(1)</script>", metadata=META)
    write_bundle(tmp_path, model, bad, explain(model, bad))
    page = (tmp_path / "explanation.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_tiles_figure_shows_highest_and_lowest():
    bag = slide_bag()
    figure = tiles_figure(layout_of(bag), np.array([0.5, -1.0, 2.0, 0.0]), "contribution", Plain(), count=2)
    labels = [a.get_xlabel() for part in figure.subfigs for a in part.axes]
    assert labels == ["2: +2", "0: +0.5", "1: -1", "3: +0"]
    left = figure.subfigs[0].axes[0].images[0].get_array()
    assert left[0, 0, 0] == 100  # tile 2 begins at x = 100


def test_learned_distances_over_seeds(model):
    torch.manual_seed(1)
    other = create_model("das-mil", in_features=6, distance_scale=200.0, heads=2, theta_init=0.9, beta_init=20.0)
    rows = learned_distances([model, other])
    assert [(r.layer, r.head) for r in rows] == [(0, 0), (0, 1)]
    assert rows[0].midpoints == pytest.approx((100.0, 180.0))
    assert rows[0].spread(rows[0].midpoints) == pytest.approx((140.0, 56.5685), abs=1e-3)
    assert rows[0].widths == pytest.approx((200 * 2 * np.log(9) / 10, 200 * 2 * np.log(9) / 20), rel=1e-5)
    row = model.learned_distances()[0]
    assert phi_values(row, 200.0, "sigmoid", np.array([100.0]))[0] == pytest.approx(0.5, abs=1e-6)
    axis = phi_figure(phis([model, other])).axes[0]
    assert len([line for line in axis.get_lines() if len(line.get_xdata()) > 2]) == 4, "two seeds of two heads"
    assert any("head 0: 140 ± 57 µm" in t.get_text() for t in axis.texts)
    from dasmil.errors import InputError

    with pytest.raises(InputError, match="sa has no learned distance"):
        learned_distances([create_model("sa", in_features=6)])


def test_phi_figure_marks_the_pairs_of_an_explanation(model):
    e = explain(model, slide_bag())
    axis = phi_figure(phis([model]), pairs=e.pairs).axes[0]
    marked = axis.collections[0].get_offsets()
    pairs = [p for p in e.pairs if p.i != p.j][:30]
    np.testing.assert_allclose(marked, [[p.distance, p.phi] for p in pairs], rtol=1e-5)


def test_positions_that_no_map_can_show_are_one_message():
    coords = torch.tensor([[0.0, 0.0], [1e30, 2e30]])
    with pytest.raises(DataError, match=r"positions of 2e\+30 um, which no slide has"):
        layout_of(Bag(torch.zeros(2, 3), coords, "um", "b"))
