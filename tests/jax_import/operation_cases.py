"""Small functions of JAX, one or more for each operation of StableHLO that is converted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax


@dataclass(frozen=True)
class Case:
    """A function, what it is called with, and how near the results must be."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    tolerance: float = 1e-5

    def __str__(self) -> str:
        return self.name


_DICE = np.random.default_rng(7)
X = _DICE.standard_normal((3, 4)).astype(np.float32)
Y = _DICE.standard_normal((3, 4)).astype(np.float32)
POSITIVE = np.abs(X) + np.float32(0.1)
SPECIAL = np.float32([-np.inf, -2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 3e9, np.inf, np.nan, 7])
WHOLE = np.int32([-(2**31), -77, -1, 0, 1, 5, 1000, 2**31 - 1])
OTHER = np.int32([3, -5, 0, 2, -1, 7, 31, -1])
NATURAL = np.uint32([0, 1, 7, 2**31, 2**32 - 1, 255, 12345, 3])
IMAGE = _DICE.standard_normal((2, 7, 6, 4)).astype(np.float32)
KERNEL = _DICE.standard_normal((3, 2, 4, 6)).astype(np.float32)
LINE = _DICE.standard_normal((2, 9, 4)).astype(np.float32)
CUBE = _DICE.standard_normal((1, 4, 5, 4, 2)).astype(np.float32)

