"""The rule of every op against differences in f64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import gptrs
from gptrs.capture import primitives as P
from gptrs.differentiation import functions as functions  # registers the rules
from gptrs.differentiation.rules import CONSTANT, RULES
from gptrs.ir import dtypes
from gptrs.ir.op import OPS
from gptrs.ir.ops.control_flow import While
from gptrs.ir.ops.custom_call import CustomCall
from support.differences import require_slopes

pytestmark = pytest.mark.usefixtures("on_reference")

_random = np.random.default_rng(0)
Case = tuple[Callable[..., Any], Sequence[np.ndarray]]


def n(*shape: int) -> np.ndarray:
    """Normal numbers."""
    return _random.standard_normal(shape)


def pos(*shape: int) -> np.ndarray:
    """Numbers above 1/2."""
    return 0.5 + np.abs(n(*shape))


def idx(high: int, *shape: int) -> np.ndarray:
    """Indices below `high`, repeated ones among them."""
    return _random.integers(0, high, shape)


def zeroed(*shape: int, count: int = 2) -> np.ndarray:
    """Normal numbers with some zeros."""
    x = n(*shape)
    x.reshape(-1)[_random.choice(x.size, count, replace=False)] = 0
    return x


def _unary(name: str, x: np.ndarray) -> tuple[str, Case]:
    return name, (getattr(P, name), [x])


ELEMENTWISE: dict[str, Case] = dict(
    [
        *(_unary(each, n(3, 4)) for each in ("neg", "abs", "exp", "expm1", "sin", "cos", "tanh")),
        *(_unary(each, n(3, 4)) for each in ("logistic", "erf", "reciprocal")),
        *(_unary(each, pos(3, 4)) for each in ("log", "log1p", "sqrt", "rsqrt")),
        *(
            (each, (getattr(P, each), [n(3, 4), pos(3, 4)]))
            for each in ("add", "sub", "mul", "div", "maximum", "minimum")
        ),
        ("rem", (P.rem, [5 * n(3, 4), n(3, 4) + np.sign(n(3, 4))])),
        ("pow", (P.pow, [pos(3, 4), n(3, 4)])),
        ("select", (lambda a, b: P.select(P.compare(a, b, "lt"), a, b), [n(3, 4), n(3, 4)])),
        ("clamp", (P.clamp, [n(3, 9), np.full((3, 9), -0.5), np.full((3, 9), 0.6)])),
        ("clamp, crossed", (P.clamp, [n(3, 4), np.full((3, 4), 0.5), np.full((3, 4), -0.6)])),
        ("cast", (lambda x: P.cast(x, dtypes.f64), [n(3, 4)])),
    ]
)
LAYOUT: dict[str, Case] = {
    "reshape": (lambda x: P.reshape(x, (4, 3)), [n(2, 6)]),
    "transpose": (lambda x: P.transpose(x, (2, 0, 1)), [n(2, 3, 4)]),
    "broadcast_to": (lambda x: P.broadcast_to(x, (5, 2, 3, 4)), [n(2, 1, 4)]),
    "broadcast_to empty": (lambda x: P.broadcast_to(x, (0, 3)), [n(1, 3)]),
    "slice": (lambda x: P.slice(x, (1, 0), (2, 3), (3, 2)), [n(6, 7)]),
    "slice empty": (lambda x: P.slice(x, (6, 1), (0, 3)), [n(6, 7)]),
    "concat": (lambda x, y: P.concat([x, y, x], 1), [n(3, 2), n(3, 4)]),
    "pad": (lambda x: P.pad(x, (1, -1), (-2, 3), (2, 1), 4.0), [n(4, 5)]),
    "pad away": (lambda x: P.pad(x, (-5,), (7,)), [n(3)]),
    "pad empty": (lambda x: P.pad(x, (2,), (1,), (3,)), [n(0)]),
    "tile": (lambda x: P.tile(x, (2, 3)), [n(3, 4)]),
    "tile none": (lambda x: P.tile(x, (0, 3)), [n(3, 4)]),
    "reverse": (lambda x: P.reverse(x, (0, 2)), [n(3, 4, 2)]),
}
REDUCTION: dict[str, Case] = {
    **{
        f"reduce {kind} {axes} {keep}": (
            lambda x, k=kind, a=axes, d=keep: P.reduce(x, k, a, d),
            [zeroed(3, 4, 2) if kind == "prod" else n(3, 4, 2)],
        )
        for kind in ("sum", "prod", "max", "min")
        for axes, keep in (((0, 2), False), ((1,), True), ((), False), ((0, 1, 2), False))
    },
    **{
        f"cumulative {kind} {reverse} {exclusive}": (
            lambda x, k=kind, r=reverse, e=exclusive: P.slice(
                P.cumulative(x, k, 1, r, e), (0, int(e and not r)), (3, 6 - e)
            ),
            [zeroed(3, 6) if kind == "prod" else n(3, 6)],
        )
        for kind in ("sum", "prod", "max", "min")
        for reverse in (False, True)
        for exclusive in (False, True)
    },
    "layer_norm": (lambda x, a, b: P.layer_norm(x, a, b, 1e-3, 1), [n(3, 5, 2), n(5), n(5)]),
    "sum of nothing": (lambda x: P.reduce(x, "sum", (0,)), [n(0, 3)]),
    "max of an empty axis": (lambda x: P.reduce(x, "prod", (0,)), [n(0, 3)]),
}
PRODUCTS: dict[str, Case] = {
    "batch, permuted": (
        lambda x, y: P.dot_general(x, y, ([3, 1], [0, 2]), ([2, 0], [3, 1])),
        [n(2, 3, 4, 5), n(5, 2, 3, 4)],
    ),
    "free first": (lambda x, y: P.dot_general(x, y, ([0], [1])), [n(4, 3, 2), n(5, 4)]),
    "matrices": (lambda x, y: P.dot_general(x, y, ([1], [0])), [n(3, 4), n(4, 2)]),
    "transposed": (lambda x, y: P.dot_general(x, y, ([1], [1])), [n(3, 4), n(2, 4)]),
    "vectors": (lambda x, y: P.dot_general(x, y, ([0], [0])), [n(4), n(4)]),
    "outer": (lambda x, y: P.dot_general(x, y, ([], [])), [n(3), n(2, 2)]),
    "over nothing": (lambda x, y: P.dot_general(x, y, ([1], [0])), [n(3, 0), n(0, 2)]),
    "dequantize": (
        lambda q, s, z: P.dequantize(q, s, z, dtypes.f64, 1, 2),
        [idx(9, 3, 4).astype(np.int8), pos(3, 2), idx(3, 3, 2).astype(np.int32)],
    ),
    "dequantize, axis": (
        lambda q, s, z: P.dequantize(q, s, z, dtypes.f64, 0),
        [idx(9, 3, 4).astype(np.int8), pos(3), np.int32(1) * np.ones((), np.int32)],
    ),
    "dequantize_affine": (
        lambda q, s, b: P.dequantize_affine(q, s, b, dtypes.f64, 0, 3),
        [idx(9, 6, 2).astype(np.int8), pos(2, 2), n(2, 2)],
    ),
    "dequantize_affine, one": (
        lambda q, s, b: P.dequantize_affine(q, s, b, dtypes.f64, 1),
        [idx(9, 6, 2).astype(np.int8), pos(), n(2)],
    ),
}
INDEXING: dict[str, Case] = {
    "take": (P.take, [n(5, 3), idx(5, 2, 4)]),
    "take one": (P.take, [n(5, 3), idx(5)]),
    "gather": (lambda x, i: P.gather(x, i, 1), [n(4, 6), idx(6, 3, 9)]),
    "dynamic_slice": (lambda x, s: P.dynamic_slice(x, s, (2, 2)), [n(4, 5), np.array([9, -3])]),
    "dynamic_update_slice": (P.dynamic_update_slice, [n(4, 5), n(2, 2), np.array([1, 9])]),
    **{
        f"scatter_reduce {kind}": (
            lambda x, i, u, k=kind: P.scatter_reduce(x, i, u, 0, k),
            [n(4, 5), idx(4, 7, 3), n(7, 3)],
        )
        for kind in ("add", "replace", "max", "min")
    },
    "scatter_reduce mul": (
        lambda x, i: P.scatter_reduce(
            x, i, gptrs.tensor(np.linspace(-1, 2, 21).reshape(7, 3)), 0, "mul"
        ),
        [n(4, 5), idx(4, 7, 3)],
    ),
    **{
        f"segment_reduce {kind}": (
            lambda x, i, k=kind: P.take(P.segment_reduce(x, i, k, 5), gptrs.tensor([0, 1, 2])),
            [n(9, 2), np.array([0, 1, 2, 1, 4, 0, 0, 2, 1])],
        )
        for kind in ("sum", "max", "min")
    },
    **{
        f"sort {descending} {stable}": (
            lambda x, y, d=descending, s=stable: P.sort([x, y], 0, d, s),
            [n(5, 3), n(5, 3)],
        )
        for descending in (False, True)
        for stable in (False, True)
    },
    "top_k": (lambda x: P.top_k(x, 3, 1), [n(4, 6)]),
    "top_k least": (lambda x: P.top_k(x, 2, 0, False), [n(4, 6)]),
}
WINDOWS: dict[str, Case] = {
    **{
        f"reduce_window {kind} {name}": (
            lambda x, k=kind, g=given: P.reduce_window(x, k, **g),
            [n(7, 6)],
        )
        for kind in ("sum", "max", "min")
        for name, given in {
            "plain": {"window": (2, 3)},
            "strided": {"window": (2, 2), "strides": (3, 2)},
            "padded": {"window": (3, 3), "strides": (2, 1), "padding": ((1, 1), (2, 0))},
            "dilated": {
                "window": (2, 3),
                "strides": (1, 2),
                "dilation": (3, 2),
                "padding": ((0, 1), (2, 2)),
            },
            "too large": {"window": (9, 1)} if kind == "sum" else {"window": (7, 1)},
        }.items()
    },
    "extract_patches": (
        lambda x: P.extract_patches(x, (2, 3), (2, 1), ((1, 0), (1, 2)), (1, 2)),
        [n(2, 5, 6, 3)],
    ),
    "extract_patches, no space": (lambda x: P.extract_patches(x, ()), [n(2, 3)]),
}
CASES = {**ELEMENTWISE, **LAYOUT, **REDUCTION, **PRODUCTS, **INDEXING, **WINDOWS}


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_differences(name: str) -> None:
    function, arrays = CASES[name]
    require_slopes(function, *[np.asarray(each) for each in arrays])


def test_every_op_has_a_rule_or_no_derivative() -> None:
    integers_only = {"not", "and", "or", "xor", "argmax", "argmin", "compare", "is_finite"}
    integers_only |= {"quantize", "requantize", "unpack_bits", "constant", "iota"}
    integers_only |= {name for name in OPS if name.startswith("shift_")}
    missing = {
        name
        for name, op in OPS.items()
        if op not in RULES and op not in CONSTANT and name not in integers_only
    }
    assert missing == {While.name, CustomCall.name}


@pytest.mark.parametrize("name", ["sign", "floor", "ceil", "round_nearest_even", "stop_gradient"])
def test_steps_have_the_gradient_0(name: str) -> None:
    x = gptrs.tensor(n(4))
    found = gptrs.grad(lambda x: P.reduce(P.mul(getattr(P, name)(x), x), "sum", [0]))(x)
    np.testing.assert_array_equal(found.numpy(), getattr(P, name)(x).numpy())
