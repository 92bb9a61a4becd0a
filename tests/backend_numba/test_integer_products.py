"""Products and convolutions of 8-bit integers: exact sums, and what becomes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.errors import UnsupportedError
from gptrs.ir import dtypes, parse_program
from gptrs.ir.attributes import Dictionary
from gptrs.ir.builder import Builder
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.layout import Transpose
from gptrs.ir.program import Function, Program
from gptrs.ir.size_guards import SizeGuards
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.kernels.matmul.integer_ir import INTEGER_ROWS
from gptrs_backend_numba.lowering.code_table import CODE_TABLE
from gptrs_backend_numba.lowering.integer_products import (
    EXTRA,
    INTEGER_CONV2D,
    INTEGER_DEPTHWISE,
    INTEGER_GROUPED,
    INTEGER_PRODUCT,
)
from support.covering import pairs

ARGUMENT, PARAMETER = InputRole.ARGUMENT, InputRole.PARAMETER
AXES = {"contract_lhs": (1,), "contract_rhs": (1,), "batch_lhs": (), "batch_rhs": ()}
NUMPY = {"si8": np.int8, "ui8": np.uint8, "si32": np.int32, "f32": np.float32}


def codes(random: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Numbers of 8 bits, the largest and the least among them."""
    low, high = (-128, 128) if kind == "si8" else (0, 256)
    drawn = random.integers(low, high, shape)
    drawn.flat[: drawn.size // 2] = random.choice([low, high - 1], drawn.size // 2)
    return drawn.astype(NUMPY[kind])


def usual(codes: np.ndarray, random: np.random.Generator, spread: float) -> np.ndarray:
    """Signed codes as weights have them: the largest ones, of `codes`, are few."""
    drawn = np.clip(np.rint(random.standard_normal(codes.shape) * spread), -128, 127)
    kept = random.random(codes.shape) < 1 / codes.size
    return np.where(kept, codes, drawn).astype(np.int8)


def run(
    target: str,
    sides: tuple[np.ndarray, np.ndarray],
    result: TensorType,
    geometry: dict[str, Any],
    extra: Mapping[str, Any],
    *,
    right: InputRole = PARAMETER,
    threads: int = 1,
    **epilogue: Any,
) -> np.ndarray:
    """Run one call."""
    inputs = [*sides, *(np.asarray(extra[name]) for name in EXTRA if name in extra)]
    builder = Builder()
    types = [TensorType(dtypes.from_numpy(each.dtype), each.shape) for each in inputs]
    params = [builder.param(type_) for type_ in types]
    attrs = {name: name in extra for name in EXTRA} | geometry
    attrs |= {"activation": "none", "least": 0.0, "most": 0.0} | epilogue
    call = CustomCall(target, (result,), Dictionary.of(attrs))
    program = Program((Function("main", builder.region(builder.emit(call, *params))),))
    roles = [ARGUMENT, right, *[ARGUMENT] * (len(inputs) - 2)]
    return np.asarray(create(threads).compile(program, roles).run(inputs)[0])


def exact(a: np.ndarray, b: np.ndarray, extra: Mapping[str, Any]) -> np.ndarray:
    """The sums of a [.., K] and b [N, K], by NumPy."""
    left = a.astype(np.int64) - extra.get("zero", 0)
    right = b.astype(np.int64) - np.reshape(extra.get("other_zero", 0), (-1, 1))
    return (left @ right.T + extra.get("term", 0)).astype(np.int32)


def finished(sums: np.ndarray, extra: Mapping[str, Any], kind: str, relu: bool) -> np.ndarray:
    """What a call makes of sums, each step rounded as it says."""
    y = sums.astype(np.float32) * extra.get("scale", np.float32(1))
    y = y + extra.get("bias", np.float32(0))
    y = np.maximum(y, np.float32(0)) if relu else y
    if kind == "f32":
        return y
    y = np.rint(y / extra.get("step", np.float32(1))) + extra.get("middle", np.float32(0))
    return np.clip(y, *LIMITS[kind]).astype(NUMPY[kind])


LIMITS = {"si8": (-127.0, 126.0), "ui8": (3.0, 255.0)}
ZEROS = ("none", "one", "each")


def operands(random: np.random.Generator, zero: bool, other: str, n: int) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if zero:
        extra["zero"] = np.array(random.integers(-128, 256), np.int32)
    if other != "none":
        extra["other_zero"] = random.integers(-128, 256, () if other == "one" else (n,), np.int32)
    return extra


SIZES = ((1, 4, 1), (3, 7, PANEL), (INTEGER_ROWS + 1, 64, PANEL + 3), (100, 130, 70), (2, 1, 5))


@pytest.mark.paths
@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("left", "right", "zero", "other", "term", "size"),
    pairs(("si8", "ui8"), ("si8", "ui8"), (True, False), ZEROS, (True, False), range(5)),
)
def test_sums_are_exact(
    left: str, right: str, zero: bool, other: str, term: bool, size: int
) -> None:
    m, k, n = SIZES[size]
    random = np.random.default_rng(size)
    a, b = codes(random, (m, k), left), codes(random, (n, k), right)
    extra = operands(random, zero, other, n)
    if term:
        extra["term"] = random.integers(-(2**31), 2**31, n).astype(np.int32)
    want = exact(a, b, extra)
    result = TensorType(dtypes.si32, (m, n))
    for role in (PARAMETER, ARGUMENT):
        found = run(INTEGER_PRODUCT, (a, b), result, AXES, extra, right=role, threads=2)
        np.testing.assert_array_equal(found, want)
    turned = {**AXES, "contract_lhs": (0,), "contract_rhs": (0,)}
    both = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
    np.testing.assert_array_equal(run(INTEGER_PRODUCT, both, result, turned, extra), want)


