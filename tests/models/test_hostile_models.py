"""Model files, options and inputs that are damaged, hostile or careless: they work, or one clear message says why."""

from __future__ import annotations

import contextlib
import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from dasmil import create_model, load_model
from dasmil.errors import DasmilError, DataError, InputError
from dasmil.models import MODELS
from dasmil.models.options import Range, Size, read_option
from dasmil.models.sizes import sizes_only
from dasmil.nn.neighbours import pairs_within
from dasmil.types import Bag

X, XY = torch.randn(20, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40.0).reshape(20, 2)


def logit(name: str, *inputs: object, **more: object) -> torch.Tensor:
    torch.manual_seed(0)
    model = create_model(name, in_features=6).eval()
    with torch.no_grad():
        return model(*inputs, **more).logit  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MODELS)
def test_inputs_of_other_kinds_are_the_same_numbers(name: str) -> None:
    expected = logit(name, X, XY, mask=torch.arange(20) < 15, section=torch.zeros(20, dtype=torch.int64))
    mask = np.r_[np.ones(15), np.zeros(5)]
    for features, coords in (
        (X.double(), XY.double()),
        (X.numpy(), XY.numpy()),
        (X.numpy().astype(">f8"), XY.numpy().astype(np.int16)),
        (X.tolist(), XY.tolist()),
        (np.asfortranarray(X.numpy().astype(np.longdouble)), XY.int()),
    ):
        found = logit(name, features, coords, mask=mask, section=np.zeros(20))
        torch.testing.assert_close(found, expected)
    half = logit(name, X.half(), XY.half(), mask=mask.astype(np.uint8), section=None)
    torch.testing.assert_close(half, expected, rtol=0.02, atol=0.02)


NAN = torch.full((20, 2), float("nan"))
REFUSED = {
    "text": ((np.full((20, 6), "a"), XY), {}, "features are ndarray of <U1, expected numbers"),
    "none": ((X, None), {}, "coords are NoneType, expected numbers"),
    "ragged": (([[1.0], [1.0, 2.0]], XY), {}, "features are list, expected numbers"),
    "complex": ((X.to(torch.complex64), XY), {}, "features are torch.complex64"),
    "sparse": ((X.to_sparse(), XY), {}, "expected a plain tensor"),
    "meta": ((X, XY.to("meta")), {}, "coords are a meta tensor, which holds no numbers"),
    "no batch": ((X[None][:0], XY[None][:0]), {}, "the bag is empty"),
    "NaN": ((X, NAN), {}, "20 of 20 instances have NaN or infinite coordinates"),
    "mask of twos": ((X, XY), {"mask": torch.full((20,), 2)}, "mask holds values other than 0 and 1"),
    "mask of nothing": ((X, XY), {"mask": torch.zeros(20, dtype=torch.bool)}, "mask leaves a bag without any instance"),
    "half a section": ((X, XY), {"section": torch.full((20,), 0.5)}, "section holds fractions"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("what", REFUSED)
def test_inputs_that_cannot_be_used_are_one_message(name: str, what: str) -> None:
    inputs, more, message = REFUSED[what]
    with pytest.raises(InputError, match=message):
        logit(name, *inputs, **more)


@pytest.mark.parametrize("name", MODELS)
def test_weights_that_are_not_finite_are_no_traceback(name: str) -> None:
    model = create_model(name, in_features=6).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
        assert torch.isnan(model(X, XY).logit).all()


@pytest.mark.parametrize("name", MODELS)
def test_places_beyond_all_lengths_are_no_traceback(name: str) -> None:
    with contextlib.suppress(InputError):
        logit(name, X, XY * 1e36)


@pytest.mark.parametrize("name", ["das-mil", "disc-rel-sa", "gcn"])
def test_places_behind_the_mask_do_not_matter(name: str) -> None:
    mask = torch.arange(20) < 15
    lost = torch.where(mask[:, None], XY, torch.tensor(float("nan")))
    torch.testing.assert_close(logit(name, X, lost, mask=mask), logit(name, X, XY, mask=mask))


odd = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=300), st.binary(), st.complex_numbers(),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from([10**9, 2**70, "1", "NaN", "cuda", "max", np.float32(3), np.int64(3), object()]),
)  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_of_any_option_works_or_is_refused(name: str, data: st.DataObject) -> None:
    options = {"in_features": 6, data.draw(st.sampled_from(list(MODELS[name].options()))): data.draw(odd)}
    try:
        with torch.device("meta"):
            size = sum(p.numel() for p in create_model(name, **options).parameters())
        if size < 10**6:
            model = create_model(name, **options)
            shape = model.encoder.in_shape
            model.eval()(torch.zeros(3, *shape), XY[:3])
    except DasmilError as error:
        text = str(error)
    else:
        text = ""
    assert len(text) <= 1000
    assert "\n" not in text


