"""timm, the hub and CTransPath: from local files, without network."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from dasmil.errors import DataError, InputError
from dasmil.wsi.encoders import create_encoder, list_encoders, timm_import, timm_models
from dasmil.wsi.encoders.ctranspath import ConvStem, build_network, convert
from dasmil.wsi.encoders.foundation import BY_NAME, ELSEWHERE, FOUNDATION
from dasmil.wsi.encoders.timm_models import ClassAndMean
from dasmil.wsi.encoders.transformers_names import renamed
from dasmil.wsi.encoders.weights import misfit

pytestmark = pytest.mark.skipif(not timm_import.installed(), reason="timm is not installed")


@pytest.fixture(scope="module")
def timm():
    return timm_import.import_timm()


def tiles(n: int, px: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, px, px, 3), dtype=np.uint8)


def normalised(batch: np.ndarray, mean, std) -> torch.Tensor:
    images = torch.from_numpy(batch).permute(0, 3, 1, 2).double() / 255
    return ((images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)).float()


# --- timm:NAME ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vit(timm, tmp_path_factory):
    """A tiny timm model with its classifier, and its weights in a file."""
    torch.manual_seed(0)
    network = timm.create_model("test_vit", pretrained=False).eval()
    path = tmp_path_factory.mktemp("vit") / "w.safetensors"
    save_file(network.state_dict(), path)
    return network, path


def test_a_timm_model_from_a_local_file(timm, vit):
    network, path = vit
    encoder = create_encoder("timm:test_vit", weights=path, device="cpu")
    config = network.pretrained_cfg
    assert encoder.input_px == config["input_size"][1]
    batch = tiles(5, encoder.input_px)
    with torch.no_grad():
        images = normalised(batch, config["mean"], config["std"])
        expected = network.forward_head(network.forward_features(images), pre_logits=True)
    np.testing.assert_allclose(encoder.encode(batch), expected.numpy(), rtol=1e-4, atol=1e-5)
    assert encoder.dim == expected.shape[1]
    assert len(encoder.sha256) == 64
    assert encoder.note == ""


def test_preprocessing_is_the_models_own(timm, tmp_path):
    network = timm.create_model("test_resnet", pretrained=False)
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    encoder = create_encoder("timm:test_resnet", weights=tmp_path / "w.safetensors", device="cpu")
    batch = tiles(1, encoder.input_px)
    config = timm.data.resolve_model_data_config(network)
    expected = normalised(batch, config["mean"], config["std"])
    torch.testing.assert_close(encoder.prepare(torch.from_numpy(batch)), expected, rtol=1e-5, atol=1e-5)
    transform = timm.data.create_transform(**{**config, "crop_pct": 1.0}, is_training=False)
    from PIL import Image

    torch.testing.assert_close(transform(Image.fromarray(batch[0])), expected[0], rtol=1e-5, atol=1e-5)


def test_weights_that_timm_converts_are_told(timm, vit, tmp_path):
    larger = timm.create_model("test_vit", pretrained=False, img_size=192)
    save_file(larger.state_dict(), tmp_path / "w.safetensors")
    encoder = create_encoder("timm:test_vit", weights=tmp_path / "w.safetensors", device="cpu")
    assert encoder.note == "weights converted by timm's checkpoint filter"


def test_weights_of_another_model(timm, vit, tmp_path):
    save_file(timm.create_model("test_resnet", pretrained=False).state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(DataError, match=r"do not fit encoder 'timm:test_vit': \d+ missing: cls_token"):
        create_encoder("timm:test_vit", weights=tmp_path / "w.safetensors", device="cpu")


def test_unknown_timm_names():
    with pytest.raises(InputError, match=r"unknown timm model 'resnet81'. Did you mean resnet18"):
        create_encoder("timm:resnet81")
    with pytest.raises(InputError, match=r"timm cannot build 'resnet18\.no_such_tag'"):
        create_encoder("timm:resnet18.no_such_tag")


# --- the hub, with its client replaced ----------------------------------------------------------------------------


def test_download_prefers_safetensors_and_is_used(timm, vit, monkeypatch):
    import huggingface_hub

    _, path = vit
    asked = []

    def fetch(repo, file, revision=None):
        asked.append((repo, file))
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    encoder = create_encoder("timm:test_vit.r160_in1k", device="cpu")
    assert asked == [("timm/test_vit.r160_in1k", "model.safetensors")]
    given = create_encoder("timm:test_vit", weights=path, device="cpu")
    batch = tiles(1, encoder.input_px)
    np.testing.assert_array_equal(encoder.encode(batch), given.encode(batch))


def test_a_repository_with_its_own_configuration(timm, vit, monkeypatch, tmp_path):
    import huggingface_hub
    import timm.models._hub as hub
    from huggingface_hub.errors import EntryNotFoundError

    config = {
        "architecture": "test_vit",
        "num_features": 64,
        "model_args": {"img_size": 160},
        "pretrained_cfg": {
            "mean": [0.1, 0.2, 0.3],
            "std": [0.4, 0.5, 0.6],
            "input_size": [3, 160, 160],
            "license": "mit",
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    network, _ = vit
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")

    def fetch(repo, file, **_):
        assert repo == "someone/model"
        if not (tmp_path / file).exists():
            raise EntryNotFoundError(file)
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    monkeypatch.setattr(hub, "download_from_hf", lambda model_id, filename, **_: fetch(model_id, filename))
    encoder = create_encoder("hf-hub:someone/model", device="cpu")
    batch = tiles(2, 160)
    with torch.no_grad():
        images = normalised(batch, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
        expected = network.forward_head(network.forward_features(images), pre_logits=True)
    np.testing.assert_allclose(encoder.encode(batch), expected.numpy(), rtol=1e-4, atol=1e-5)
    assert encoder.licence == "mit"


def test_hub_failures_are_one_line(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    def failing(error):
        def fetch(*_, **__):
            raise error

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)

    gated = type("GatedRepoError", (Exception,), {})
    for error, message in [
        (gated("403"), r"no access to MahmoodLab/UNI\. Accept its licence at huggingface.co/MahmoodLab/UNI, log in"),
        (LocalEntryNotFoundError("long\ntext"), r"no connection, and not downloaded before.*--weights FILE"),
        (EntryNotFoundError("none"), "has neither model.safetensors nor pytorch_model.bin"),
        (TimeoutError("slow"), "TimeoutError: slow"),
    ]:
        failing(error)
        with pytest.raises(DataError, match=message) as caught:
            create_encoder("hf-hub:MahmoodLab/UNI")
        assert "\n" not in str(caught.value)


# --- foundation models: their networks, without their weights ----------------------------------------------------


@pytest.mark.parametrize("repo", FOUNDATION)
def test_foundation_models_have_the_size_in_the_table(timm, repo):
    known = FOUNDATION[repo]
    with torch.device("meta"):
        network = known.build().eval()
        if known.pooling == "class+mean":
            network = ClassAndMean(network)
        features = network(torch.empty(1, 3, known.input_px, known.input_px))
    assert features.shape == (1, known.dim)


def test_a_foundation_model_from_a_local_file(timm, monkeypatch, tmp_path):
    """The way from table to features, on a small network in place of a large one."""
    from dataclasses import replace

    small = replace(
        FOUNDATION["paige-ai/virchow2"],
        architecture="test_vit",
        dim=128,
        options={"img_size": 224, "global_pool": "", "reg_tokens": 4},
        gated_mlp=False,
    )
    monkeypatch.setitem(FOUNDATION, "paige-ai/virchow2", small)
    torch.manual_seed(0)
    network = small.build().eval()
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    encoder = create_encoder("hf-hub:paige-ai/Virchow2", weights=tmp_path / "w.safetensors", device="cpu")
    batch = tiles(2, 224)
    with torch.no_grad():
        tokens = network(normalised(batch, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    expected = torch.cat([tokens[:, 0], tokens[:, 5:].mean(1)], dim=1)  # a class token, four registers, patches
    np.testing.assert_allclose(encoder.encode(batch), expected.numpy(), rtol=1e-4, atol=1e-5)
    assert encoder.licence == "CC-BY-NC-ND-4.0"


def transformers_shapes(
    kind: str, layers: int, width: int, mlp: int, px: int, patch: int
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint of transformers 4: ViTModel, or Dinov2Model with an MLP or a SwiGLU."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.cls_token": (1, 1, width),
        "embeddings.position_embeddings": (1, 1 + (px // patch) ** 2, width),
        "embeddings.patch_embeddings.projection.weight": (width, 3, patch, patch),
        "embeddings.patch_embeddings.projection.bias": (width,),
    }
    if kind != "vit":
        shapes["embeddings.mask_token"] = (1, width)

    def part(name: str, *shape: int) -> None:
        shapes.update({f"{name}.weight": shape, f"{name}.bias": shape[:1]})

    first, second = {
        "vit": ("intermediate.dense", "output.dense"),
        "mlp": ("mlp.fc1", "mlp.fc2"),
        "swiglu": ("mlp.weights_in", "mlp.weights_out"),
    }[kind]
    norms = ("layernorm_before", "layernorm_after") if kind == "vit" else ("norm1", "norm2")
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        for norm in norms:
            part(f"{name}.{norm}", width)
        for one in ("query", "key", "value"):
            part(f"{name}.attention.attention.{one}", width, width)
        part(f"{name}.attention.output.dense", width, width)
        part(f"{name}.{first}", mlp, width)
        part(f"{name}.{second}", width, mlp // 2 if kind == "swiglu" else mlp)
        if kind != "vit":
            shapes |= {f"{name}.layer_scale{k}.lambda1": (width,) for k in (1, 2)}
    part("layernorm", width)
    return shapes


def by_formula(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Values that depend on the place of a name in the alphabet."""
    found = {}
    for k, (name, shape) in enumerate(sorted(shapes.items())):
        n = int(np.prod(shape))
        i = torch.arange(n, dtype=torch.float64)
        value = 0.3 * torch.sin(0.7 * k + 1.3 * i + 0.1 * (i % 7) * i / (1 + n))
        scales = name.endswith(("norm1.weight", "norm2.weight")) or "lambda1" in name
        scales |= "layernorm" in name and name.endswith("weight")
        found[name] = (value + scales).reshape(shape)
    return found


