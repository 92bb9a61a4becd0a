"""Compiled functions of torch against torch: NaN, ties, infinities, empty and strided tensors.

`tools/fuzz_torch.py` compares all functions for all kinds of inputs; here are some of both.
"""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch", reason="these tests run functions of torch")

import fuzz_torch  # noqa: E402
from fuzzing.torch_functions import FUNCTIONS, IMAGES, KINDS, SPACES  # noqa: E402

pytestmark = pytest.mark.long
CHOSEN = (
    *("sign", "adaptive_avg_pool2d", "max_pool2d_indices", "split", "meshgrid", "changed"),
    *("aliased", "scatter_add", "sort", "cumsum", "softmax", "amax", "clamp_tensor"),
)
"""Functions that were wrong, or that are easily wrong."""
EDGES = ("nans", "infinities", "extremes", "ties", "strided", "empty")


def drawn(count: int, seed: int) -> list[str]:
    slow = {*CHOSEN, *IMAGES, *SPACES}  # resizing takes hundreds of operators
    names = [name for name in FUNCTIONS if name not in slow]
    return random.Random(seed).sample(names, count)


@pytest.mark.parametrize("name", [*CHOSEN, *drawn(8, 1)])
def test_functions_on_ref_give_what_torch_gives(name: str) -> None:
    assert fuzz_torch.differences(name, EDGES, "ref", 0) == {}


@pytest.mark.parametrize("name", ["max_pool2d_indices", "adaptive_avg_pool2d"])
def test_functions_on_numba_give_what_torch_gives(name: str) -> None:
    assert fuzz_torch.differences(name, ("nans", "extremes"), "numba", 0) == {}


@pytest.mark.parametrize("name", drawn(3, 2))
def test_functions_of_other_types_give_what_torch_gives(name: str) -> None:
    assert fuzz_torch.differences(name, ("f64", "bf16", "i64", "u8", "i1"), "ref", 0) == {}


@pytest.mark.parametrize(
    ("values", "function"),
    [
        ([2**40 + 5, -(2**33) - 1, 2**31], lambda x: (x.int(), x.to(torch.int8), x.byte())),
        ([5.0, 1e-3, 3.3], lambda x: (x.half() * 1e5, x.bfloat16() * 0.1, 0.1 * x.half())),
        ([-7.0, 9.5, 0.0], lambda x: (x.half() * torch.tensor(0.1), x.bfloat16() / 3.3333)),
        ([-7.0, 9.5, 0.3], lambda x: (x.half() // 0.1, x.half().div(0.1, rounding_mode="trunc"))),
    ],
)
def test_integers_wrap_and_numbers_beside_halves_are_not_rounded(
    values: list[float], function: fuzz_torch.Compiled
) -> None:
    compiled = torch.compile(function, backend="gptrs", options={"backend": "ref"})
    with torch.inference_mode():
        wanted, found = function(torch.tensor(values)), compiled(torch.tensor(values))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_there_are_many_functions_and_kinds() -> None:
    assert len(FUNCTIONS) > 250
    assert {"nans", "ties", "infinities", "empty", "strided"} <= KINDS.keys()


@pytest.mark.parametrize(
    ("wrong", "flaw"),
    [
        (lambda x: x + 1e-2, "not close"),
        (lambda x: x.double(), "dtype"),
        (lambda x: x[:1], "shape"),
        (lambda x: (x, x), "zip"),
        (lambda x: x.add_(1) - 1, "not close"),
        (lambda x: x.where(x.isfinite(), 0), "not close"),
    ],
)
def test_what_differs_is_told(wrong: fuzz_torch.Compiled, flaw: str) -> None:
    told = fuzz_torch.difference(lambda x: x, wrong, [torch.tensor([1.0, torch.nan, torch.inf])])
    assert told is not None
    assert flaw in told


def test_what_torch_refuses_may_be_anything() -> None:
    def refused(x: object) -> object:
        raise RuntimeError(x)

    assert fuzz_torch.difference(refused, lambda x: x, [torch.zeros(2)]) is None
    assert "RuntimeError" in str(fuzz_torch.difference(lambda x: x, refused, [torch.zeros(2)]))
