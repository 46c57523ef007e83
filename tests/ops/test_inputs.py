"""Bad input: one clear error each. And life without the compiled kernel."""

from __future__ import annotations

import importlib
import os
import warnings

import pytest
import torch

from dasmil.errors import BackendError, InputError
from dasmil.ops import das_attention

library = importlib.import_module("dasmil.ops.library")
native = importlib.import_module("dasmil.ops.das_attention.native")
package = importlib.import_module("dasmil.ops.das_attention")
needs_kernel = pytest.mark.skipif(not native.available(), reason="the kernel was not built: no C++ compiler")
BACKENDS = ["auto", "reference", "chunked", pytest.param("native", marks=needs_kernel)]
if os.environ.get("TRITON_INTERPRET") == "1":
    BACKENDS.append("triton")


def arguments(**changes):
    n, d, o, h = 6, 4, 5, 2
    given = {
        "query": torch.randn(h, n, d), "key": torch.randn(h, n, d), "value": torch.randn(h, n, o),
        "coords": torch.rand(n, 2), "theta": torch.rand(h), "beta": torch.rand(h), "scale": 0.5,
        "key_embed": torch.randn(h, 2, d), "query_embed": torch.randn(h, 2, d), "value_embed": torch.randn(h, 2, o),
    }  # fmt: skip
    return given | changes


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": torch.randn(6, 4)}, r"query has shape \[6, 4\], expected \[\.\.\., heads, n, d\]"),
        ({"query": torch.randn(2, 0, 4)}, "the bag is empty"),
        ({"key": torch.randn(2, 5, 4)}, r"key has shape \[2, 5, 4\], expected that of query: \[2, 6, 4\]"),
        ({"value": torch.randn(2, 5, 5)}, r"value has shape \[2, 5, 5\], expected \[2, 6, o\]"),
        ({"coords": torch.rand(5, 2)}, r"coords have shape \[5, 2\], expected \[6, 2 or 3\]"),
        ({"coords": torch.rand(6, 4)}, r"coords have shape \[6, 4\]"),
        ({"coords": torch.rand(3, 6, 2)}, r"coords have shape \[3, 6, 2\]"),
        ({"coords": torch.zeros(6, 2, dtype=torch.int64)}, r"coords has dtype torch.int64, expected a floating dtype"),
        ({"query": torch.ones(2, 6, 4, dtype=torch.int32)}, r"query has dtype torch.int32.*\.float\(\)"),
        ({"value": torch.randn(2, 6, 5, dtype=torch.float64)}, "dtypes torch.float32, torch.float32 and torch.float64"),
        ({"theta": None}, "key_embed is given without theta"),
        ({"beta": None}, "key_embed is given without beta"),
        ({"theta": torch.rand(3)}, r"theta has shape \[3\], expected \[2\]: one for each head"),
        ({"beta": torch.tensor(1.0)}, r"beta has shape \[\], expected \[2\]"),
        ({"key_embed": torch.randn(2, 2, 5)}, r"key_embed has shape \[2, 2, 5\], expected \[2, 2, 4\]"),
        ({"query_embed": torch.randn(2, 4)}, r"query_embed has shape \[2, 4\]"),
        ({"value_embed": torch.randn(2, 2, 4)}, r"value_embed has shape \[2, 2, 4\], expected \[2, 2, 5\]"),
        ({"mask": torch.ones(5, dtype=torch.bool)}, r"mask has shape \[5\], expected \[6\]"),
        ({"mask": torch.ones(6)}, "mask has dtype torch.float32, expected torch.bool"),
        ({"mask": torch.zeros(6, dtype=torch.bool)}, "mask hides every instance"),
        ({"section": torch.zeros(7, dtype=torch.int64)}, r"section has shape \[7\], expected \[6\]"),
        ({"section": torch.zeros(6)}, "section has dtype torch.float32, expected integers"),
        ({"coords": torch.full((6, 2), float("nan"))}, "NaN or infinite"),
        ({"coords": torch.tensor([[0.0, float("inf")]] * 6)}, "NaN or infinite"),
        ({"query": torch.randn(2, 6, 4, device="meta")}, "key is on cpu but query is on meta"),
        ({"dropout_p": 1.0}, "dropout_p is 1.0"),
        ({"dropout_p": -0.1}, "dropout_p is -0.1"),
        ({"dropout_p": 2}, "dropout_p is 2, expected a probability from 0 up to but not including 1"),
        ({"dropout_p": float("nan")}, "dropout_p is nan"),
        ({"dropout_p": None}, "dropout_p is None, expected a probability"),
        ({"dropout_p": "0.1"}, "dropout_p is '0.1', expected a probability"),
        ({"dropout_p": torch.tensor(0.25)}, r"dropout_p is tensor\(0.2500\), expected a probability"),
        ({"dropout_seed": -1}, r"dropout_seed is -1, expected a whole number from 0 to 2\^63 - 1"),
        ({"dropout_seed": 1 << 63}, "dropout_seed is 9223372036854775808"),
        ({"dropout_seed": 0.5}, "dropout_seed is 0.5"),
        ({"dropout_seed": True}, "dropout_seed is True"),
        ({"dropout_seed": torch.ones(())}, "dropout_seed has dtype torch.float32, expected integers"),
        (
            {"dropout_seed": torch.ones(3, dtype=torch.int64)},
            r"dropout_seed has shape \[3\], expected .* dimensions \[\]",
        ),
        ({"self_pair": None}, "self_pair is None, expected True or False"),
        ({"product_term": "no"}, "product_term is 'no', expected True or False"),
        ({"return_weights": 2}, "return_weights is 2, expected True or False"),
        ({"theta": torch.ones(2, dtype=torch.complex64)}, "theta has dtype torch.complex64, expected a floating dtype"),
        ({"value_embed": torch.ones(2, 2, 5, dtype=torch.int64)}, "value_embed has dtype torch.int64"),
        ({"mask": torch.ones(6, dtype=torch.uint8)}, "mask has dtype torch.uint8, expected torch.bool"),
        ({"mask": torch.ones(6, dtype=torch.bool, device="meta")}, "mask is on meta but query is on cpu"),
        ({"coords": torch.rand(6, 2, device="meta")}, "coords is on meta but query is on cpu"),
        ({"coords": torch.full((6, 2), float("nan"), dtype=torch.float64)}, "NaN or infinite"),
        ({"distance_scale": 0.0}, "distance_scale is 0.0, expected a length above 0"),
        ({"distance_scale": torch.tensor(-1.0)}, "distance_scale is -1.0"),
        ({"distance_scale": float("inf")}, "distance_scale is inf"),
        ({"distance_scale": None}, "distance_scale is None"),
        ({"distance_scale": "50"}, "distance_scale is '50'"),
        ({"distance_scale": torch.ones(2)}, r"distance_scale is a tensor of shape \[2\]"),
        ({"scale": float("nan")}, "scale is nan, expected a finite number"),
        ({"scale": torch.tensor(float("inf"))}, "scale is inf"),
        ({"scale": None}, "scale is None"),
        ({"scale": "0.5"}, "scale is '0.5', expected a finite number"),
        ({"theta": 0.5}, r"theta is of type float, expected a tensor \[heads\], for example torch.tensor\(\[0.5\]\)"),
        ({"mask": [True] * 6}, "mask is of type list, expected a tensor"),
        ({"query": None}, "query is of type NoneType, expected a tensor"),
        ({"coords": torch.rand(6, 2).numpy()}, r"coords is a numpy array.*torch\.from_numpy\(coords\)"),
        ({"query": torch.randn(2, 6, 0)}, r"query has shape \[2, 6, 0\], expected at least one number"),
        ({"value": torch.randn(2, 6, 0)}, r"value has shape \[2, 6, 0\], expected at least one number"),
        ({"bias": "lineer"}, "unknown bias 'lineer'. Did you mean 'linear'"),
        ({"bias": 3}, "unknown bias 3. Known: bins"),
        ({"bias": "linear"}, "bias is 'linear' but bias_scale is missing"),
        ({"bias_scale": torch.ones(2)}, "bias_scale is given, but bias is None"),
        ({"bias": "linear", "bias_scale": torch.ones(3)}, r"bias_scale has shape \[3\], expected \[2\]: one for each"),
        ({"bias": "linear", "bias_scale": torch.ones(2, dtype=torch.int64)}, "bias_scale has dtype torch.int64"),
        ({"bias": "gaussian", "bias_scale": torch.tensor([1.0, 0.0])}, "a length that is not above 0"),
        ({"bias": "cauchy", "bias_scale": torch.tensor([-1.0, 1.0])}, "a length that is not above 0"),
        ({"bias": "cauchy", "bias_scale": torch.full((2,), float("nan"))}, "a length that is not above 0"),
        ({"bias": "bins", "bias_table": torch.ones(2, 3)}, "bias_edges is missing"),
        ({"bias": "bins", "bias_table": torch.ones(2, 3), "bias_edges": torch.ones(1, 2)}, "bias_edges have shape"),
        (
            {"bias": "bins", "bias_table": torch.ones(2, 4), "bias_edges": torch.tensor([1.0, 2.0])},
            r"bias_table has shape \[2, 4\], expected \[2, 3\]: 3 bins for 2 edges",
        ),
        (
            {"bias": "bins", "bias_table": torch.ones(2, 3), "bias_edges": torch.tensor([2.0, 1.0])},
            "bias_edges hold numbers that do not ascend",
        ),
        (
            {"bias": "bins", "bias_table": torch.ones(2, 3), "bias_edges": torch.tensor([1.0, float("nan")])},
            "bias_edges hold numbers that do not ascend",
        ),
        ({"radius": -1.0}, "radius is -1.0, expected a length of 0 or more"),
        ({"radius": float("nan")}, "radius is nan"),
        ({"radius": [1.0]}, "radius has 1 numbers, expected one, or one for each of 2 heads"),
        ({"radius": "1"}, "radius is '1'"),
        ({"radius": torch.ones(2, 2)}, r"radius has shape \[2, 2\]"),
        ({"section": torch.tensor([0, 0, -2, 1, 1, 0])}, "section holds numbers below -1"),
        ({"phi": "sigmoit"}, "unknown phi 'sigmoit'. Did you mean 'sigmoid'"),
        ({"phi": None}, "unknown phi None. Known: exponential"),
        ({"phi": ["sigmoid"]}, r"unknown phi \['sigmoid'\]. Known: exponential"),
    ],
)
def test_bad_input(changes, message, backend):
    with pytest.raises(InputError, match=message):
        das_attention(**arguments(**changes), backend=backend)


