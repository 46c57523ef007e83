"""Models on disk: what is refused, what is found, what is never executed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dasmil import create_model, load_model
from dasmil.errors import DasmilError, DataError, InputError
from dasmil.models import MODELS, MILModel


def small(seed: int = 0) -> MILModel:
    torch.manual_seed(seed)
    return create_model("das-mil", in_features=4, hidden=3)


@pytest.fixture
def parts(tmp_path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str], Path]:
    path = tmp_path / "model.safetensors"
    small().save(path)
    with safe_open(path, framework="pt") as reader:
        return {key: reader.get_tensor(key) for key in reader.keys()}, reader.metadata(), path  # noqa: SIM118


def refuse(path: Path, tensors: dict[str, torch.Tensor], header: dict[str, str] | None, message: str) -> None:
    save_file(tensors, path, metadata=header)
    with pytest.raises(DataError, match=message):
        load_model(path)


def test_header_holds_the_whole_configuration(parts) -> None:
    _, header, _ = parts
    model = json.loads(header["model"])
    assert model == {"name": "das-mil", "options": small().config}
    assert set(model["options"]) == set(MODELS["das-mil"].options())
    assert (header["format"], header["format_version"]) == ("dasmil-model", "1")


def test_what_is_refused(parts) -> None:
    tensors, header, path = parts
    refuse(path, tensors, header | {"format_version": "2"}, "has format version '2', this dasmil .* reads 1")
    refuse(path, tensors, {"format": "pt"}, "was not written by dasmil .*'pt'")
    refuse(path, tensors, None, "was not written by dasmil")
    missing = {key: value for key, value in tensors.items() if not key.endswith("theta")}
    refuse(path, missing, header, r"missing tensors: aggregator\.layers\.0\.theta")
    refuse(path, tensors | {"more": torch.zeros(2)}, header, "unexpected tensors: more")
    wrong = tensors | {"classifier.bias": torch.zeros(2)}
    refuse(path, wrong, header, r"classifier\.bias has shape \(2,\), expected \(1,\)")
    refuse(path, tensors, header | {"model": "{broken"}, "configuration in its header is broken")
    description = json.loads(header["model"])
    for name, message in (("os.system", "a model named 'os.system'"), ("gat", "does not make a gat model")):
        refuse(path, tensors, header | {"model": json.dumps(description | {"name": name})}, message)
    # A size that no machine could allocate is refused by comparing shapes, not by running out of memory.
    huge = {"name": "das-mil", "options": description["options"] | {"hidden": 10**9}}
    refuse(path, tensors, header | {"model": json.dumps(huge)}, "hidden is 1000000000, expected a whole number from 1")
    large = {"name": "das-mil", "options": description["options"] | {"hidden": 60_000}}
    refuse(path, tensors, header | {"model": json.dumps(large)}, "does not match its configuration")


def test_foreign_files(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    torch.save({"a": torch.zeros(3)}, file)
    with pytest.raises(DataError, match="is not a readable safetensors file"):
        load_model(file)
    file.write_bytes(b"")
    with pytest.raises(DataError, match="is not a readable safetensors file"):
        load_model(file)
    with pytest.raises(InputError, match="does not exist"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no model"):
        load_model(tmp_path)


def test_equal_models_are_equal_files(tmp_path: Path) -> None:
    for k in range(8):  # safetensors itself writes the metadata in another order each time
        small(1).save(tmp_path / f"{k}.safetensors")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    small(1).save(path)
    before = path.read_bytes()

    def half(self: Path, data: bytes) -> None:
        with self.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", half)
        with pytest.raises(OSError, match="disk full"):
            small(2).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_run_directories(tmp_path: Path) -> None:
    for place, seed in (("seed-10", 10), ("seed-2", 2), ("fold-1/seed-0", 7), ("fold-0/seed-1", 8)):
        small(seed).save(tmp_path / ("folds" if "fold" in place else "plain") / place / "model.safetensors")

    def weight(path: Path) -> torch.Tensor:
        return load_model(path).get_parameter("classifier.weight")

    def expected(seed: int) -> torch.Tensor:
        return small(seed).get_parameter("classifier.weight")

    assert torch.equal(weight(tmp_path / "plain"), expected(2)), "the first seed, by number"
    assert torch.equal(weight(tmp_path / "plain" / "seed-10"), expected(10))
    assert torch.equal(weight(tmp_path / "folds"), expected(8))


def test_loaded_models_evaluate_and_can_be_trained_on(tmp_path: Path) -> None:
    small().save(tmp_path / "m.safetensors")
    model = load_model(tmp_path / "m.safetensors")
    assert not model.training
    features, coords = torch.randn(5, 4), torch.rand(5, 2)
    model(features, coords).logit.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_frozen_embeddings_come_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = create_model("das-mil", in_features=4, train_embeddings=False).eval()
    model.save(tmp_path / "m.safetensors")
    torch.manual_seed(99)
    loaded = load_model(tmp_path / "m.safetensors")
    features, coords = torch.randn(5, 4), torch.rand(5, 2)
    assert torch.equal(loaded(features, coords).logit, model(features, coords).logit)


def test_pretrained_folder(tmp_path: Path) -> None:
    model = small().eval()
    model.save_pretrained(tmp_path / "hub")
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert (config["model"], config["options"]) == ("das-mil", model.config)
    loaded = MODELS["das-mil"].from_pretrained(tmp_path / "hub")
    assert torch.equal(loaded.get_parameter("classifier.weight"), model.get_parameter("classifier.weight"))
    with pytest.raises(DasmilError, match="holds a das-mil model, expected sa"):
        MODELS["sa"].from_pretrained(tmp_path / "hub")