_UNARY = {
    "abs": lax.abs,
    "cbrt": lax.cbrt,
    "ceil": lax.ceil,
    "cosine": lax.cos,
    "erf": lax.erf,
    "erf_inv": lambda x: lax.erf_inv(x / 9),
    "erfc": lax.erfc,
    "exponential": lax.exp,
    "exponential_minus_one": lax.expm1,
    "floor": lax.floor,
    "is_finite": lax.is_finite,
    "lgamma": lambda x: lax.lgamma(jnp.abs(x) + 0.5),
    "logistic": lax.logistic,
    "negate": lax.neg,
    "round_afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "sign": lax.sign,
    "sine": lax.sin,
    "square": lax.square,
    "tan": lax.tan,
    "tanh": lax.tanh,
    "asinh": lax.asinh,
    "atan": lax.atan,
    "cosh": lax.cosh,
    "sinh": lax.sinh,
    "reduce_precision": lambda x: lax.reduce_precision(x, 8, 7),
    "gelu": partial(jax.nn.gelu, approximate=False),
}
_POSITIVE = {
    "log": lax.log,
    "log_plus_one": lax.log1p,
    "rsqrt": lax.rsqrt,
    "sqrt": lax.sqrt,
    "power": lambda x: lax.pow(x, 1.7 * x),
    "integer_pow": lambda x: x**5,
}
_BINARY = {
    "add": lax.add,
    "subtract": lax.sub,
    "multiply": lax.mul,
    "divide": lax.div,
    "remainder": lax.rem,
    "maximum": lax.max,
    "minimum": lax.min,
    "atan2": lax.atan2,
    "compare": lambda x, y: (x < y, x <= y, x == y, x >= y, x > y, x != y),
    "select": lambda x, y: jnp.where(x > 0, x, y),
    "select_scalar": lambda x, y: lax.select(x[0, 0] > 0, x, y),
    "clamp": lambda x, y: (lax.clamp(-0.5, x, 0.5), lax.clamp(y, x, y + 1)),
    "complex_abs": lambda x, y: jnp.abs(lax.complex(x, y) * np.float32([0, 1, 1e-30, 1e30])),
    "complex_nan": lambda x, y: jnp.where(x > 0, lax.complex(x, y), np.complex64(np.nan)).real,
    "complex": lambda x, y: jnp.real(lax.complex(x, y) * lax.complex(y, x)),
    "dot_general": lambda x, y: (x @ y.T, jnp.einsum("ij,ij->i", x, y), jnp.tensordot(x, y, 2)),
}
_INTEGERS = {
    "integer_divide": lambda a, b: (lax.div(a, b), lax.rem(a, b)),
    "floor_divide": lambda a, b: (a // b, a % b),
    "shifts": lambda a, b: (
        lax.shift_left(a, b),
        lax.shift_right_logical(a, b),
        lax.shift_right_arithmetic(a, b),
    ),
    "bits": lambda a, b: (a & b, a | b, a ^ b, ~a, lax.population_count(a), lax.clz(a)),
    "wrapping": lambda a, b: (a * b, a + b, -a, jnp.abs(a), jnp.sign(a)),
}
_LAYOUT = {
    "reshape": lambda x: x.reshape(2, 6),
    "transpose": lambda x: x.T,
    "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (2, 4, 3), (2, 1)) if x.ndim > 2 else x,
    "broadcast": lambda x: jnp.broadcast_to(x[None], (2, 3, 4)) + x[:, :1],
    "concatenate": lambda x: jnp.concatenate([x, x[:1], x * 2], 0),
    "slice": lambda x: (x[1:, ::2], lax.slice(x, (0, 1), (3, 4), (2, 2))),
    "reverse": lambda x: jnp.flip(x, 1),
    "pad": lambda x: lax.pad(x, jnp.float32(1.5), ((1, 2, 1), (-1, -1, 0))),
    "pad_computed": lambda x: lax.pad(x, x[0, 0], ((0, -1, 2), (2, 0, 0))),
    "pad_nan": lambda x: lax.pad(x, jnp.float32(np.nan), ((1, 0, 0), (0, 1, 0))),
    "iota": lambda x: x + lax.broadcasted_iota(np.float32, (3, 4), 1),
    "tile": lambda x: jnp.tile(x, (2, 3)),
}
_REDUCE = {
    "reduce": lambda x: (x.sum(0), x.prod(1), x.max(), x.min(1), x.mean(), x.var(0)),
    "reduce_truth": lambda x: ((x > 0).any(0), (x > 0).all(1), (x > 0).sum()),
    "reduce_bits": lambda x: lax.reduce((x * 9).astype(np.int32), 0, lax.bitwise_or, (0,)),
    "reduce_started": lambda x: lax.reduce(x, np.float32(2), lax.add, (0,)),
    "reduce_xor": lambda x: lax.reduce((x * 9).astype(np.int32), 1, lax.bitwise_xor, (1,)),
    "reduce_own": lambda x: lax.reduce(x, np.float32(0), lambda a, b: a * 0.5 + b, (1,)),
    "argmax": lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argmax(x)),
    "argmax_integers": lambda x: jnp.argmax((x * 3).astype(np.int32), 0),
    "logsumexp": lambda x: jax.nn.logsumexp(x, 1),
    "cumulative": lambda x: (
        jnp.cumsum(x, 0),
        jnp.cumprod(x, 1),
        lax.cummax(x, 0, reverse=True),
        lax.cummin(x, 1),
        lax.cumlogsumexp(x, 1),
    ),
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "pairs": lambda x: lax.reduce(
        (x, x * 2),
        (np.float32(0), np.float32(1)),
        lambda a, b: (a[0] + b[0], a[1] * b[1] + a[0]),
        (0,),
    ),
    "map": lambda x: lax.map(lambda row: row.sum(), x),
}
_INDEXING = {
    "gather_rows": lambda x: x[jnp.array([2, 0, 0])],
    "gather_columns": lambda x: x[:, jnp.array([1, 1, 3])],
    "gather_points": lambda x: x[jnp.array([0, 1]), jnp.array([2, 3])],
    "gather_negative": lambda x: x[jnp.array([-1, -3])],
    "gather_outside": lambda x: x.at[jnp.array([9, 1])].get(mode="fill", fill_value=5),
    "gather_clamped": lambda x: x.at[jnp.array([9, -9])].get(mode="clip"),
    "take_along_axis": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
    "gather_windows": lambda x: jax.vmap(lambda j: lax.dynamic_slice(x, (j, j), (2, 3)))(
        jnp.array([0, 1, 5])
    ),
    "gather_batched": lambda x: jax.vmap(lambda r, j: lax.dynamic_slice(r, (j,), (2,)))(
        x, jnp.array([0, 9, 1])
    ),
    "dynamic_slice": lambda x: lax.dynamic_slice(x, ((x[0, 0] * 5).astype(int), 7), (2, 2)),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(x, x[:2, :2] * 3, (5, 1)),
    "scatter": lambda x: x.at[jnp.array([0, 2])].set(7.0),
    "scatter_add": lambda x: x.at[jnp.array([0, 0, 5]), 1].add(2.0),
    "scatter_sub": lambda x: x.at[jnp.array([0, 0, 1])].add(-x),
    "scatter_apply": lambda x: x.at[jnp.array([1])].multiply(x[:1]),
    "scatter_extreme": lambda x: (
        x.at[:, jnp.array([1, 2])].max(0.3),
        x.at[:, jnp.array([1, 1])].min(-0.3),
    ),
    "scatter_truth": lambda x: (x > 0).at[jnp.array([0, 2])].set(True),
    "scatter_windows": lambda x: lax.scatter_add(
        x,
        jnp.array([[0, 1], [2, 0]]),
        jnp.ones((2, 1, 2), np.float32),
        lax.ScatterDimensionNumbers((1, 2), (), (0, 1)),
    ),
    "scatter_partly_outside": lambda x: lax.scatter_add(
        x,
        jnp.array([[0, 3], [2, -1], [1, 2]]),
        jnp.ones((3, 1, 2), np.float32),
        lax.ScatterDimensionNumbers((1, 2), (), (0, 1)),
    ),
    "segment_sum": lambda x: jax.ops.segment_sum(x, jnp.array([1, 0, 1]), 3),
    "one_hot": lambda x: jax.nn.one_hot(jnp.argmax(x, 1), 4),
}
_SORT = {
    "sort": lambda x: (jnp.sort(x, 0), jnp.sort(x, 1, descending=True)),
    "argsort": lambda x: (jnp.argsort(x, 1), jnp.argsort(x, 0, descending=True)),
    "sort_keys": lambda x: lax.sort(((x * 2).astype(np.int32), x, -x), dimension=1, num_keys=2),
    "sort_truth": lambda x: jnp.sort(x > 0, 1),
    "top_k": lambda x: lax.top_k(x, 2),
    "approximate_top_k": lambda x: (
        lax.approx_max_k(x, 3),
        lax.approx_min_k(x, 2, reduction_dimension=0),
    ),
    "median": lambda x: jnp.median(x, 1),
    "unique": lambda x: jnp.unique((x * 2).astype(np.int32), size=5),
    "searchsorted": lambda x: jnp.searchsorted(jnp.sort(x[0]), x[1]),
}
_CONTROL = {
    "while": lambda x: lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 1.5), (0, x)),
    "while_closing": lambda x: lax.fori_loop(0, 3, lambda i, s: s + x[i], x[0]),
    "scan": lambda x: lax.scan(lambda c, a: (c + a, c * a), jnp.zeros(4), x),
    "scan_reverse": lambda x: lax.scan(lambda c, a: (c + a, c), jnp.zeros(4), x, reverse=True),
    "cond": lambda x: lax.cond(x[0, 0] > 0, lambda a: a + 1, lambda a: a - 1, x),
    "switch": lambda x: [
        lax.switch(x[0, 0].astype(int) + k, [lambda a: a, lambda a: a * 2, lambda a: a * 3], x)
        for k in (-5, 0, 1, 9)
    ],
    "call": lambda x: jax.jit(lambda a: jax.jit(jnp.tanh)(a) + 1)(x),
    "optimization_barrier": lambda x: lax.optimization_barrier((x, x * 2)),
    "random": lambda x: jax.random.normal(jax.random.key(3), (5,)) + x[0, 0],
    "random_bits": lambda x: (
        lax.rng_bit_generator(x[0].view(np.uint32), (3, 3)),
        lax.rng_bit_generator(x[1].view(np.uint32), (5,), dtype="uint8"),
        jax.random.uniform(jax.random.key(3, impl="rbg"), (5,)),
    ),
    "random_integers": lambda x: jax.random.randint(jax.random.key(1), (6,), 0, 100) + x[0, 0],
    "grad": jax.grad(lambda x: jnp.sum(jnp.tanh(x @ x.T) ** 2)),
}