def test_unknown_backend():
    with pytest.raises(InputError, match=r"unknown backend 'nativ'\. Did you mean 'native'"):
        das_attention(**arguments(), backend="nativ")
    with pytest.raises(InputError, match=r"unknown backend None\. Known: auto"):
        das_attention(**arguments(), backend=None)


@pytest.mark.parametrize("backend", ["auto", "chunked", pytest.param("native", marks=needs_kernel)])
def test_gradients_of_coordinates_are_refused_and_not_silently_zero(backend):
    with pytest.raises(InputError, match="backend='reference'"):
        das_attention(**arguments(coords=torch.rand(6, 2, requires_grad=True)), backend=backend)


@pytest.mark.parametrize("backend", ["auto", "chunked", pytest.param("native", marks=needs_kernel)])
def test_coordinates_with_gradients_are_taken_where_no_gradient_is_wanted(backend):
    given = arguments()
    with torch.no_grad():
        found = das_attention(**given | {"coords": given["coords"].clone().requires_grad_()}, backend=backend)
    torch.testing.assert_close(found, das_attention(**given, backend=backend), rtol=0, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_bags_give_no_output(backend):
    """An empty batch is fine, though an empty bag is not."""
    empty = {name: torch.randn(0, *arguments()[name].shape, requires_grad=True) for name in ("query", "key", "value")}
    out = das_attention(**arguments(**empty), backend=backend)
    assert out.shape == (0, 2, 6, 5)
    out.sum().backward()
    assert empty["query"].grad.shape == (0, 2, 6, 4)


@pytest.mark.parametrize("backend", ["chunked", pytest.param("native", marks=needs_kernel)])
def test_second_derivatives_are_refused_and_not_silently_zero(backend):
    given = arguments()
    given["query"].requires_grad_()
    out = das_attention(**given, backend=backend)
    with pytest.raises(InputError, match="create_graph=True"):
        torch.autograd.grad(out.sum(), given["query"], create_graph=True)


@needs_kernel
def test_native_refuses_what_it_cannot_do():
    double = {name: x.double() if isinstance(x, torch.Tensor) else x for name, x in arguments().items()}
    with pytest.raises(BackendError, match="computes in float32, the tensors are float64"):
        das_attention(**double, backend="native")
    meta = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in arguments().items()}
    with pytest.raises(BackendError, match="runs on the CPU, the tensors are on meta"):
        das_attention(**meta, backend="native")
    with pytest.raises(InputError, match="beyond 32 bits"):
        das_attention(**arguments(section=torch.tensor([0, 0, 1, 1, 1 << 40, 0])), backend="native")


