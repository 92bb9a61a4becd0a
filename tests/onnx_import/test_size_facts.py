"""Facts about free sizes are learnt where a graph needs them, and looked at in each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the peer that runs the same graphs")

from onnx import parser  # noqa: E402

import gptrs_onnx  # noqa: E402
from gptrs.errors import GptrsError  # noqa: E402
from gptrs.ir.symbolic_dim import symbol  # noqa: E402
from gptrs_onnx.conversion import Conversion  # noqa: E402
from gptrs_onnx.model import OnnxModel  # noqa: E402
from gptrs_onnx.size_facts import Facts, identifiers, learn  # noqa: E402

KERNEL = "float[2, 2, 3, 3] k = {" + ", ".join("0.5" for _ in range(36)) + "}"
HALF = "Conv <strides = [2, 2], pads = [1, 1, 1, 1]>"
TWICE = """Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
 nearest_mode = "floor">"""
LSTM = "float[1, 4, 2] W = {1, 1, 1, 1, 1, 1, 1, 1}, float[1, 4, 1] R = {1, 1, 1, 1}"
# A graph, the sizes of its calls, and how many conversions there are in all.
GRAPHS: dict[str, tuple[str, Sequence[dict[str, int]], int]] = {
    "steps": (
        f"(float[b, 2, h, w] x) => (float y) <{KERNEL}> {{ a = {HALF} (x, k)"
        f" c = {HALF} (a, k) y = ReduceMean <axes = [2, 3]> (c) }}",
        [
            {"b": 2, "h": 9, "w": 17},
            {"b": 3, "h": 16, "w": 10},
            {"b": 2, "h": 23, "w": 31},
            {"b": 5, "h": 40, "w": 19},
        ],
        1,
    ),
    "a pyramid that needs even sizes": (
        f"(float[2, 2, h, w] x) => (float y) <{KERNEL}, float[0] r = {{}},"
        f" float[4] s = {{1, 1, 2, 2}}> {{ a = {HALF} (x, k) c = {HALF} (a, k)"
        f" d = {TWICE} (c, r, s) e = Concat <axis = 1> (a, d) g = {TWICE} (e, r, s)"
        " y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (g) }",
        [{"h": 8, "w": 12}, {"h": 12, "w": 16}, {"h": 20, "w": 8}, {"h": 64, "w": 40}],
        2,
    ),
    "a height that is used up": (
        f"(float[b, 2, h, w] x) => (float y) <{KERNEL}, int64[3] i = {{0, 1, 3}}>"
        f" {{ a = {HALF} (x, k) c = {HALF} (a, k) l = Shape (c)"
        " s = Gather (l, i) y = Reshape (c, s) }",
        [{"b": 5, "h": 4, "w": 12}, {"b": 3, "h": 3, "w": 9}, {"b": 2, "h": 1, "w": 30}],
        2,
    ),
    "batches of two names": (
        "(float[b, 3] x, float[c, 3] z) => (float y) { y = Concat <axis = 1> (x, z) }",
        [{"b": 2, "c": 2}, {"b": 5, "c": 5}, {"b": 3, "c": 3}],
        2,
    ),
    "a batch of a state": (
        f"(float[t, b, 2] x, float[1, c, 1] h, float[1, d, 1] s) => (float y) <{LSTM}>"
        ' { y, v = LSTM <hidden_size = 1> (x, W, R, "", "", h, s) }',
        [{"t": 3, "b": 2, "c": 2, "d": 2}, {"t": 4, "b": 5, "c": 5, "d": 5}],
        2,
    ),
    "a size of a weight": (
        "(float[m, n] x) => (float y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul (x, w) }",
        [{"m": 2, "n": 3}, {"m": 7, "n": 3}, {"m": 4, "n": 3}],
        3,  # that m is 2, like the columns of the weight, does not help
    ),
    "an axis of a cubic resize": (
        "(float[b, 1, n, 4] x) => (float y) <float[0] r = {}, float[4] s = {1, 1, 1.5, 1.5}>"
        ' { y = Resize <mode = "cubic"> (x, r, s) }',
        [{"b": 2, "n": 4}, {"b": 5, "n": 4}, {"b": 3, "n": 4}],
        1,
    ),
    "a row that repeats": (
        "(float[m, n] x, float[p, n] z) => (float y) { y = Mul (x, z) }",
        [{"m": 1, "n": 3, "p": 4}, {"m": 1, "n": 5, "p": 2}, {"m": 1, "n": 2, "p": 7}],
        2,
    ),
    "a grid of floats": (
        "(float[m, n] x) => (float y) <float zero = {0}, float one = {1}, int64 i = {1}> {"
        " s = Shape (x) g = Gather (s, i) f = Cast <to = 1> (g) r = Range (zero, f, one)"
        " y = Add (x, r) }",
        [{"m": 2, "n": 4}, {"m": 3, "n": 9}, {"m": 5, "n": 2}],
        1,
    ),
}


def model_of(text: str, backend: str = "ref") -> tuple[OnnxModel, Any]:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> g {text}')
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    peer = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return gptrs_onnx.from_proto(proto, backend), peer


def arrays_of(model: OnnxModel, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(sum(sizes.values()))
    return {
        name: rng.normal(size=[sizes.get(str(dim), dim) for dim in each.shape or ()]).astype(
            np.float32
        )
        for name, each in model.inputs.items()
    }


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that says how many conversions have begun."""
    count = 0
    begin = Conversion.__init__

    def counted(self: Conversion, *arguments: Any) -> None:
        nonlocal count
        count += 1
        begin(self, *arguments)

    monkeypatch.setattr(Conversion, "__init__", counted)
    return lambda: count


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_learnt_in_one_call_serves_the_others(
    name: str, conversions: Callable[[], int]
) -> None:
    text, calls, expected = GRAPHS[name]
    model, peer = model_of(text)
    for sizes in [*calls, calls[0]]:
        arrays = arrays_of(model, sizes)
        found, wanted = model(**arrays), peer.run(None, arrays)
        for each, right in zip(found.values(), wanted, strict=False):
            np.testing.assert_allclose(each, right, rtol=1e-5, atol=1e-5, err_msg=str(sizes))
    assert conversions() == expected