def _windows(kind: Callable[..., Any], start: float, **options: Any) -> Callable[..., Any]:
    return lambda x: lax.reduce_window(x, np.float32(start), kind, **options)


def _pool_gradient(kind: Callable[..., Any], start: float, **options: Any) -> Callable[..., Any]:
    pool = _windows(kind, start, **options)
    return jax.grad(lambda x: jnp.sum(pool(jnp.round(2 * x)) * pool(x)))  # of equal elements, too


_WINDOWS = {
    "max_pool_gradient": _pool_gradient(
        lax.max,
        -np.inf,
        window_dimensions=(1, 2, 3, 1),
        window_strides=(1, 2, 1, 1),
        padding="SAME",
    ),
    "min_pool_gradient": _pool_gradient(
        lax.min,
        np.inf,
        window_dimensions=(1, 2, 2, 1),
        window_strides=(1, 3, 1, 1),
        padding=((0, 0), (3, 0), (0, 2), (0, 0)),  # windows of padding alone
    ),
    "max_pool": _windows(
        lax.max,
        -np.inf,
        window_dimensions=(1, 2, 3, 1),
        window_strides=(1, 2, 1, 1),
        padding="SAME",
    ),
    "sum_pool": _windows(
        lax.add, 0, window_dimensions=(1, 3, 2, 1), window_strides=(1, 1, 2, 1), padding="VALID"
    ),
    "dilated_pool": _windows(
        lax.min,
        np.inf,
        window_dimensions=(1, 2, 2, 1),
        window_strides=(1, 1, 1, 1),
        padding=((0, 0), (1, 0), (0, 2), (0, 0)),
        window_dilation=(1, 2, 3, 1),
    ),
    "base_dilated_pool": _windows(
        lax.add,
        0,
        window_dimensions=(1, 2, 2, 1),
        window_strides=(1, 1, 2, 1),
        padding=((0, 0), (1, 0), (0, 1), (0, 0)),
        base_dilation=(1, 2, 3, 1),
    ),
    "pool_started": _windows(
        lax.add, 2.5, window_dimensions=(1, 2, 1, 1), window_strides=(1, 2, 1, 1), padding="VALID"
    ),
}