@needs_kernel
def test_auto_takes_the_kernel_where_it_can(monkeypatch):
    called = []
    monkeypatch.setattr(package, "native", lambda *a, take=native.native: (called.append(1), take(*a))[1])
    das_attention(**arguments())
    assert len(called) == 1
    das_attention(**{name: x.double() if isinstance(x, torch.Tensor) else x for name, x in arguments().items()})
    assert len(called) == 1


@pytest.fixture
def without_kernel(monkeypatch):
    monkeypatch.setattr(library, "library_path", lambda folder: None)
    native.load.cache_clear()
    package._report_missing.cache_clear()
    yield
    native.load.cache_clear()
    package._report_missing.cache_clear()


def test_without_compiler_auto_falls_back_and_says_so_once(without_kernel):
    given = arguments()
    with pytest.warns(RuntimeWarning, match=r"native attention kernel is missing.*slower backend 'chunked'"):
        found = das_attention(**given)
    torch.testing.assert_close(found, das_attention(**given, backend="chunked"), rtol=0, atol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        das_attention(**given)


def test_without_compiler_native_is_an_error(without_kernel):
    with pytest.raises(BackendError, match=r"native kernel is missing.*Install a C\+\+ compiler"):
        das_attention(**arguments(), backend="native")


def test_a_library_that_cannot_be_loaded_is_named(monkeypatch, tmp_path):
    broken = tmp_path / "_kernel.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(library, "library_path", lambda folder: broken)
    native.load.cache_clear()
    try:
        with pytest.raises(BackendError, match=r"_kernel\.so cannot be loaded"):
            das_attention(**arguments(), backend="native")
    finally:
        native.load.cache_clear()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hidden", [float("nan"), float("inf"), 1e38])
def test_what_is_behind_the_mask_does_not_matter_even_where_it_is_no_number(backend, hidden):
    """Neither output nor gradients."""
    mask = torch.arange(6) < 4
    given = arguments(mask=mask)
    names = ("query", "key", "value", "key_embed", "value_embed")

    def run():
        for name in names:
            given[name] = given[name].detach().clone().requires_grad_()
        found = das_attention(**given, backend=backend)[:, :4]
        found.square().sum().backward()
        return [found, *(given[name].grad[:, :4] for name in names)]

    expected = run()
    for name in ("query", "key", "value"):
        given[name] = given[name].detach().clone()
        given[name][:, 4:] = hidden
    for found, clean in zip(run(), expected):
        torch.testing.assert_close(found, clean)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sections_of_any_integers_mean_the_same_and_numbers_beyond_32_bits_are_refused(backend):
    section = torch.tensor([0, 0, 1, 200, 200, 2])
    given = arguments()
    expected = das_attention(**given, section=section, backend="reference")
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
        torch.testing.assert_close(das_attention(**given, section=section.to(dtype), backend=backend), expected)
    for number, message in ((2**31, "beyond 32 bits"), (-2, "below -1")):
        with pytest.raises(InputError, match=message):
            das_attention(**given, section=torch.full((6,), number), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_heads_and_no_bags_give_nothing_and_are_checked_all_the_same(backend):
    for lead in ((0,), (0, 2), (3, 0)):
        query, value = torch.ones(*lead, 4, 3), torch.ones(*lead, 4, 2)
        options = {"scale": 1.0, "theta": torch.ones(lead), "beta": torch.ones(lead), "backend": backend}
        options["key_embed"] = torch.ones(*lead, 2, 3)
        found = das_attention(query, query, value, torch.rand(4, 2), **options)
        assert found.shape == (*lead, 4, 2)
        with pytest.raises(InputError, match="NaN"):
            das_attention(query, query, value, torch.full((4, 2), float("nan")), **options)


@pytest.mark.parametrize("length", [1e-45, 1e-300, 1e300, 0.0, -1.0, float("nan"), float("inf")])
def test_a_length_that_float32_does_not_hold_is_refused(length):
    with pytest.raises(InputError, match=r"distance_scale is .*, expected a length above 0"):
        das_attention(**arguments(), distance_scale=length)


def test_sparse_operands_are_one_message():
    generator = torch.Generator().manual_seed(0)
    x, coords = torch.rand(1, 5, 3, generator=generator), torch.rand(5, 2, generator=generator)
    with pytest.raises(InputError, match=r"coords is a tensor of layout torch\.sparse_coo, expected a plain one"):
        das_attention(x, x, x, coords.to_sparse(), scale=1.0)
    with pytest.raises(InputError, match=r"key is a tensor of layout"):
        das_attention(x, x.to_sparse(), x, coords, scale=1.0)