@pytest.mark.parametrize(
    ("kind", "mlp", "model", "class_token", "mean_token"),
    [
        (
            "vit", 48, "phikon",
            [-0.3806978308, -0.0381157411, -0.4186858436, -0.9767109977],
            [-0.2918237365, 0.0074740837, -0.456625485, -1.0123977446],
        ),
        (
            "mlp", 96, "phikon-v2",
            [-0.6186693755, -0.08404786, 1.0760620078, 1.7951526208],
            [-0.6045046438, -0.2139246212, 0.7907669125, 1.7752635756],
        ),
        (
            "swiglu", 128, "midnight",
            [0.0216957206, -0.6350595888, -0.7480487656, 1.0986385789],
            [0.1758869614, -0.6999283505, -0.9349368846, 1.1267897143],
        ),
    ],
)  # fmt: skip
def test_checkpoints_of_transformers_give_its_numbers(timm, kind, mlp, model, class_token, mean_token):
    """Two layers of 24 features in float64; the expected tokens are those of transformers 5.23."""
    from dataclasses import replace

    size = {"img_size": 28, "patch_size": 14, "embed_dim": 24, "depth": 2, "num_heads": 3, "global_pool": ""}
    known = BY_NAME[model]
    small = replace(known, options={**known.options, **size, "mlp_ratio": mlp / 24})
    network = small.build().double().eval()
    network.load_state_dict(renamed(by_formula(transformers_shapes(kind, 2, 24, mlp, 28, 14))), strict=True)
    image = torch.sin(torch.arange(3 * 28 * 28, dtype=torch.float64) * 0.37).reshape(1, 3, 28, 28)
    with torch.no_grad():
        tokens = network(image)[0]
    np.testing.assert_allclose(tokens[0, :4], class_token, atol=2e-10)
    np.testing.assert_allclose(tokens[1:].mean(0)[:4], mean_token, atol=2e-10)