def _convolution(numbers: tuple[str, str, str], **options: Any) -> Callable[..., Any]:
    given = {"window_strides": (1,) * (len(numbers[0]) - 2), "padding": "SAME"} | options
    return lambda x, k: lax.conv_general_dilated(x, k, dimension_numbers=numbers, **given)


_NHWC, _NWC = ("NHWC", "HWIO", "NHWC"), ("NWC", "WIO", "NWC")
_CONVOLUTIONS = [
    Case("convolution", _convolution(_NHWC), (IMAGE, KERNEL)),
    Case(
        "convolution_first",
        _convolution(("NCHW", "OIHW", "NCHW"), window_strides=(2, 1)),
        (IMAGE.transpose(0, 3, 1, 2), KERNEL.transpose(3, 2, 0, 1)),
    ),
    Case(
        "convolution_groups", _convolution(_NHWC, feature_group_count=2), (IMAGE, KERNEL[:, :, :2])
    ),
    Case(
        "convolution_depthwise",
        _convolution(_NHWC, feature_group_count=4),
        (IMAGE, np.concatenate([KERNEL[:, :, :1], KERNEL[:, :, 1:2, :2]], 3)),
    ),
    Case("convolution_dilated", _convolution(_NHWC, rhs_dilation=(2, 1)), (IMAGE, KERNEL)),
    Case(
        "convolution_transposed",
        _convolution(_NHWC, lhs_dilation=(2, 3), padding=((1, 2), (0, 1))),
        (IMAGE, KERNEL),
    ),
    Case("convolution_trimmed", _convolution(_NHWC, padding=((-1, 2), (1, -1))), (IMAGE, KERNEL)),
    Case("convolution_batches", _convolution(_NHWC, batch_group_count=2), (IMAGE, KERNEL)),
    Case("convolution_1d", _convolution(_NWC), (LINE, KERNEL[:, 0])),
    Case(
        "convolution_3d",
        _convolution(("NDHWC", "DHWIO", "NDHWC"), padding="VALID"),
        (CUBE, KERNEL.reshape(3, 2, 2, 2, 6)),
    ),
    Case(
        "convolution_bf16",
        _convolution(_NWC, preferred_element_type=np.float32),
        (LINE.astype(ml_dtypes.bfloat16), KERNEL[:, 0].astype(ml_dtypes.bfloat16)),
    ),
    Case(
        "convolution_gradient",
        jax.grad(lambda x, k: jnp.sum(_convolution(_NHWC)(x, k) ** 2), 1),
        (IMAGE, KERNEL),
        1e-3,
    ),
]