@pytest.mark.paths
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_of_the_largest_codes_do_not_saturate(rows: int) -> None:
    k, n = 3 * 64 + 7, 2 * PANEL + 1
    b = codes(np.random.default_rng(rows), (n, k), "si8")
    b[:PANEL], b[PANEL] = -128, 127
    a = codes(np.random.default_rng(k), (rows, k), "ui8")
    for left in (a, np.full_like(a, 255), np.full_like(a, 15), np.full_like(a, 240)):
        found = run(INTEGER_PRODUCT, (left, b), TensorType(dtypes.si32, (rows, n)), AXES, {})
        np.testing.assert_array_equal(found, exact(left, b, {}))


@pytest.mark.paths
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_neighbours_that_are_too_large_for_sums_of_two_are_exact(rows: int) -> None:
    """Panels with none of them, as many as find room, and one more; also without room for all."""
    k, random = 8 * 64, np.random.default_rng(rows)
    b = usual(codes(random, (5 * PANEL, k), "si8"), random, 15).clip(-50, 50)
    for panel, steps in ((1, 1), (2, 6), (3, 7)):
        for step in range(steps):
            sign, at = (-1) ** step, 4 * (60 * step // 4) + 2 * (step % 2)
            b[panel * PANEL + step, at : at + 2] = 127 if sign > 0 else -128
    b[4 * PANEL] = -128
    a = codes(random, (rows, k), "ui8")
    for left in (a, np.full_like(a, 255)):
        for extra in ({}, {"zero": np.int32(3), "other_zero": np.int32(-9)}):
            result = TensorType(dtypes.si32, (rows, len(b)))
            found = run(INTEGER_PRODUCT, (left, b), result, AXES, extra)
            np.testing.assert_array_equal(found, exact(left, b, extra))


@pytest.mark.paths
def test_batches_of_products() -> None:
    random = np.random.default_rng(3)
    a, b = codes(random, (2, 9, 3, 20), "ui8"), codes(random, (3, 2, 20, 37), "si8")
    axes = {"batch_lhs": (0, 2), "batch_rhs": (1, 0), "contract_lhs": (3,), "contract_rhs": (2,)}
    found = run(
        INTEGER_PRODUCT, (a, b), TensorType(dtypes.si32, (2, 3, 9, 37)), axes, {}, right=ARGUMENT
    )
    want = np.einsum("bihk,hbkj->bhij", a.astype(np.int32), b.astype(np.int32))
    np.testing.assert_array_equal(found, want)


@pytest.mark.paths
def test_codes_of_numbers_beyond_f32() -> None:
    n = 2 * PANEL + 3
    a, b = np.full((9, 8), 200, np.uint8), np.ones((n, 8), np.int8)
    scale = np.full(n, 0.01, np.float32)
    scale[[0, 1, 2, n - 1]] = np.inf, np.nan, 3e38, -3e38
    extra = {"scale": scale, "step": np.float32(0.5), "middle": np.float32(3)}
    for part in (slice(None), slice(3, 3 + PANEL)):  # with such numbers, and without
        own = {**extra, "scale": scale[part]}
        b_part = b[part]
        result = TensorType(dtypes.ui8, (9, len(b_part)))
        found = run(INTEGER_PRODUCT, (a, b_part), result, AXES, own, least=0.0, most=255.0)
        with np.errstate(over="ignore"):
            want = np.rint(np.float32(1600) * own["scale"] / own["step"]) + 3
        want = np.where(np.isnan(want), 0, np.clip(want, 0, 255)).astype(np.uint8)
        np.testing.assert_array_equal(found, np.broadcast_to(want, found.shape))


@pytest.mark.paths
@pytest.mark.parametrize(
    ("kind", "scale", "bias", "relu", "step", "middle"),
    pairs(("f32", "si8", "ui8"), ZEROS, (True, False), (True, False), (True, False), (True, False)),
)
def test_epilogues(kind: str, scale: str, bias: bool, relu: bool, step: bool, middle: bool) -> None:
    m, k, n = 15, 12, PANEL + 5
    random = np.random.default_rng(5)
    a, b = codes(random, (m, k), "ui8"), codes(random, (n, k), "si8")
    extra = operands(random, True, "none", n)
    if scale != "none":
        extra["scale"] = random.random(() if scale == "one" else (n,)).astype(np.float32) / 300
    if bias:
        extra["bias"] = random.standard_normal(n).astype(np.float32)
    if kind != "f32":
        extra |= {"step": np.float32(0.37)} if step else {}
        extra |= {"middle": np.float32(7)} if middle else {}
    want = finished(exact(a, b, extra), extra, kind, relu)
    least, most = LIMITS.get(kind, (0.0, 0.0))
    result = TensorType(dtypes.by_name(kind), (m, n))
    activation = "relu" if relu else "none"
    found = run(
        INTEGER_PRODUCT, (a, b), result, AXES, extra,
        activation=activation, least=least, most=most,
    )  # fmt: skip
    np.testing.assert_array_equal(found, want)


@pytest.mark.paths
def test_codes_are_rounded_as_a_division_rounds_them() -> None:
    """Ties, what saturates, infinities and NaN; no quotient may be off by a bit at a tie."""
    random = np.random.default_rng(8)
    sums = np.concatenate([np.arange(-40_000, 40_000), random.integers(-(2**31), 2**31, 999)])
    k, n = 1, PANEL * 3
    rows = -(-len(sums) // n)
    a = np.zeros((rows, k), np.uint8)
    b = np.zeros((n, k), np.int8)
    result = TensorType(dtypes.si8, (rows, n))
    cases = [(step, 1) for step in (0.5, 2.0, 3.0, 254.0, 0.1, 1e-29, 7e29, -3.0)]
    for step, scale in (*cases, (0.7, 3e38), (0.7, np.inf), (0.7, np.nan)):
        terms = np.resize(sums, (rows, n)).astype(np.int32)
        extra = {"step": np.float32(step), "scale": np.float32(scale), "middle": np.float32(-3)}
        for row in range(0, rows, 97):
            extra["term"] = terms[row]
            found = run(INTEGER_PRODUCT, (a, b), result, AXES, extra, least=-128.0, most=127.0)[row]
            with np.errstate(all="ignore"):
                y = terms[row].astype(np.float32) * extra["scale"]
                quotient = np.rint(y / extra["step"]) - np.float32(3)
            want = np.where(np.isnan(quotient), 0, np.clip(quotient, -128, 127)).astype(np.int8)
            np.testing.assert_array_equal(found, want, err_msg=str((step, scale)))


@pytest.mark.paths
@pytest.mark.parametrize("kinds", [("si8", "ui8"), ("ui8", "si8")])
def test_codes_are_looked_up(kinds: tuple[str, str]) -> None:
    random = np.random.default_rng(4)
    every = np.arange(256).astype(np.uint8)
    table = random.permutation(every)
    for count in (1, 300, 1 << 17):
        found = codes(random, (count, 3), "ui8")
        found.flat[: min(256, found.size)] = every[: found.size]
        given, kept = (dtypes.by_name(kind) for kind in kinds)
        inputs = [found.view(given.numpy), table.view(kept.numpy)]
        builder = Builder()
        params = [builder.param(TensorType.of(each)) for each in inputs]
        call = CustomCall(CODE_TABLE, (TensorType(kept, found.shape),), Dictionary.of({}))
        program = Program((Function("main", builder.region(builder.emit(call, *params))),))
        (got,) = create(2).compile(program, [ARGUMENT, ARGUMENT]).run(inputs)
        np.testing.assert_array_equal(np.asarray(got).view(np.uint8), table[found])


GEOMETRY = ("window", "stride", "padding", "dilation")
WINDOWS = {
    "plain": ((1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    "strided": ((1, 1), (2, 2), (0, 0, 0, 0), (1, 1)),
    "padded": ((3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    "halved": ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    "apart and halved": ((3, 3), (1, 4), (2, 2, 2, 2), (1, 2)),
    "lopsided": ((3, 2), (2, 1), (2, 0, 0, 3), (1, 1)),
    "apart": ((3, 3), (1, 2), (2, 2, 4, 4), (2, 3)),
}


def convolved(x: np.ndarray, weight: np.ndarray, name: str, zero: int, groups: int) -> np.ndarray:
    """The sums of windows of images by NumPy; `weight` [taps, C / groups, O], less zero points."""
    (kh, kw), (sh, sw), (top, bottom, left, right), (dh, dw) = WINDOWS[name]
    wide = np.pad(x.astype(np.int64) - zero, ((0, 0), (top, bottom), (left, right), (0, 0)))
    rows = (wide.shape[1] - (kh - 1) * dh - 1) // sh + 1
    columns = (wide.shape[2] - (kw - 1) * dw - 1) // sw + 1
    total: Any = 0
    for tap, factor in enumerate(weight):
        i, j = divmod(tap, kw)
        part = wide[:, i * dh :: sh, j * dw :: sw][:, :rows, :columns]
        parts = zip(np.split(part, groups, -1), np.split(factor, groups, -1), strict=True)
        total = total + np.concatenate([a @ b for a, b in parts], -1)
    return total


@pytest.mark.paths
@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("window", "left", "right", "other", "channels", "target"),
    pairs(
        WINDOWS,
        ("si8", "ui8"),
        ("si8", "ui8"),
        ZEROS,
        (1, 3, 16, 21),
        (INTEGER_CONV2D, INTEGER_GROUPED, INTEGER_DEPTHWISE),
    ),
)
def test_convolutions(
    window: str, left: str, right: str, other: str, channels: int, target: str
) -> None:
    check_convolution(window, left, right, other, channels, target)


@pytest.mark.paths
@pytest.mark.parametrize("window", ["padded", "halved", "apart and halved", "apart"])
def test_channels_apart_in_blocks_and_a_rest(window: str) -> None:
    for channels in (40, 64, 150):
        check_convolution(window, "ui8", "si8", "none", channels, INTEGER_DEPTHWISE)


@pytest.mark.paths
@pytest.mark.sample(1)
@pytest.mark.parametrize("window", ["padded", "halved", "lopsided"])
def test_long_windows_are_read_in_place_and_rows_padded_in_blocks(window: str) -> None:
    for channels, target in ((16, INTEGER_CONV2D), (44, INTEGER_CONV2D), (150, INTEGER_DEPTHWISE)):
        size = 29, 3 * INTEGER_ROWS
        check_convolution(window, "si8", "si8", "none", channels, target, size)
        check_convolution(window, "si8", "si8", "none", channels, target, size, spread=24)


@pytest.mark.paths
@pytest.mark.sample(2)
@pytest.mark.parametrize("target", [INTEGER_CONV2D, INTEGER_GROUPED])
@pytest.mark.parametrize("window", ["padded", "apart"])
@pytest.mark.parametrize("other", ["none", "each"])
def test_usual_weights_of_windows_beside_others(window: str, other: str, target: str) -> None:
    """Some panels of a task may be multiplied as bytes, the others as wide codes."""
    check_convolution(window, "si8", "si8", other, 12, target, spread=24, beside=PANEL)


@pytest.mark.paths
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_channels_first_become_rows_of_channels(channels: int) -> None:
    random = np.random.default_rng(channels)
    x = codes(random, (2, channels, 5, 37), "si8")
    w = codes(random, (9 * channels, 7), "si8")
    builder = Builder()
    params = [builder.param(TensorType.of(each)) for each in (x, w)]
    last = builder.emit(Transpose((0, 2, 3, 1)), params[0])
    attrs: dict[str, Any] = dict.fromkeys(EXTRA, False) | {"activation": "none"}
    attrs |= {"least": 0.0, "most": 0.0, **dict(zip(GEOMETRY, WINDOWS["padded"], strict=True))}
    result = TensorType(dtypes.si32, (2, 5, 37, 7))
    call = CustomCall(INTEGER_CONV2D, (result,), Dictionary.of(attrs))
    program = Program((Function("main", builder.region(builder.emit(call, last, params[1]))),))
    (found,) = create(2).compile(program, [ARGUMENT, PARAMETER]).run([x, w])
    images, taps = x.transpose(0, 2, 3, 1), w.astype(np.int64).reshape(9, channels, 7)
    np.testing.assert_array_equal(np.asarray(found), convolved(images, taps, "padded", 0, 1))


def check_convolution(
    window: str,
    left: str,
    right: str,
    other: str,
    channels: int,
    target: str,
    size: tuple[int, int] = (7, 11),
    spread: float | None = None,
    beside: int = 0,
) -> None:
    random = np.random.default_rng(channels)
    groups = {INTEGER_DEPTHWISE: channels, INTEGER_GROUPED: math.gcd(channels, 12)}.get(target, 1)
    outputs = channels if target == INTEGER_DEPTHWISE else groups * (PANEL + 1)
    taps = math.prod(WINDOWS[window][0])
    x = codes(random, (2, *size, channels), left)
    w = codes(random, (taps, channels // groups, outputs), right)
    if spread is not None:
        w[..., beside:] = usual(w[..., beside:], random, spread)
    extra = operands(random, True, other, outputs)
    extra["zero"] = np.int32(random.integers(-128, 128) if left == "si8" else 201)
    extra |= {"scale": random.random(outputs).astype(np.float32) / 500, "step": np.float32(0.3)}
    extra |= {"term": random.integers(-999, 999, outputs).astype(np.int32)}
    sums = convolved(
        x, w.astype(np.int64) - extra.get("other_zero", 0), window, int(extra["zero"]), groups
    )
    sums = (sums + extra["term"]).astype(np.int32)
    least, most = LIMITS["ui8"]
    want = finished(sums, extra, "ui8", relu=False)
    geometry: dict[str, Any] = dict(zip(GEOMETRY, WINDOWS[window], strict=True))
    if target == INTEGER_GROUPED:
        geometry["groups"] = groups
    weight = w.reshape(-1, outputs)
    result = TensorType(dtypes.ui8, want.shape)
    found = run(
        target, (x, weight), result, geometry, extra, threads=2, least=least, most=most
    )  # fmt: skip
    np.testing.assert_array_equal(found, want)


def test_calls_of_another_form_are_refused() -> None:
    a, b = np.zeros((2, 4), np.uint8), np.zeros((3, 4), np.int8)
    plain = TensorType(dtypes.si32, (2, 3))
    wrong: list[tuple[Any, ...]] = [
        ((a, b), TensorType(dtypes.si32, (3, 2)), {}, {}),
        ((a.astype(np.int16), b), plain, {}, {}),
        ((a, b), plain, {"scale": np.float32(1)}, {}),
        ((a, b), plain, {"zero": np.zeros(2, np.int32)}, {}),
        ((a, b), TensorType(dtypes.si8, (2, 3)), {}, {"least": -129.0, "most": 0.0}),
        ((a, b), TensorType(dtypes.f32, (2, 3)), {}, {"activation": "swish"}),
    ]
    for sides, result, extra, epilogue in wrong:
        with pytest.raises(UnsupportedError, match="custom_call"):
            run(INTEGER_PRODUCT, sides, result, AXES, extra, **epilogue)


@pytest.mark.paths
def test_free_rows_are_compiled_once() -> None:
    text = f"""ptir.v0.5
func @main(%x: ui8[?0, 20], %w: si8[33, 20]) -> si32[?0, 33] {{
  %0 = custom_call %x, %w {{target = "{INTEGER_PRODUCT}", results = [si32[?0, 33]], attrs = {{
    activation = "none", batch_lhs = [], batch_rhs = [], bias = false, contract_lhs = [1],
    contract_rhs = [1], least = 0.0, middle = false, most = 0.0, other_zero = false,
    scale = false, step = false, term = false, zero = false}}}} : si32[?0, 33]
  return %0
}}"""
    random = np.random.default_rng(0)
    w = codes(random, (33, 20), "si8")
    guards = SizeGuards({0: 5})
    program = parse_program(text)
    executable = create(1).compile_symbolic(program, [ARGUMENT, PARAMETER], guards)
    for rows in (5, 31):
        x = codes(random, (rows, 20), "ui8")
        (found,) = executable.run([x, w])
        np.testing.assert_array_equal(np.asarray(found), exact(x, w, {}))
