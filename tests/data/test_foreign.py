"""Feature files of every tool, made here byte for byte as those tools lay them out, and read to um centres."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from dasmil.data.formats import find_feature_files, probe_features, read_features
from dasmil.data.scale import Scale, read_scales
from dasmil.data.store import write_bag
from dasmil.errors import DataError, InputError
from dasmil.types import Bag

CORNERS = np.array([[0, 0], [512, 0], [0, 512], [1024, 512]])
FEATURES = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def write(path: Path, datasets: dict, root: dict | None = None, coords: dict | None = None) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file[name] = value
        file.attrs.update(root or {})
        if coords:
            file["coords"].attrs.update(coords)
    return path


def clam(tmp_path: Path, **attributes: object) -> Path:
    return write(tmp_path / "a.h5", {"features": FEATURES, "coords": CORNERS}, coords=attributes)


def test_clam_with_given_scale_takes_the_tile_from_the_stride(tmp_path: Path) -> None:
    found = read_features(clam(tmp_path), Scale(mpp=0.25))
    assert found.probe.format == "CLAM"
    np.testing.assert_allclose(found.coords, (CORNERS + 256) * 0.25)
    np.testing.assert_array_equal(found.features, FEATURES)
    assert found.tile_um == pytest.approx(128)
    assert "0.25 um/px as given" in found.rule
    assert "taken from the stride" in found.rule


def test_clam_without_scale_asks_for_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--mpp.*--tile-um.*--scale-table"):
        read_features(clam(tmp_path))


def test_clam_tile_um_fixes_the_scale_by_the_stride(tmp_path: Path) -> None:
    found = read_features(clam(tmp_path), Scale(tile_um=256))
    assert found.mpp == pytest.approx(0.5)
    np.testing.assert_allclose(found.coords, (CORNERS + 256) * 0.5)


def test_scattered_tiles_show_no_stride_that_tile_um_could_scale(tmp_path: Path) -> None:
    """On a grid of 512 px the nearest of these tiles are 1024 px or more apart: the scale would be half or less."""
    grid = np.array([[x, y] for x in range(6) for y in range(5)])
    scattered = grid[[0, 2, 9, 16, 23, 29]]
    for n, places in ((6, scattered), (2, grid[[0, 3]]), (1, grid[:1])):
        path = write(tmp_path / f"{n}.h5", {"features": np.ones((n, 3), np.float32), "coords": places * 512})
        shown = "its one tile shows no stride" if n == 1 else f"the {n} tiles show no stride"
        with pytest.raises(DataError, match=rf"{n}\.h5.*{shown}.*--scale-table \(CSV: slide, mpp\)"):
            read_features(path, Scale(tile_um=128))
        alone = read_features(path, Scale(mpp=0.25))
        assert alone.mpp == 0.25
        assert alone.tile_um is None  # and not the distance of the nearest
        np.testing.assert_allclose(alone.coords, places * 128)
        assert "tile 0 px unknown (too few or scattered tiles), corner used" in alone.rule
        declared = write(tmp_path / "d.h5", {"features": np.ones((n, 3), np.float32), "coords": places * 512},
                         coords={"patch_size": 512})  # fmt: skip
        assert read_features(declared, Scale(tile_um=128)).mpp == 0.25
    # Two pieces of tissue, each with a grid of its own, one row of tiles each: that is a stride.
    rows = np.concatenate([grid[:5] * 512, grid[:4] * 512 + (3000, 77)])
    path = write(tmp_path / "rows.h5", {"features": np.ones((9, 3), np.float32), "coords": rows})
    assert read_features(path, Scale(tile_um=128)).mpp == 0.25


def test_clam_patch_attributes_give_the_tile_at_level_0(tmp_path: Path) -> None:
    path = clam(tmp_path, patch_size=256, patch_level=1, downsample=(4.0, 4.0))
    found = read_features(path, Scale(mpp=0.25))
    np.testing.assert_allclose(found.coords, (CORNERS + 512) * 0.25)
    assert found.tile_um == pytest.approx(256)


TRIDENT = {
    "patch_size": 256, "patch_size_level0": 512, "level0_magnification": 40, "target_magnification": 20, "overlap": 0,
}  # fmt: skip


def trident(tmp_path: Path) -> Path:
    return write(tmp_path / "t.h5", {"features": FEATURES, "coords": CORNERS}, coords=TRIDENT)


@pytest.mark.parametrize(
    ("scale", "mpp"), [(Scale(mpp=0.26), 0.26), (Scale(tile_um=128), 0.25), (Scale(nominal=True), 0.25)]
)
def test_trident(tmp_path: Path, scale: Scale, mpp: float) -> None:
    found = read_features(trident(tmp_path), scale)
    assert found.probe.format == "TRIDENT"
    np.testing.assert_allclose(found.coords, (CORNERS + 256) * mpp, rtol=1e-6)
    assert found.tile_um == pytest.approx(512 * mpp)


def test_trident_magnification_alone_is_not_taken_for_a_scale(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--mpp"):
        read_features(trident(tmp_path))


def test_trident_nominal_scale_is_named_in_the_rule(tmp_path: Path) -> None:
    assert "nominal: 10 um / 40x" in read_features(trident(tmp_path), Scale(nominal=True)).rule


def test_stamp_2_1(tmp_path: Path) -> None:
    root = {"unit": "um", "tile_size_um": 256.0, "tile_size_px": 224, "extractor": "ctranspath", "stamp_version": "2.1"}
    corners = CORNERS / 2
    path = write(tmp_path / "s.h5", {"feats": FEATURES.astype(np.float16), "coords": corners.astype(np.float32)}, root)
    found = read_features(path)
    assert found.probe.format == "STAMP"
    assert found.probe.encoder == "ctranspath"
    np.testing.assert_allclose(found.coords, corners + 128)
    assert found.features.dtype == np.float32
    np.testing.assert_array_equal(found.features, FEATURES.astype(np.float16).astype(np.float32))
    with pytest.raises(DataError, match="declares tile_size_um 256, but 200 was given"):
        read_features(path, Scale(tile_um=200))


def test_stamp_2_0(tmp_path: Path) -> None:
    root = {"unit": "um", "tile_size": 300.0, "extractor": "uni"}
    found = read_features(write(tmp_path / "s.h5", {"feats": FEATURES, "coords": CORNERS * 1.0}, root))
    assert found.probe.format == "STAMP 2.0"
    np.testing.assert_allclose(found.coords, CORNERS + 150.0)


def test_historic_stamp_stride_224_means_256_um_and_augmented_rows_are_left_out_aloud(tmp_path: Path) -> None:
    corners = CORNERS // 512 * 224
    augmented = np.array([False, False, False, True])
    path = write(tmp_path / "m.h5", {"feats": FEATURES, "coords": corners, "augmented": augmented})
    found = read_features(path)
    assert found.probe.format == "historic STAMP"
    np.testing.assert_allclose(found.coords, (corners[:3] + 112) * 256 / 224, rtol=1e-6)
    assert found.tile_um == pytest.approx(256)
    assert "1 augmented copies of tiles left out" in found.rule
    np.testing.assert_array_equal(found.features, FEATURES[:3])


def test_historic_file_with_another_stride_asks_for_the_scale(tmp_path: Path) -> None:
    path = write(tmp_path / "m.h5", {"feats": FEATURES, "coords": CORNERS})
    with pytest.raises(InputError, match="stride 512, not 224"):
        read_features(path)
    np.testing.assert_allclose(read_features(path, Scale(mpp=0.5)).coords, (CORNERS + 256) * 0.5)


def slideflow(tmp_path: Path, index: bool = True, **more: object) -> Path:
    torch.save(torch.from_numpy(FEATURES), tmp_path / "f.pt")
    if index:
        np.savez(tmp_path / "f.index.npz", CORNERS + 256)
    config = {
        "extractor": {"class": "slideflow.model.extractors.ctranspath.CTransPathFeatures"},
        "tile_um": 128,
        **more,
    }
    (tmp_path / "bags_config.json").write_text(json.dumps(config))
    return tmp_path / "f.pt"


def test_slideflow_positions_are_centres_already(tmp_path: Path) -> None:
    found = read_features(slideflow(tmp_path), Scale(mpp=0.25))
    assert found.probe.format == "slideflow"
    np.testing.assert_allclose(found.coords, (CORNERS + 256) * 0.25)
    np.testing.assert_array_equal(found.features, FEATURES)
    assert found.tile_um == 128
    assert found.probe.encoder is not None
    assert found.probe.encoder.endswith("CTransPathFeatures")


def test_slideflow_needs_index_and_scale(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="slideflow files give positions in level-0 pixels"):
        read_features(slideflow(tmp_path, tile_um="20x"))
    with pytest.raises(DataError, match=r"bags_config.json: tile_um is -3, expected micrometres"):
        read_features(slideflow(tmp_path, tile_um=-3))
    with pytest.raises(DataError, match="declares tile_um 128, but 256 was given"):
        read_features(slideflow(tmp_path), Scale(tile_um=256))
    (tmp_path / "f.index.npz").unlink()
    with pytest.raises(DataError, match=r"no f\.index\.npz beside it"):
        read_features(tmp_path / "f.pt", Scale(mpp=0.25))


def test_slideflow_without_a_scale_takes_that_of_its_settings(tmp_path: Path) -> None:
    rows, columns = np.divmod(np.arange(len(FEATURES)), 2)
    path = slideflow(tmp_path)
    np.savez(tmp_path / "f.index.npz", np.stack([columns, rows], axis=1) * 512.0)
    found = read_features(path)
    assert found.mpp == 0.25
    assert "128 um as its settings declare / measured stride 512 px" in found.rule


def test_stamp_1_keeps_its_scale_in_info_json(tmp_path: Path) -> None:
    places = np.array([[0, 0], [512, 0], [0, 512], [512, 512]])[: len(FEATURES)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["feats"], file["coords"] = FEATURES[:4], places
    (tmp_path / "info.json").write_text(json.dumps({"extractor": "STAMP", "microns": 128, "patch_size": 512}))
    found = read_features(tmp_path / "a.h5")
    np.testing.assert_allclose(found.coords, (places + 256) * 0.25)
    assert found.tile_um == 128
    assert found.probe.tile_um == 128
    with pytest.raises(DataError, match=r"declares microns / patch_size \(info.json\) 0.25, but 0.5 was given"):
        read_features(tmp_path / "a.h5", Scale(mpp=0.5))
    for size in ({"tile_size": 512}, {"tile_size": [512, 512]}, {}):  # later versions; without one, the stride is left
        (tmp_path / "info.json").write_text(json.dumps({"extractor": "STAMP", "microns": 256, **size}))
        found = read_features(tmp_path / "a.h5")
        np.testing.assert_allclose(found.coords, (places + 256) * 0.5)
        assert (found.tile_um, found.probe.tile_um) == (256, 256)
    assert "px from the stride" in found.rule
    (tmp_path / "info.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"info\.json is not readable as JSON"):
        read_features(tmp_path / "a.h5")


class Evil:
    def __reduce__(self) -> tuple:
        return (print, ("executed",))


def test_pickled_objects_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(Evil(), tmp_path / "f.pt")
    with pytest.raises(DataError, match="cannot be read as a plain tensor"):
        read_features(tmp_path / "f.pt", Scale(mpp=1))
    torch.save(torch.from_numpy(FEATURES), tmp_path / "f.pt")
    np.savez(tmp_path / "f.index.npz", np.array([Evil()], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"holds an array of shape \(1,\) of object, expected numbers"):
        read_features(tmp_path / "f.pt", Scale(mpp=1))
    assert "executed" not in capsys.readouterr().out


def test_own_bags_keep_their_sections_and_metadata(tmp_path: Path) -> None:
    section = torch.tensor([0, 0, 1, 1])
    bag = Bag(FEATURES, CORNERS, "um", "own", section=section, metadata={"tile_um": 256.0, "encoder": "e"})  # type: ignore[arg-type]
    write_bag(tmp_path / "own.h5", bag)
    found = read_features(tmp_path / "own.h5")
    assert found.probe.format == "dasmil"
    assert found.tile_um == 256
    np.testing.assert_array_equal(found.coords, CORNERS)
    np.testing.assert_array_equal(found.optional["section"], section)


def test_count_mismatch_and_missing_coordinates(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"features": FEATURES, "coords": CORNERS[:3]})
    assert (probe_features(path).n, probe_features(path).n_coords) == (4, 3)
    with pytest.raises(DataError, match="4 rows of features but 3 of coords"):
        read_features(path, Scale(mpp=1))
    with pytest.raises(DataError, match="no dataset 'coords'"):
        read_features(write(tmp_path / "b.h5", {"feats": FEATURES}), Scale(mpp=1))
    with pytest.raises(DataError, match="it holds other"):
        probe_features(write(tmp_path / "c.h5", {"other": FEATURES}))


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("patch_size_level0", "512px", "'512px'"),
        ("patch_size_level0", float("nan"), "nan"),
        ("level0_magnification", 0, "0"),
        ("level0_width", -1, "-1"),
    ],
)
def test_trident_attributes_that_are_no_positive_number(tmp_path: Path, name: str, value: object, shown: str) -> None:
    attributes = {**TRIDENT, "level0_width": 2000, "level0_height": 1000, name: value}
    path = write(tmp_path / "t.h5", {"features": FEATURES, "coords": CORNERS}, coords=attributes)
    with pytest.raises(DataError, match=rf"t\.h5: attribute 'coords\.{name}' is {shown}, expected a positive number"):
        read_features(path, Scale(nominal=True))


def test_attributes_of_other_tools_that_are_no_positive_number(tmp_path: Path) -> None:
    stamp = write(tmp_path / "s.h5", {"feats": FEATURES, "coords": CORNERS}, {"unit": "um", "tile_size_um": "abc"})
    with pytest.raises(DataError, match="attribute 'tile_size_um' is 'abc', expected a positive number"):
        probe_features(stamp)
    historic = write(tmp_path / "h.h5", {"feats": FEATURES, "coords": CORNERS}, {"tile_size": 0})
    with pytest.raises(DataError, match="attribute 'tile_size' is 0, expected a positive number"):
        read_features(historic, Scale(mpp=1))
    for given in ({"patch_size": "big"}, {"patch_size": 256, "patch_level": "x"}):
        with pytest.raises(DataError, match=r"attribute 'coords\.patch_(size|level)' is '(big|x)', expected"):
            read_features(clam(tmp_path, **given), Scale(mpp=1))
    bag = Bag(torch.ones(3, 2), torch.rand(3, 2), "um", "o", metadata={"tile_um": "wide"})
    write_bag(tmp_path / "o.h5", bag)
    with pytest.raises(DataError, match="tile_um is 'wide', expected a positive number; write the bag again"):
        probe_features(tmp_path / "o.h5")


def test_intact_files_whose_arrays_are_no_numbers_are_not_called_damaged(tmp_path: Path) -> None:
    pairs = np.array([(0, 0), (1, 0), (0, 1), (1, 1)], dtype=[("x", "f4"), ("y", "f4")])
    with pytest.raises(DataError, match=r"coords is a dataset of \[\('x'.*, expected a dataset of numbers"):
        probe_features(write(tmp_path / "a.h5", {"features": FEATURES, "coords": pairs}))
    with pytest.raises(DataError, match="features is a dataset of object, expected a dataset of numbers"):
        probe_features(write(tmp_path / "b.h5", {"features": [["a", "b"]] * 4, "coords": CORNERS}))
    path = write(tmp_path / "c.h5", {"features": FEATURES, "coords/x": CORNERS[:, 0], "coords/y": CORNERS[:, 1]})
    with pytest.raises(DataError, match="coords is a group, expected a dataset of numbers"):
        probe_features(path)
    assert probe_features(write(tmp_path / "d.h5", {"features": FEATURES, "coords": 1.0})).n_coords == 0


def test_truncated_file(tmp_path: Path) -> None:
    path = clam(tmp_path)
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(DataError, match=r"truncated or damaged|not an HDF5"):
        probe_features(path)


def test_scale_table_overrides_the_default_slide_by_slide(tmp_path: Path) -> None:
    table = tmp_path / "scales.csv"
    table.write_text("slide,mpp,tile_um\na,0.5,\nb,,112\n")
    scales = read_scales("0.25", None, table)
    assert scales.of("a") == Scale(mpp=0.5)
    assert scales.of("b") == Scale(mpp=0.25, tile_um=112)
    assert scales.of("c") == Scale(mpp=0.25)
    table.write_text("slide,mpp\nfolder/a.svs,0.5\nb.NDPI,1\ngone.svs,2\n")
    scales = read_scales("0.25", None, table)
    assert [scales.of(name).mpp for name in ("a", "a.svs", "b", "c")] == [0.5, 0.5, 1, 0.25]
    assert scales.without_slide(["a", "b.h5", "c"]) == ["gone"]
    table.write_text("slide,mpp\na.svs,0.5\na,1\n")
    with pytest.raises(DataError, match="slide 'a' is listed twice"):
        read_scales(None, None, table)
    assert read_scales("nominal").default.nominal
    with pytest.raises(InputError, match="expected micrometres per pixel"):
        read_scales("quarter")
    for number in ("-1", "inf", "nan"):
        table.write_text(f"slide,mpp\na,{number}\n")
        with pytest.raises(DataError, match=r"mpp is .*, expected a positive number"):
            read_scales(None, None, table)
        with pytest.raises(InputError, match=r"mpp is .*, expected a positive number"):
            read_scales(number)


def test_find_feature_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    clam(tmp_path / "sub")
    slideflow(tmp_path)
    (tmp_path / ".half.h5").write_bytes(b"")
    assert [path.name for path in find_feature_files(tmp_path)] == ["f.pt", "a.h5"]
    with pytest.raises(InputError, match="no folder"):
        find_feature_files(tmp_path / "nowhere")


def test_clam_folder_with_both_kinds_of_files(tmp_path: Path) -> None:
    for name in ("h5_files", "pt_files"):
        (tmp_path / name).mkdir()
    path = clam(tmp_path / "h5_files")
    torch.save(torch.from_numpy(FEATURES), tmp_path / "pt_files" / "a.pt")
    torch.save(torch.from_numpy(FEATURES), tmp_path / "pt_files" / "b.pt")
    assert find_feature_files(tmp_path) == [path, tmp_path / "pt_files" / "b.pt"]


def slide2vec(tmp_path: Path, name: str = "s", settings: bool = True, **more: object) -> Path:
    """Laid out as slide2vec 5 to 7 and hs2p write them: tensors apart from the corners of the tiles."""
    for folder in ("tile_embeddings", "slide_embeddings", "tiles"):
        (tmp_path / folder).mkdir(exist_ok=True)
    torch.save(torch.from_numpy(FEATURES).half(), tmp_path / "tile_embeddings" / f"{name}.pt")
    torch.save(torch.ones(6), tmp_path / "slide_embeddings" / f"{name}.pt")
    about = {"encoder_name": "virchow2", "artifact_type": "tile_embeddings", "tile_size_lv0": 512}
    (tmp_path / "tile_embeddings" / f"{name}.meta.json").write_text(json.dumps(about))
    index = np.arange(4, dtype=np.int32)
    np.savez_compressed(tmp_path / "tiles" / f"{name}.coordinates.npz", tile_index=index, x=CORNERS[:, 0],
                        y=CORNERS[:, 1], tissue_fractions=np.ones(4, np.float32))  # fmt: skip
    meta: dict[str, object] = {
        "slide": {"dimensions": [4000, 3000], "base_spacing_um": 0.25, "level_downsamples": [1.0]},
        "tiling": {"tile_size_lv0": 512, "requested_spacing_um": 0.5, "n_tiles": 4},
        "artifact": {"coordinate_space": "level0_px", "tile_order": "x_then_y"},
        **more,
    }
    if settings:
        (tmp_path / "tiles" / f"{name}.coordinates.meta.json").write_text(json.dumps(meta))
    return tmp_path / "tile_embeddings" / f"{name}.pt"


def test_slide2vec_says_its_scale_beside_the_corners(tmp_path: Path) -> None:
    path = slide2vec(tmp_path)
    assert find_feature_files(tmp_path) == [path]  # and not the embedding of the whole slide
    found = read_features(path)
    assert (found.probe.format, found.probe.encoder, found.probe.size_px) == ("slide2vec", "virchow2", (4000, 3000))
    np.testing.assert_allclose(found.coords, (CORNERS + 256) * 0.25)
    np.testing.assert_array_equal(found.features, FEATURES.astype(np.float16).astype(np.float32))
    assert (found.tile_um, found.mpp) == (128, 0.25)
    assert "0.25 um/px as the file declares; tile 512 px declared" in found.rule
    with pytest.raises(DataError, match=r"declares mpp 0\.25, but 0\.5 was given"):
        read_features(path, Scale(mpp=0.5))
    with pytest.raises(DataError, match="index of positions, not a feature file"):
        read_features(tmp_path / "tiles" / "s.coordinates.npz")


def test_slide2vec_without_settings_asks_for_the_scale(tmp_path: Path) -> None:
    path = slide2vec(tmp_path, settings=False)
    with pytest.raises(InputError, match="slide2vec files give positions in level-0 pixels"):
        read_features(path)
    np.testing.assert_allclose(read_features(path, Scale(mpp=0.5)).coords, (CORNERS + 256) * 0.5)


def test_slide2vec_files_that_do_not_fit(tmp_path: Path) -> None:
    corners = tmp_path / "tiles" / "s.coordinates.npz"
    path = slide2vec(tmp_path, slide={"base_spacing_um": "0.25"})
    with pytest.raises(DataError, match=r"meta\.json: base_spacing_um is '0\.25', expected a positive number"):
        read_features(path)
    with pytest.raises(DataError, match=r"'tiling' is \[\], expected an object"):
        read_features(slide2vec(tmp_path, tiling=[]))
    with pytest.raises(DataError, match="coordinate_space is 'um', expected 'level0_px'"):
        read_features(slide2vec(tmp_path, artifact={"coordinate_space": "um"}))
    slide2vec(tmp_path)
    np.savez(corners, x=CORNERS[:3, 0], y=CORNERS[:3, 1])
    assert probe_features(path).n_coords == 3
    with pytest.raises(DataError, match="holds 3 positions, expected 4: one for each row of features"):
        read_features(path)
    np.savez(corners, x=CORNERS[:, 0])
    with pytest.raises(DataError, match="has no array 'y', it holds x"):
        read_features(path)
    corners.write_bytes(corners.read_bytes()[:60])
    with pytest.raises(DataError, match="cannot be read as an array of positions"):
        read_features(path)
    torch.save(torch.ones(2, 3, 4), path)  # of regions of tiles
    with pytest.raises(DataError, match=r"holds \(2, 3, 4\), expected one tensor of features"):
        read_features(path)