def test_kernels_and_schedules_of_images_follow_from_one_program(
    conversions: Callable[[], int],
) -> None:
    numba = pytest.importorskip(
        "gptrs_backend_numba.backend", reason="schedules are those of numba"
    )
    text, calls, expected = GRAPHS["a pyramid that needs even sizes"]
    model, peer = model_of(text, numba.create(1))
    for sizes in [*calls, *calls]:
        arrays = arrays_of(model, sizes)
        np.testing.assert_allclose(model(**arrays)["y"], peer.run(None, arrays)[0], 1e-5, 1e-5)
    assert conversions() == expected


def test_other_sizes_than_those_of_a_fact_find_their_own(conversions: Callable[[], int]) -> None:
    model, peer = model_of("(float[m, n] x, float[p, n] z) => (float y) { y = Mul (x, z) }")
    calls = [(3, 3), (1, 4), (3, 1), (1, 1), (5, 5), (1, 7), (6, 1)]
    for m, p in [*calls, *calls]:
        arrays = arrays_of(model, {"m": m, "n": 2, "p": p})
        np.testing.assert_array_equal(model(**arrays)["y"], peer.run(None, arrays)[0])
    assert conversions() <= 7  # equal, or one of the two repeats: each is found once


def test_an_error_names_what_other_calls_had() -> None:
    model, _ = model_of(GRAPHS["a size of a weight"][0])
    model(np.ones((2, 3), np.float32))
    with pytest.raises(GptrsError, match=r"axis 1 of size 5 with 0 of 3") as caught:
        model(np.ones((2, 5), np.float32))
    assert caught.value.hint == "other calls had sizes where `n = 3`"
    assert model(np.ones((4, 3), np.float32))["y"].shape == (4, 2)


N, M, K = map(symbol, range(3))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (N, M, ["m = n"]),
        (N, 3, ["n = 3"]),
        (2 * ((N + 31) // 32), (N + 15) // 16, ["floor((n+15)/16) = 2*floor((n+31)/32)"]),
        (N * M, 0, None),
        (3 * ((N + 1) // 2) * M, 3 * M, ["floor((n+1)/2) = 1"]),
        (2 * N, 2 * M, ["m = n"]),
        (N * M, K * K, None),
        (N + M, K, []),
    ],
)
def test_dims_become_equal_by_the_least_that_does(a: int, b: int, words: list[str] | None) -> None:
    found = learn(Facts(), a, b)
    assert (found and found.in_words(["n", "m", "k"])) == words


def test_equal_sizes_have_one_name_however_they_were_learnt() -> None:
    found = learn(Facts(), M, K)
    assert found is not None
    found = learn(found, N, K)
    assert found is not None
    assert [found.name(number, "abc") for number in range(3)] == ["a", "a", "a"]
    assert found.hold({0: 2, 1: 2, 2: 2})
    assert not found.hold({0: 2, 1: 2, 2: 3})
    assert not found.hold({0: 0, 1: 0, 2: 0})  # symbols are at least 1


def test_names_of_sizes_become_identifiers_that_differ() -> None:
    assert identifiers(["a.b", "a_b", "a b", "7", "für"]) == ["a_b", "a_b_2", "a_b_3", "_7", "f_r"]
