"""The vectorized functions are accurate to three units in the last place, and at the extremes."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.ir import parse_program
from gptrs.ir.builder import Builder
from gptrs.ir.op import Op
from gptrs.ir.ops.elementwise import Erf, Exp, Logistic, Tanh
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.backend import create

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 88.72, 88.73, -87.5, -103.9, -104.5, 1e-40]

GELU = """ptir.v0.5
func @main(%x: f32[30006]) -> f32[30006] {
  %root = constant {value = 0.70710678} : f32[]
  %one = constant {value = 1.0} : f32[]
  %half = constant {value = 0.5} : f32[]
  %roots = broadcast_to %root {shape = [30006]} : f32[30006]
  %ones = broadcast_to %one {shape = [30006]} : f32[30006]
  %halves = broadcast_to %half {shape = [30006]} : f32[30006]
  %0 = mul %x, %roots : f32[30006]
  %1 = erf %0 : f32[30006]
  %2 = add %1, %ones : f32[30006]
  %3 = mul %x, %halves : f32[30006]
  %4 = mul %3, %2 : f32[30006]
  return %4
}
"""


def logistic(x: float) -> float:
    return 0.0 if x < -700 else 1 / (1 + math.exp(-x))


def exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)


@pytest.mark.paths
@pytest.mark.parametrize(
    ("op", "exact"),
    [(Exp(), exp), (Tanh(), math.tanh), (Erf(), math.erf), (Logistic(), logistic)],
    ids=lambda item: getattr(item, "name", ""),
)
def test_within_three_units_in_the_last_place(op: Op, exact: Callable[[float], float]) -> None:
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    near = rng.uniform(-12, 12, 20_000).astype(np.float32)
    x = np.concatenate([np.array(SPECIAL, np.float32), bits, near])
    builder = Builder()
    program = builder.program(builder.emit(op, builder.param(TensorType.of(x))))
    (result,) = create(1).compile(program, [InputRole.ARGUMENT]).run([x])
    found = np.asarray(result)
    want = np.array([exact(float(value)) for value in x])
    with np.errstate(over="ignore"):
        rounded = want.astype(np.float32)
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    size = np.where(np.isfinite(rounded), np.abs(rounded), np.float32(1))
    unit = np.spacing(np.maximum(size, np.float32(1e-38))).astype(np.float64)
    off = np.where(same, 0, np.abs(np.where(same, 0, found) - np.where(same, 0, want)))
    assert np.all(off <= 3 * unit), x[off > 3 * unit][:5]
    if op.name in ("tanh", "erf"):
        assert np.signbit(found[:2]).tolist() == [False, True]


@pytest.mark.paths
def test_gelu_is_within_two_units_of_its_operand() -> None:
    x = np.concatenate([np.linspace(-15, 15, 30_001), [0.0, 1e-40, 3e38, math.inf, math.nan]])
    x = x.astype(np.float32)
    (result,) = create(1).compile(parse_program(GELU), [InputRole.ARGUMENT]).run([x])
    found = np.asarray(result).astype(np.float64)
    want = np.array([value / 2 * math.erfc(-value / math.sqrt(2)) for value in x.tolist()])
    with np.errstate(invalid="ignore"):
        off = np.abs(found - want)[:-2]
    assert np.all(off <= 1.2e-7 * np.abs(x[:-2]) + 1e-45)
    assert found[-2] == math.inf
    assert math.isnan(found[-1])
