"""Inference and refusals of the quantization ops, and the packed form of 4-bit integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptrs.errors import UsageError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import pack_int4, unpack_int4
from gptrs.ir.ops import quantization
from gptrs.ir.ops.quantization import (
    Dequantize,
    DequantizeAffine,
    Quantize,
    Requantize,
    UnpackBits,
)

GOOD = [
    (Quantize(dtypes.si8), "f32[2, 3] f32[] si32[]", "si8[2, 3]"),
    (Quantize(dtypes.ui4), "f16[] bf16[] si32[]", "ui4[]"),
    (Quantize(dtypes.si32, axis=1), "f64[2, 3] f32[3] si32[3]", "si32[2, 3]"),
    (Quantize(dtypes.si4, 1, 2), "f32[3, 4] f32[3, 2] si32[3, 2]", "si4[3, 4]"),
    (Quantize(dtypes.si4, 0, 5), "f32[0, 4] f32[0, 4] si32[0, 4]", "si4[0, 4]"),
    (Dequantize(dtypes.f32), "si8[2, 3] f32[] si32[]", "f32[2, 3]"),
    (Dequantize(dtypes.bf16, axis=0), "ui32[2, 3] f64[2] si32[2]", "bf16[2, 3]"),
    (Dequantize(dtypes.f16, 1, 3), "ui4[2, 3] f16[2, 1] si32[2, 1]", "f16[2, 3]"),
    (Dequantize(dtypes.f32, 1, 3), "ui8[2, 3] f16[2, 1] si32[]", "f32[2, 3]"),
    (Dequantize(dtypes.f32, axis=0), "ui8[2, 3] f16[] si32[2]", "f32[2, 3]"),
    (DequantizeAffine(dtypes.f32), "si8[2, 3] f32[] f16[]", "f32[2, 3]"),
    (DequantizeAffine(dtypes.f16, 1, 3), "ui4[2, 6] f16[2, 2] bf16[2, 2]", "f16[2, 6]"),
    (DequantizeAffine(dtypes.f64, axis=1), "ui8[2, 3] f16[3] f32[]", "f64[2, 3]"),
    (UnpackBits(4, 1), "ui8[2, 3]", "ui8[2, 6]"),
    (UnpackBits(5, 0), "ui8[5, 3]", "ui8[8, 3]"),
    (UnpackBits(8, 0), "ui8[0]", "ui8[0]"),
    (Requantize(dtypes.ui8), "si32[5] f32[] si32[] f32[] si32[]", "ui8[5]"),
    (Requantize(dtypes.si8, axis=0), "si32[5] f32[5] si32[5] f32[] si32[]", "si8[5]"),
    (Requantize(dtypes.si8, axis=0), "si32[5] f32[] si32[] f32[5] si32[5]", "si8[5]"),
    (Requantize(dtypes.si4, 0, 3), "si8[6] f16[2] si32[2] f64[2] si32[2]", "si4[6]"),
]

BAD = [
    (
        Quantize(dtypes.si8),
        "si32[2] f32[] si32[]",
        "`quantize` of si32[2] needs a float element type",
    ),
    (
        Quantize(dtypes.si64),
        "f32[2] f32[] si32[]",
        "`quantize` of f32[2] needs an integer type of at most 32 bits in place of si64",
    ),
    (
        Quantize(dtypes.f16),
        "f32[2] f32[] si32[]",
        "`quantize` of f32[2] needs an integer type of at most 32 bits in place of f16",
    ),
    (
        Quantize(dtypes.si8),
        "f32[2] si32[] si32[]",
        "`quantize` of f32[2], si32[], si32[] needs a float type in place of si32",
    ),
    (
        Quantize(dtypes.si8),
        "f32[2] f32[] si8[]",
        "`quantize` of f32[2], f32[], si8[] needs a zero point of si32",
    ),
    (
        Quantize(dtypes.si8),
        "f32[2] f32[2] si32[2]",
        "`quantize` of f32[2], f32[2], si32[2] needs a scale and a zero point of []",
    ),
    (
        Quantize(dtypes.si8, axis=1),
        "f32[2, 3] f32[2] si32[]",
        "`quantize` of f32[2, 3], f32[2], si32[] needs a scale and a zero point of [3] or []",
    ),
    (
        Quantize(dtypes.si8, 1, 3),
        "f32[2, 6] f32[2] si32[2]",
        "`quantize` of f32[2, 6], f32[2], si32[2] needs a scale and a zero point of [2, 2] or []",
    ),
    (
        Quantize(dtypes.si8, axis=2),
        "f32[2, 3] f32[3] si32[3]",
        "`quantize` of f32[2, 3] has no axis 2",
    ),
    (
        Quantize(dtypes.si8, axis=-1),
        "f32[2, 3] f32[3] si32[3]",
        "`quantize` of f32[2, 3] has no axis -1",
    ),
    (
        Quantize(dtypes.si8, group_size=2),
        "f32[2] f32[] si32[]",
        "`quantize` of f32[2] needs an axis for its groups",
    ),
    (
        Quantize(dtypes.si8, 0, 4),
        "f32[6] f32[2] si32[2]",
        "`quantize` of f32[6] cannot divide axis 0 of 6 into groups of 4",
    ),
    (
        Quantize(dtypes.si8, 0, 0),
        "f32[6] f32[2] si32[2]",
        "`quantize` of f32[6] cannot divide axis 0 of 6 into groups of 0",
    ),
    (
        Dequantize(dtypes.si8),
        "si8[2] f32[] si32[]",
        "`dequantize` of si8[2] needs a float type in place of si8",
    ),
    (
        Dequantize(dtypes.f32),
        "f32[2] f32[] si32[]",
        "`dequantize` of f32[2] needs an integer type of at most 32 bits in place of f32",
    ),
    (
        Dequantize(dtypes.f32),
        "ui64[2] f32[] si32[]",
        "`dequantize` of ui64[2] needs an integer type of at most 32 bits in place of ui64",
    ),
    (
        DequantizeAffine(dtypes.f32),
        "si8[2] f32[] si32[]",
        "`dequantize_affine` of si8[2], f32[], si32[] needs a float type in place of si32",
    ),
    (
        DequantizeAffine(dtypes.f32, 0, 2),
        "si8[4] f32[2] f32[4]",
        "`dequantize_affine` of si8[4], f32[2], f32[4] needs a scale and a bias of [2] or []",
    ),
    (
        DequantizeAffine(dtypes.f32),
        "f32[2] f32[] f32[]",
        "`dequantize_affine` of f32[2] needs an integer type of at most 32 bits in place of f32",
    ),
    (UnpackBits(4, 0), "si8[2]", "`unpack_bits` of si8[2] needs bytes, ui8"),
    (
        UnpackBits(9, 0),
        "ui8[9]",
        "`unpack_bits` of ui8[9] cannot unpack integers of 9 bits, only of 1 to 8",
    ),
    (
        UnpackBits(0, 0),
        "ui8[9]",
        "`unpack_bits` of ui8[9] cannot unpack integers of 0 bits, only of 1 to 8",
    ),
    (UnpackBits(4, 1), "ui8[2]", "`unpack_bits` of ui8[2] has no axis 1"),
    (
        UnpackBits(3, 0),
        "ui8[4]",
        "`unpack_bits` of ui8[4] cannot divide 32 bits on axis 0 into integers of 3",
    ),
    (
        Requantize(dtypes.si64),
        "si8[2] f32[] si32[] f32[] si32[]",
        "`requantize` of si8[2] needs an integer type of at most 32 bits in place of si64",
    ),
    (
        Requantize(dtypes.si8, axis=0),
        "i1[2] f32[] si32[] f32[] si32[]",
        "`requantize` of i1[2] needs an integer type of at most 32 bits in place of i1",
    ),
    (
        Requantize(dtypes.si8, axis=0),
        "si8[2] f32[] si32[] f32[3] si32[]",
        "`requantize` of si8[2], f32[3], si32[] needs a scale and a zero point of [2] or []",
    ),
    (
        Requantize(dtypes.si8, axis=3),
        "si8[2] f32[] si32[] f32[] si32[]",
        "`requantize` of si8[2] has no axis 3",
    ),
]


@pytest.mark.parametrize(("op", "operands", "result"), GOOD)
def test_result(op, operands, result, infer):
    assert infer(op, operands) == result


@pytest.mark.parametrize(("op", "operands", "message"), BAD)
def test_refusal(op, operands, message, refusal):
    assert refusal(op, operands) == message


def test_every_op_has_rows(registered):
    assert {op.name for op, *_ in GOOD} == registered(quantization)


def test_packed_form_is_low_half_first_in_row_major_order():
    signed = np.array([[1, -8, 7], [-1, 0, 3]]).astype(dtypes.si4.numpy)
    assert pack_int4(signed).tolist() == [0x81, 0xF7, 0x30]
    assert pack_int4(signed.T).tolist() == [0xF1, 0x08, 0x37]
    unsigned = np.array([15, 1, 9]).astype(dtypes.ui4.numpy)
    assert pack_int4(unsigned).tolist() == [0x1F, 0x09]


@given(
    st.sampled_from([dtypes.si4, dtypes.ui4]),
    st.sampled_from([(), (0,), (1,), (3, 0), (3, 5), (2, 1, 7)]),
    st.integers(0, 2**32),
)
def test_packing_round_trips(dtype, shape, seed):
    low = -8 if dtype is dtypes.si4 else 0
    values = np.random.default_rng(seed).integers(low, low + 16, shape)
    packed = pack_int4(np.asarray(values).astype(dtype.numpy))
    assert packed.dtype == np.uint8
    assert packed.size == (values.size + 1) // 2
    unpacked = unpack_int4(packed, dtype, shape)
    assert unpacked.dtype == dtype.numpy
    np.testing.assert_array_equal(unpacked.astype(np.int64), values)


@given(st.binary(max_size=9), st.booleans())
def test_unpacking_round_trips(data, signed):
    dtype = dtypes.si4 if signed else dtypes.ui4
    packed = np.frombuffer(data, np.uint8)
    unpacked = unpack_int4(packed, dtype, (2 * len(data),))
    assert pack_int4(unpacked).tobytes() == data


def test_packing_ignores_the_upper_half_of_an_element():
    dirty = np.array([0x53, 0xF4, 0x09], np.uint8).view(dtypes.ui4.numpy)
    assert pack_int4(dirty).tolist() == [0x43, 0x09]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: pack_int4(np.zeros(3, np.int8)),
            "two elements a byte are for si4 and ui4, got si8",
        ),
        (
            lambda: unpack_int4(np.zeros(2, np.uint8), dtypes.ui8, (4,)),
            "two elements a byte are for si4 and ui4, got ui8",
        ),
        (
            lambda: unpack_int4(np.zeros(3, np.uint8), dtypes.si4, (4,)),
            "`si4[4]` packed is ui8[2], got `uint8[3]`",
        ),
        (
            lambda: unpack_int4(np.zeros(2, np.int8), dtypes.si4, (4,)),
            "`si4[4]` packed is ui8[2], got `int8[2]`",
        ),
        (
            lambda: unpack_int4(np.zeros((1, 2), np.uint8), dtypes.si4, (4,)),
            "`si4[4]` packed is ui8[2], got `uint8[1, 2]`",
        ),
        (
            lambda: unpack_int4(np.array([0x21, 0x13], np.uint8), dtypes.ui4, (3,)),
            "the unused half of the last byte must be 0, got 1",
        ),
    ],
)
def test_refusals_of_the_packed_form(call, message):
    with pytest.raises(UsageError) as caught:
        call()
    assert str(caught.value) == message