def test_every_option_is_of_a_known_kind() -> None:
    for name, cls in MODELS.items():
        for option in cls.schema().values():
            assert option.check(option.default) == option.default, (name, option)
            assert option.meaning
    assert read_option("x", Size | None).range == Range(1, 65_536)
    with pytest.raises(InputError, match=r"hidden is 2.5, expected a whole number from 1 to 65,536"):
        create_model("sa", in_features=6, hidden=2.5)
    with pytest.raises(InputError, match=r"pooling is 'maxx', expected one of max, mean, sum. Did you mean 'max'"):
        create_model("sa", in_features=6, pooling="maxx")
    with pytest.raises(InputError, match="would have 8,590,196,738 parameters"):
        create_model("ab-mil", in_features=65_536, hidden=65_536, encoder="linear-relu", encoder_features=65_536)
    assert create_model("sa", in_features=6.0, hidden=np.int64(3)).config["hidden"] == 3  # type: ignore[arg-type]


SMALL = {"camil": {"heads": 1, "head_features": 4}, "slide-transformer": {"layers": 1}}


def _ends(name: str) -> list[dict[str, object]]:
    """Every option of a model at each end of its range that a file could ask for without one more number in it."""
    small = {"in_features": 6, **SMALL.get(name, {})}

    def shapes(**changes: object) -> dict[str, torch.Size]:
        with sizes_only():
            return {key: value.shape for key, value in create_model(name, **{**small, **changes}).state_dict().items()}

    found, usual = [], shapes()
    for option in MODELS[name].schema().values():
        ends = (option.range.low, option.range.high) if option.range is not None else option.choices
        for end in ends:
            with contextlib.suppress(DasmilError):
                if shapes(**{option.name: end}) == usual:
                    found.append({**small, option.name: end})
    return found


@pytest.mark.parametrize("name", MODELS)
def test_what_an_option_alone_can_ask_for_is_done_for_a_small_bag(name: str) -> None:
    ends = _ends(name)
    assert ends
    for options in ends:
        if name == "2dmamba-mil" and 1e-12 in options.values():  # a grid of 10^25 cells cannot be held
            with pytest.raises(InputError, match="tile is the spacing"):
                create_model(name, **options).eval()(X[:5], XY[:5])
            continue
        with torch.no_grad():
            assert create_model(name, **options).eval()(X[:5], XY[:5]).logit.isfinite().all(), options


