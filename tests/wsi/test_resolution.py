from __future__ import annotations

import pytest

from dasmil.errors import DataError
from dasmil.wsi.resolution import Resolution, choose_pixel_size, from_dpi, from_ome, from_properties


@pytest.mark.parametrize(
    ("properties", "mpp"),
    [
        ({"openslide.mpp-x": "0.2527", "openslide.mpp-y": "0.2527"}, 0.2527),
        ({"aperio.MPP": "0.4990"}, 0.499),
        ({"tiff.XResolution": "20000", "tiff.YResolution": "20000", "tiff.ResolutionUnit": "centimeter"}, 0.5),
        ({"tiff.XResolution": "50800", "tiff.YResolution": "50800", "tiff.ResolutionUnit": "inch"}, 0.5),
        ({"philips.DICOM_PIXEL_SPACING": '"0.000226891" "0.000226907"'}, 0.2269),
        ({"tiff.ImageDescription": "Aperio|AppMag = 40|MPP = 0.2510|Left = 3"}, 0.251),
        (
            {
                "mirax.LAYER_0_LEVEL_0_SECTION.MICROMETER_PER_PIXEL_X": "0.23",
                "mirax.LAYER_0_LEVEL_0_SECTION.MICROMETER_PER_PIXEL_Y": "0.23",
            },
            0.23,
        ),
    ],
)
def test_vendors_keys(properties, mpp):
    size = choose_pixel_size("a.svs", from_properties(properties))
    assert size.mpp == pytest.approx(mpp, rel=1e-3)
    assert not size.warnings


def test_the_objective_alone_is_a_guess_with_a_warning():
    size = choose_pixel_size("a.svs", from_properties({"openslide.objective-power": "40"}))
    assert size.mpp == 0.25
    assert "guess" in size.warnings[0]
    assert "--mpp" in size.warnings[0]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ("352.8", "352.8", r"352.8 x 352.8 um per pixel, expected between 0.05 and 10"),
        ("0.001", "0.001", r"0.001 x 0.001"),
        ("0.5", "0.25", r"as wide as high"),
        ("nan", "nan", r"nan x nan"),
    ],
)
def test_absurd_values_are_errors_that_name_the_file_and_the_options(x, y, message):
    with pytest.raises(DataError, match=message) as error:
        choose_pixel_size("slide7.tif", from_properties({"openslide.mpp-x": x, "openslide.mpp-y": y}))
    for part in ("slide7.tif", "--mpp ", "--mpp-table"):
        assert part in str(error.value)


def test_a_plausible_value_is_taken_over_an_absurd_one_with_a_warning():
    found = from_properties({"openslide.mpp-x": "352.8", "openslide.mpp-y": "352.8", "aperio.MPP": "0.25"})
    size = choose_pixel_size("a.svs", found)
    assert (size.mpp, size.origin) == (0.25, "aperio.MPP")
    assert "352.8" in size.warnings[0]


def test_a_given_value_wins_and_says_so():
    found = from_properties({"aperio.MPP": "0.25"})
    assert choose_pixel_size("a", found, 0.5).warnings == ("the given mpp 0.5 stands in for 0.25 from aperio.MPP",)
    assert choose_pixel_size("a", found, 0.251).warnings == ()
    with pytest.raises(DataError, match="given mpp 40"):
        choose_pixel_size("a", found, 40)


def test_nothing_at_all():
    with pytest.raises(DataError, match=r"does not say how many micrometres"):
        choose_pixel_size("a", Resolution())
    assert from_dpi(None) == Resolution()
    assert from_ome("<broken") == Resolution()
    assert from_ome("<OME><Image><Pixels SizeX='4'/></Image></OME>").candidates == []