_CONVERSIONS = [
    Case(
        "convert_float",
        lambda x: [x.astype(t) for t in (np.int8, np.uint8, np.int32, bool)],
        (np.float32([-3.7, -0.5, 0.0, 0.5, 2.5, 100.4]),),
    ),
    Case(
        "convert_integer",
        lambda x: [
            x.astype(t) for t in (np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.float32)
        ],
        (WHOLE,),
    ),
    Case(
        "convert_unsigned",
        lambda x: [x.astype(t) for t in (np.int8, np.int16, np.int32, np.float32)],
        (NATURAL,),
    ),
    Case(
        "convert_narrow",
        lambda x: [
            x.astype(t).astype(np.float32)
            for t in (jnp.bfloat16, np.float16, jnp.float8_e4m3fn, jnp.float8_e5m2)
        ],
        (X,),
        1e-6,
    ),
    Case(
        "bitcast", lambda x: [lax.bitcast_convert_type(x, t) for t in (np.int32, np.uint32)], (X,)
    ),
    Case("bitcast_narrow", lambda x: lax.bitcast_convert_type(x, np.uint8), (X,)),
    Case(
        "bitcast_wide",
        lambda x: lax.bitcast_convert_type(x.astype(np.uint8).reshape(2, 4), np.int32),
        (WHOLE,),
    ),
    Case("total_order", lambda x: jnp.sort(x), (SPECIAL,)),
    Case("special_rounding", lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), (SPECIAL,)),
    Case("bf16_constant", lambda x: x @ jnp.asarray(Y.T, jnp.bfloat16).astype(np.float32), (X,)),
    Case(
        "int4_constant", lambda x: x + jnp.asarray([-8, 3, 7, 0], jnp.int4).astype(np.float32), (X,)
    ),
    Case(
        "mixed_dot",
        lambda x: lax.dot_general(
            x.astype(jnp.bfloat16),
            x.astype(jnp.bfloat16),
            (((1,), (1,)), ((), ())),
            preferred_element_type=np.float32,
        ),
        (X,),
    ),
    Case(
        "integer_dot",
        lambda x: lax.dot_general(
            x.astype(np.int8),
            x.astype(np.int8),
            (((0,), (0,)), ((), ())),
            preferred_element_type=np.int32,
        ),
        (WHOLE,),
    ),
]

_SQUARE = np.float32(_DICE.standard_normal((2, 3, 3)))
_ALGEBRA = {
    "fft": lambda x: [jnp.fft.fft(x), jnp.fft.ifft2(x)],
    "rfft": lambda x: [jnp.fft.rfftn(x), jnp.fft.irfft(jnp.fft.rfft(x[..., :3]), 3)],
    "cholesky": lambda x: [
        jnp.linalg.cholesky(x @ x.mT + jnp.eye(3)),
        jnp.linalg.cholesky(x @ x.mT + jnp.eye(3), upper=True),
        jnp.linalg.cholesky(-x @ x.mT),
    ],
    "lu": lambda x: [lax.linalg.lu(x), lax.linalg.lu(x[:, :2]), lax.linalg.lu(x[..., :2])],
    "lu_of_singular": lambda x: lax.linalg.lu(x.at[:, 1].set(2 * x[:, 0]).at[1].set(0)),
    "solve": lambda x: [jnp.linalg.solve(x, x[:, :, :2]), jnp.linalg.inv(x), jnp.linalg.det(x)],
    "triangular_solve": lambda x: [
        lax.linalg.triangular_solve(
            x, x[..., :2] if left else x[..., :2, :],
            left_side=left, lower=lower, transpose_a=turned, unit_diagonal=not turned,
        )
        for left in (True, False) for lower in (True, False) for turned in (True, False)
    ],
    "gradient_of_solve": jax.grad(lambda x: jnp.linalg.solve(x, x).sum()),
}  # fmt: skip

CASES = [
    *(Case(name, f, (X,)) for name, f in _UNARY.items()),
    *(Case(name, f, (POSITIVE,)) for name, f in _POSITIVE.items()),
    *(Case(name, f, (X, Y)) for name, f in _BINARY.items()),
    *(Case(name, f, (WHOLE, OTHER)) for name, f in _INTEGERS.items()),
    *(Case(f"{name}_unsigned", f, (NATURAL, NATURAL[::-1])) for name, f in _INTEGERS.items()),
    *(
        Case(name, f, (X,))
        for table in (_LAYOUT, _REDUCE, _INDEXING, _SORT, _CONTROL)
        for name, f in table.items()
    ),
    *(Case(name, f, (IMAGE,)) for name, f in _WINDOWS.items()),
    *_CONVOLUTIONS,
    *_CONVERSIONS,
    *(Case(name, f, (_SQUARE,), 3e-4) for name, f in _ALGEBRA.items()),
]