@pytest.mark.parametrize(
    ("model", "kind", "layers", "width", "mlp", "patch"),
    [
        ("phikon", "vit", 12, 768, 3072, 16),
        ("phikon-v2", "mlp", 24, 1024, 4096, 16),
        ("midnight", "swiglu", 40, 1536, 8192, 14),
    ],
)
def test_published_shapes_of_transformers_fit(timm, model, kind, layers, width, mlp, patch):
    with torch.device("meta"):
        network = BY_NAME[model].build()
        shapes = transformers_shapes(kind, layers, width, mlp, 224, patch)
        state = renamed({name: torch.empty(shape) for name, shape in shapes.items()})
    assert misfit(network, state) is None


@pytest.mark.parametrize(
    ("model", "millions"),  # as the models' pages and TRIDENT's list have them
    [("uni", 303), ("uni2-h", 681), ("virchow2", 631), ("gigapath", 1135), ("h-optimus-1", 1135), ("h0-mini", 86),
     ("gpfm", 303), ("phikon", 86), ("phikon-v2", 303), ("midnight", 1137)],
)  # fmt: skip
def test_networks_have_the_published_number_of_parameters(timm, model, millions):
    with torch.device("meta"):
        network = BY_NAME[model].build()
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)


def test_short_names_and_models_of_other_programs(timm, tmp_path):
    with pytest.raises(InputError, match=r"weights .*none\.pth: no such file"):
        create_encoder("uni2-h", weights=tmp_path / "none.pth")
    with pytest.raises(InputError, match=r"'conch' \(MahmoodLab/CONCH\) needs the package conch of its authors"):
        create_encoder("conch")
    assert {info.name for info in list_encoders()} >= {*BY_NAME, *ELSEWHERE}