def test_matrices_that_a_bag_cannot_fill_are_refused() -> None:
    with pytest.raises(InputError, match="landmarks is 4096, expected a whole number from 1 to 1,024"):
        create_model("camil", in_features=6, landmarks=4096)
    with pytest.raises(InputError, match="64 heads with 256 landmarks each are 16,384, expected at most 8,192"):
        create_model("camil", in_features=6, heads=64)
    places = torch.rand(5_000, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="12,497,500 pairs of the 5,000 instances lie within the radius 2,"):
        pairs_within(places, 2.0)
    near = pairs_within(places[:3], 2.0)
    assert sorted(zip(*near.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    wide = create_model("rrt-mil", in_features=6, features=8, regions=1, heads=8)
    with pytest.raises(InputError, match="6,000 instances in 1 x 1 regions have 296,120,448 scores in each"):
        wide(torch.zeros(6_000, 6), torch.zeros(6_000, 2))


def test_sizes_are_known_without_the_compiler() -> None:
    """PyTorch's compiler (a thousand modules) was loaded to draw numbers that have no memory."""
    program = """
import sys
from dasmil.models import MODELS, create_model
from dasmil.models.sizes import sizes_only
with sizes_only():
    for name, cls in MODELS.items():
        for option in cls.schema().values():
            for word in option.choices or (option.default,):
                create_model(name, **{"in_features": 6, option.name: 6 if option.name == "in_features" else word})
    create_model("das-mil", in_features=6, encoder="whitened")
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder, found = tmp_path_factory.mktemp("models"), {}
    for name in ("das-mil", "transmil", "gcn"):
        options = {"features": 16} if name == "transmil" else {"hidden": 4}
        create_model(name, in_features=6, **options).save(folder / "model.safetensors")
        found[name] = (folder / "model.safetensors").read_bytes()
    return found


def use(path: Path) -> str:
    """Load a file and use the model; the message if it is refused."""
    try:
        model = load_model(path)
        model(torch.zeros(3, *model.encoder.in_shape), XY[:3])
    except DasmilError as error:
        return str(error)
    return ""


def test_damaged_model_files_are_clear_errors(files: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for i in range(150):
        r = random.Random(i)
        data = bytearray(files[r.choice(list(files))])
        header = struct.unpack("<Q", data[:8])[0] + 8
        if r.random() < 0.3:
            del data[r.randrange(len(data)) :]
        else:
            low, high = r.choice(((0, 8), (8, header), (8, header), (0, len(data))))
            for _ in range(r.choice((1, 2, 8))):
                data[r.randrange(low, high)] = r.randrange(256)
        path.write_bytes(data)
        message = use(path)
        assert len(message) <= 2000
        assert "\n" not in message


def parts(data: bytes) -> tuple[dict, bytes]:
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def joined(header: dict, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("layers", 10**9, "layers is 1000000000, expected a whole number from 1 to 256"),
        ("hidden", -3, "hidden is -3, expected a whole number"),
        ("dropout", 1e21, "dropout is 1e\\+21, expected a number from 0 to below 1"),
        ("n_classes", "x" * 5000, "n_classes is 'xxx"),
        ("theta_init", [0.1, "a"], "theta_init is 'a', expected a number"),
        ("layers", 200, "does not match its configuration; missing tensors"),
    ],
)
def test_hostile_options_are_refused_from_the_header(
    option: str, value: object, message: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    header, body = parts(files["das-mil"])
    description = json.loads(header["__metadata__"]["model"])
    description["options"][option] = value
    header["__metadata__"]["model"] = json.dumps(description)
    path = tmp_path / "model.safetensors"
    path.write_bytes(joined(header, body))
    with pytest.raises(DataError, match=message) as caught:
        load_model(path)
    assert len(str(caught.value)) < 700


def test_deep_configurations_and_other_numbers(files: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header, body = parts(files["das-mil"])
    header["__metadata__"]["model"] = "[" * 100_000
    path.write_bytes(joined(header, body))
    assert "configuration in its header is broken" in use(path)
    tensors, meta = load(files["das-mil"]), parts(files["das-mil"])[0]["__metadata__"]
    for dtype, words in ((torch.int64, "holds I64 numbers, expected one of F32"), (torch.float8_e5m2, "holds F8_E5M2")):
        path.write_bytes(save({key: value.to(dtype) for key, value in tensors.items()}, metadata=meta))
        assert words in use(path)
    path.write_bytes(save({key: value.half() for key, value in tensors.items()}, metadata=meta))
    model = load_model(path)
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    path.write_bytes(files["das-mil"])
    torch.testing.assert_close(model(X, XY).logit, load_model(path)(X, XY).logit, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": None}, "features are NoneType, expected numbers"),
        ({"features": [["a"]]}, "expected numbers"),
        ({"features": np.zeros((3, 4), np.complex64)}, "features are ndarray of complex64"),
        ({"features": torch.zeros(3, 0)}, "an instance has no numbers"),
        ({"label": float("inf")}, "label is inf"),
        ({"label": 10**400}, "label is 1000"),
        ({"label": "1"}, "label is '1'"),
        ({"bag_id": 7}, "the bag_id 7"),
        ({"patient_id": 7}, "patient_id is 7, expected text"),
        ({"section": np.zeros((3, 2))}, r"section has shape \(3, 2\), expected \[3\]"),
        ({"section": [0.5, 1, 1]}, "section holds fractions"),
        ({"key_instances": [0, 1, 2]}, "values other than 0 and 1"),
        ({"coords": np.full((3, 2), 2**64 - 1, np.uint64)}, "expected numbers below 2"),
    ],
)
def test_odd_bags_are_refused_by_name(changes: dict, message: str) -> None:
    fields: dict = {"features": np.ones((3, 4)), "coords": np.zeros((3, 2)), "unit": "um", "bag_id": "slide-7"}
    with pytest.raises(DataError, match=message):
        Bag(**(fields | changes))


def test_lists_and_other_arrays_become_bags() -> None:
    bag = Bag([[1, 2], [3, 4]], np.array([[0, 0], [1, 1]], ">i4"), "um", "a", np.float32(1), section=(0, 1))  # type: ignore[arg-type]
    assert bag.features.tolist() == [[1, 2], [3, 4]]
    assert bag.coords.dtype == torch.float32
    assert bag.section is not None
    assert bag.section.dtype == torch.int64
    assert bag.label == 1
