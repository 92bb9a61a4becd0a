"""Literals as text: the exact spelling, and every bit pattern read back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gptrs.ir import (
    Builder,
    Literal,
    TensorType,
    dtypes,
    parse_program,
    print_program,
)
from gptrs.ir.ops.creation import Constant

F32 = TensorType(dtypes.f32, (2,))


def constant_text(literal: Literal) -> str:
    """How `literal` is written, after it was read back bit by bit."""
    builder = Builder()
    text = print_program(builder.program(builder.emit(Constant(literal))))
    (instruction,) = parse_program(text).main.body.instructions
    assert instruction.op == Constant(literal)
    line = text.split("\n")[2]
    return line.removeprefix("  %0 = constant {value = ").removesuffix(f"}} : {literal.type}")


def of(values: object, dtype: dtypes.DType) -> Literal:
    return Literal.of(np.array(values, dtype=dtype.numpy))


LITERALS = [
    (of(1.5, dtypes.f32), "1.5"),
    (of([0.1, -0.0], dtypes.f32), "[0.1, -0.0]"),
    (of([np.inf, -np.inf, np.nan], dtypes.f64), "[inf, -inf, nan]"),
    (of([[1, 2], [3, 4]], dtypes.si8), "[[1, 2], [3, 4]]"),
    (of([[[True]], [[False]]], dtypes.i1), "[[[true]], [[false]]]"),
    (of([-8, 7], dtypes.si4), "[-8, 7]"),
    (of([15, 0], dtypes.ui4), "[15, 0]"),
    (of([2**64 - 1, 0], dtypes.ui64), "[18446744073709551615, 0]"),
    (of([-(2**63), 0], dtypes.si64), "[-9223372036854775808, 0]"),
    (of([0.1, 1.1], dtypes.bf16), "[0.1, 1.1]"),
    (of([0.1, 65504], dtypes.f16), "[0.1, 65500.0]"),
    (of([448, 0.1], dtypes.f8e4m3), "[450.0, 0.1]"),
    (of([np.nan, 57344], dtypes.f8e5m2), "[nan, 60000.0]"),
    (of([5e-324, 1.7976931348623157e308], dtypes.f64), "[5e-324, 1.7976931348623157e+308]"),
    (of([1e-45, 3.4028235e38], dtypes.f32), "[1e-45, 3.4028235e+38]"),
    (of([1 - 2j, complex(np.nan, -0.0)], dtypes.cf32), "[(1.0, -2.0), (nan, -0.0)]"),
    (of(0.1j, dtypes.cf64), "(0.0, 0.1)"),
    (of([7, 7], dtypes.si32), "splat(7)"),
    (of([[1j, 1j]], dtypes.cf64), "splat((0.0, 1.0))"),
    (Literal.full(-0.0, dtypes.f32, (1000, 1000)), "splat(-0.0)"),
    (of([7], dtypes.si32), "[7]"),
    (of([], dtypes.f32), "[]"),
    (Literal.full(0, dtypes.cf32, (3, 0, 2)), "[]"),
    (Literal.full(0, dtypes.i1, (0, 1000)), "[]"),
    (of(range(16), dtypes.ui8), f"[{', '.join(map(str, range(16)))}]"),
    (of(range(17), dtypes.ui8), 'hex("000102030405060708090a0b0c0d0e0f10")'),
    (
        of(range(1, 18), dtypes.si16),
        f'hex("{"".join(f"{i:02x}00" for i in range(1, 18))}")',
    ),
    (Literal(F32, bytes.fromhex("0000803f0000c0ff")), '[1.0, hex("0000c0ff")]'),
    (Literal(F32, bytes.fromhex("0100c07f0100c07f")), 'splat(hex("0100c07f"))'),
    (
        Literal(TensorType(dtypes.cf32, (2,)), bytes.fromhex("0000803f0000c0ff0000000000000000")),
        '[hex("0000803f0000c0ff"), (0.0, 0.0)]',
    ),
    (Literal(TensorType(dtypes.f8e4m3, ()), b"\xff"), 'hex("ff")'),
]


@pytest.mark.parametrize(("literal", "text"), LITERALS)
def test_literal_text(literal, text):
    assert constant_text(literal) == text


@pytest.mark.parametrize(
    ("written", "type_", "text"),
    [
        ("[1, 2.50]", "f32[2]", "[1.0, 2.5]"),
        ("[1., 1E2]", "f64[2]", "[1.0, 100.0]"),
        ("[1e-999, -1e-999]", "f32[2]", "[0.0, -0.0]"),
        ("[[], []]", "f32[2, 0]", "[]"),
        ('hex("0000803F00000040")', "f32[2]", "[1.0, 2.0]"),
        ('hex("")', "f32[0]", "[]"),
        ("splat(1)", "f32[]", "1.0"),
        ("splat(1)", "f32[0, 3]", "[]"),
        ("[(1, 2), (3, inf)]", "cf32[2]", "[(1.0, 2.0), (3.0, inf)]"),
        (f"[{', '.join(['7'] * 20)}]", "ui8[20]", "splat(7)"),
        ("[007, -00]", "si8[2]", "[7, 0]"),
    ],
)
def test_other_spellings_of_literals(written, type_, text):
    program = parse_program(
        f"ptir.v0.5 func @main() -> {type_} {{%0 = constant {{value = {written}}} : {type_}"
        " return %0}"
    )
    assert f"constant {{value = {text}}} : {type_}\n" in print_program(program)


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.bits <= 16], ids=str)
def test_every_element_of_a_narrow_dtype(dtype):
    # All bytes, or for two bytes a stride that meets every exponent and all kinds of NaN.
    patterns = range(1 << dtype.bits) if dtype.bits <= 8 else range(0, 1 << 16, 13)
    for start in range(0, len(patterns), 16):
        part = patterns[start : start + 16]
        data = b"".join(bits.to_bytes(dtype.itemsize, "little") for bits in part)
        constant_text(Literal(TensorType(dtype, (len(part),)), data))


SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
DTYPES = st.sampled_from(dtypes.ALL)


@st.composite
def literals(draw: st.DrawFn) -> Literal:
    """A literal of any bits, a splat every now and then."""
    type_ = TensorType(draw(DTYPES), draw(SHAPES))
    size = type_.dtype.itemsize
    count = draw(st.sampled_from([1, type_.size])) if type_.size else 0
    data = draw(st.binary(min_size=count * size, max_size=count * size))
    if type_.dtype.bits < 8:
        data = bytes(byte % (1 << type_.dtype.bits) for byte in data)
    return Literal(type_, data * (type_.size // count if count else 1))


@given(literals())
@settings(deadline=None, max_examples=150)
def test_any_literal_round_trips(literal):
    constant_text(literal)


@given(st.floats(width=32), st.sampled_from(dtypes.FLOATS))
@settings(deadline=None, max_examples=150)
def test_floats_are_written_as_short_as_possible(value, dtype):
    with np.errstate(all="ignore"):
        stored = np.array(value).astype(dtype.numpy)
        text = constant_text(Literal(TensorType(dtype, ()), stored.tobytes()))
        if not text.startswith("hex") and np.isfinite(stored.astype(np.float64)):
            digits = len(text.split("e")[0].strip("-0.").replace(".", "").strip("0"))
            shorter = f"{float(stored):.{digits - 2}e}" if digits > 1 else None
            assert shorter is None or np.array(float(shorter)).astype(dtype.numpy) != stored