# --- CTransPath ---------------------------------------------------------------------------------------------------


def published_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the published checkpoint, from its description: Swin-T of an older timm, with the stem."""
    shapes: dict[str, tuple[int, ...]] = {}

    def norm(name: str, n: int) -> None:
        shapes.update({f"{name}.weight": (n,), f"{name}.bias": (n,)})

    def linear(name: str, n_out: int, n_in: int) -> None:
        shapes.update({f"{name}.weight": (n_out, n_in), f"{name}.bias": (n_out,)})

    for convolution, (n_out, n_in) in {0: (12, 3), 3: (24, 12)}.items():
        shapes[f"patch_embed.proj.{convolution}.weight"] = (n_out, n_in, 3, 3)
        norm(f"patch_embed.proj.{convolution + 1}", n_out)
        for statistic in ("running_mean", "running_var"):
            shapes[f"patch_embed.proj.{convolution + 1}.{statistic}"] = (n_out,)
        shapes[f"patch_embed.proj.{convolution + 1}.num_batches_tracked"] = ()
    shapes |= {"patch_embed.proj.6.weight": (96, 24, 1, 1), "patch_embed.proj.6.bias": (96,)}
    norm("patch_embed.norm", 96)
    for stage, (depth, heads) in enumerate(zip((2, 2, 6, 2), (3, 6, 12, 24))):
        width, windows = 96 * 2**stage, (8 // 2**stage) ** 2
        for block in range(depth):
            name = f"layers.{stage}.blocks.{block}"
            if block % 2 and stage < 3:
                shapes[f"{name}.attn_mask"] = (windows, 49, 49)
            norm(f"{name}.norm1", width)
            shapes[f"{name}.attn.relative_position_bias_table"] = (169, heads)
            shapes[f"{name}.attn.relative_position_index"] = (49, 49)
            linear(f"{name}.attn.qkv", 3 * width, width)
            linear(f"{name}.attn.proj", width, width)
            norm(f"{name}.norm2", width)
            linear(f"{name}.mlp.fc1", 4 * width, width)
            linear(f"{name}.mlp.fc2", width, 4 * width)
        if stage < 3:
            shapes[f"layers.{stage}.downsample.reduction.weight"] = (2 * width, 4 * width)
            norm(f"layers.{stage}.downsample.norm", 4 * width)
    norm("norm", 768)
    return shapes


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint with the published names and made-up values, and its path."""
    generator = torch.Generator().manual_seed(3)
    state = {}
    for name, shape in published_shapes().items():
        if name.endswith(("relative_position_index", "num_batches_tracked")):
            state[name] = torch.zeros(shape, dtype=torch.int64)
        elif name.endswith(("running_var", "norm.weight", "norm1.weight", "norm2.weight")):
            state[name] = torch.rand(shape, generator=generator) + 0.5
        else:
            inputs = int(np.prod(shape[1:])) if len(shape) > 1 else 2500
            state[name] = torch.randn(shape, generator=generator) / inputs**0.5
    path = tmp_path_factory.mktemp("ctranspath") / "ctranspath.pth"
    torch.save({"model": state, "epoch": 100}, path)
    return state, path


