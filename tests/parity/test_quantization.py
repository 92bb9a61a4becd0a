"""Quantization agrees with torch, integers bit for bit.

Torch multiplies by the reciprocal of the scale where PTIR divides, and rounds after it has added
the zero point: scales are powers of two and zero points even unless a test keeps away from the
quotients that lie near a half.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from gptrs.ir.ops.quantization import Dequantize, Quantize
from parity.torch_arrays import torch

# Torch warns that its quantized tensors are deprecated; what they compute is what is compared.
pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")

TYPES = {
    torch.qint8: (dtypes.si8, [-128, -2, 0, 4, 126]),
    torch.quint8: (dtypes.ui8, [0, 2, 128, 254]),
    torch.qint32: (dtypes.si32, [-1000, 0, 6, 100000]),
}
SHAPES = [(), (0,), (5,), (3, 0, 2), (3, 5, 7)]
EDGES = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1e-30, 63.75, -64.0, 1e9, -1e9, 1e30, -1e30]


def values(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Around the limits of 8 bits, many halfway between two steps."""
    generator = np.random.default_rng(seed)
    return torch.from_numpy(np.asarray(generator.integers(-700, 700, shape) / 8, np.float32))


def f32(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def si32(value: int) -> np.ndarray:
    return np.array(value, np.int32)


@pytest.mark.parametrize("scale", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("quantized", TYPES, ids=str)
def test_per_tensor(reference: Backend, quantized, shape, scale) -> None:
    dtype, zero_points = TYPES[quantized]
    x = values(shape)
    for zero_point in zero_points:
        theirs = torch.quantize_per_tensor(x, scale, zero_point, quantized)
        pair = f32(scale), si32(zero_point)
        q = run_op(reference, Quantize(dtype), x.numpy(), *pair)
        np.testing.assert_array_equal(q, theirs.int_repr().numpy())
        again = run_op(reference, Dequantize(dtypes.f32), q, *pair)
        np.testing.assert_array_equal(again, theirs.dequantize().numpy())


@pytest.mark.parametrize("quantized", [torch.qint8, torch.quint8], ids=str)
def test_edge_values(reference: Backend, quantized) -> None:
    dtype, zero_points = TYPES[quantized]
    # Torch clamps after a conversion to 32 bits; what does not fit there is its own affair.
    x = torch.tensor([value for value in EDGES if abs(value) < 2e9])
    for zero_point in zero_points:
        theirs = torch.quantize_per_tensor(x, 1.0, zero_point, quantized).int_repr()
        found = run_op(reference, Quantize(dtype), x.numpy(), f32(1.0), si32(zero_point))
        np.testing.assert_array_equal(found, theirs.numpy())


@pytest.mark.parametrize("scale", [0.1, 0.37, 3.3])
def test_scales_that_are_no_power_of_two(reference: Backend, scale: float) -> None:
    x = np.random.default_rng(1).uniform(-100, 100, 2000).astype(np.float32)
    quotient = x.astype(np.float64) / float(f32(scale))
    x = x[np.abs(quotient - np.floor(quotient) - 0.5) > 1e-3]
    assert x.size > 1900
    theirs = torch.quantize_per_tensor(torch.from_numpy(x), float(f32(scale)), 3, torch.qint8)
    pair = f32(scale), si32(3)
    q = run_op(reference, Quantize(dtypes.si8), x, *pair)
    np.testing.assert_array_equal(q, theirs.int_repr().numpy())
    again = run_op(reference, Dequantize(dtypes.f32), q, *pair)
    np.testing.assert_allclose(again, theirs.dequantize().numpy(), rtol=2e-7)


@pytest.mark.parametrize("quantized", TYPES, ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((4,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 3, 4), 1)])
def test_per_axis(reference: Backend, shape, axis, quantized) -> None:
    dtype, zero_points = TYPES[quantized]
    size = shape[axis]
    scale = torch.tensor([0.25, 0.5, 2.0, 1.0][:size])
    zero_point = torch.tensor([*zero_points, 2][:size])
    x = values(shape, seed=2)
    theirs = torch.quantize_per_channel(x, scale, zero_point, axis, quantized)
    pair = scale.numpy(), zero_point.numpy().astype(np.int32)
    q = run_op(reference, Quantize(dtype, axis=axis), x.numpy(), *pair)
    np.testing.assert_array_equal(q, theirs.int_repr().numpy())
    again = run_op(reference, Dequantize(dtypes.f32, axis=axis), q, *pair)
    np.testing.assert_array_equal(again, theirs.dequantize().numpy())


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(dtypes.si4, -8, 7), (dtypes.ui4, 0, 15), (dtypes.si8, -128, 127), (dtypes.ui16, 0, 65535)],
    ids=str,
)
def test_fake_quantize(reference: Backend, dtype, low: int, high: int) -> None:
    x = values((200,), seed=3) / 8
    zero_point = (low + high + 1) // 2
    theirs = torch.fake_quantize_per_tensor_affine(x, 0.5, zero_point, low, high)
    pair = f32(0.5), si32(zero_point)
    q = run_op(reference, Quantize(dtype), x.numpy(), *pair)
    found = run_op(reference, Dequantize(dtypes.f32), q, *pair)
    np.testing.assert_array_equal(found, theirs.numpy())


@pytest.mark.parametrize("group_size", [2, 4, 8])
def test_groups_are_channels_of_a_reshaped_tensor(reference: Backend, group_size: int) -> None:
    x = values((3, 16), seed=4) / 8
    groups = 16 // group_size
    scale = torch.tensor([0.25, 0.5, 1.0, 2.0]).repeat(3 * groups)[: 3 * groups]
    zero_point = torch.arange(3 * groups) % 5 - 2
    theirs = torch.fake_quantize_per_channel_affine(
        x.reshape(3 * groups, group_size), scale, zero_point.to(torch.int32), 0, -8, 7
    )
    shape = (3, groups)
    pair = scale.numpy().reshape(shape), zero_point.numpy().astype(np.int32).reshape(shape)
    q = run_op(reference, Quantize(dtypes.si4, 1, group_size), x.numpy(), *pair)
    found = run_op(reference, Dequantize(dtypes.f32, 1, group_size), q, *pair)
    np.testing.assert_array_equal(found, theirs.reshape(3, 16).numpy())


def test_nothing_is_lost_at_the_limits(reference: Backend) -> None:
    x = torch.tensor([-math.inf, math.inf, 127.0, 127.5, 128.0, -128.5, -129.0])
    theirs = torch.fake_quantize_per_tensor_affine(x[2:], 1.0, 0, -128, 127)
    found = run_op(reference, Quantize(dtypes.si8), x.numpy(), f32(1.0), si32(0))
    assert found[:2].tolist() == [-128, 127]
    np.testing.assert_array_equal(found[2:], theirs.numpy())