def test_ctranspath_from_the_published_layout(timm, checkpoint):
    state, path = checkpoint
    encoder = create_encoder("ctranspath", weights=path, device="cpu")
    direct = build_network().eval()
    renamed = {}
    for name, value in state.items():  # the same renaming, written out
        if "attn_mask" in name or "relative_position_index" in name:
            continue
        for stage in (0, 1, 2):
            if name.startswith(f"layers.{stage}.downsample"):
                name = name.replace(f"layers.{stage}.", f"layers.{stage + 1}.", 1)
                break
        renamed[name] = value
    direct.load_state_dict(renamed, strict=True)
    batch = tiles(2, 224)
    batch[1, :100] //= 8
    with torch.no_grad():
        expected = direct(normalised(batch, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    np.testing.assert_allclose(encoder.encode(batch), expected.numpy(), rtol=1e-4, atol=1e-5)
    assert float(expected.std(0).mean()) > 1e-3  # far above the tolerance: the two tiles are told apart
    assert (encoder.name, encoder.dim, encoder.input_px) == ("ctranspath", 768, 224)
    assert encoder.note == "weights differ from the published ctranspath.pth"


def test_ctranspath_takes_todays_names_too(timm, checkpoint):
    state, _ = checkpoint
    today = convert(state)
    assert "layers.3.downsample.reduction.weight" in today
    assert convert(today) == today


def test_ctranspath_wrong_weights(timm, checkpoint, tmp_path):
    state, _ = checkpoint
    torch.save({"model": {k: v for k, v in state.items() if k != "norm.bias"}}, tmp_path / "w.pth")
    with pytest.raises(DataError, match=r"do not fit encoder 'ctranspath': 1 missing: norm\.bias$"):
        create_encoder("ctranspath", weights=tmp_path / "w.pth", device="cpu")


def test_stem_is_the_published_one(checkpoint):
    state, _ = checkpoint
    stem = ConvStem(norm_layer=nn.LayerNorm, output_fmt="NHWC").eval()
    prefix = "patch_embed."
    values = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    stem.load_state_dict(values, strict=True)
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    x = images
    for i in (0, 3):
        x = functional.conv2d(x, values[f"proj.{i}.weight"], stride=2, padding=1)
        norm = [values[f"proj.{i + 1}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
        x = functional.relu(functional.batch_norm(x, *norm))
    x = functional.conv2d(x, values["proj.6.weight"], values["proj.6.bias"]).permute(0, 2, 3, 1)
    expected = functional.layer_norm(x, (96,), values["norm.weight"], values["norm.bias"])
    with torch.no_grad():
        torch.testing.assert_close(stem(images), expected)
    assert expected.shape == (2, 56, 56, 96)


def test_todays_downsampling_orders_neighbours_as_the_published_network(timm):
    """The weights mean the same only if the four neighbours are joined in the same order."""
    layer = build_network().layers[1].downsample
    x = torch.randn(1, 4, 4, 96)
    corners = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
    expected = layer.reduction(layer.norm(torch.cat(corners, -1)))
    torch.testing.assert_close(layer(x), expected)


# --- the repair of torchvision ------------------------------------------------------------------------------------


def test_torchvision_is_left_alone_when_it_loads(timm, monkeypatch):
    monkeypatch.setattr(timm_import, "_keep", [])
    timm_import.import_timm()  # torchvision is loaded by now
    assert timm_import._keep == []


def test_other_failures_of_torchvision_are_not_hidden(monkeypatch):
    import builtins

    real = builtins.__import__

    def broken(name, *args, **kwargs):
        if name == "torchvision":
            raise RuntimeError("something else")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(RuntimeError, match="something else"):
        timm_import._repair_torchvision()


def test_missing_timm_names_the_extra(monkeypatch):
    monkeypatch.setattr(timm_import, "installed", lambda: False)
    with pytest.raises(ImportError, match=r"pip install 'dasmil\[timm\]'"):
        timm_models.create_timm("timm:resnet18", None, "cpu")
