"""Whole graphs for the golden files, with results that NumPy in f64 and Python integers give."""

from __future__ import annotations

import numpy as np

from golden_files import Golden
from gptrs.ir import parse_program
from gptrs_conformance.numerics import EXACT, Tolerance

CLOSE = Tolerance.close(1e-5, 1e-6)

ATTENTION = """\
ptir.v0.5
func @softmax(%x: f32[2, 3, 4]) -> f32[2, 3, 4] {
  %0 = reduce %x {kind = max, axes = [2], keepdims = true} : f32[2, 3, 1]
  %1 = broadcast_to %0 {shape = [2, 3, 4]} : f32[2, 3, 4]
  %2 = sub %x, %1 : f32[2, 3, 4]
  %3 = exp %2 : f32[2, 3, 4]
  %4 = reduce %3 {kind = sum, axes = [2], keepdims = true} : f32[2, 3, 1]
  %5 = broadcast_to %4 {shape = [2, 3, 4]} : f32[2, 3, 4]
  %6 = div %3, %5 : f32[2, 3, 4]
  return %6
}

func @attention(%q: f32[2, 3, 5], %k: f32[2, 4, 5], %v: f32[2, 4, 5], %seen: i1[2, 3, 4]) -> \
f32[2, 3, 5] {
  %0 = dot_general %q, %k {contract_lhs = [2], contract_rhs = [2], batch_lhs = [0], \
batch_rhs = [0]} : f32[2, 3, 4]
  %2 = select %seen, %0, f32[2, 3, 4] splat(-inf) : f32[2, 3, 4]
  %3 = call %2 {function = @softmax} : f32[2, 3, 4]
  %4 = dot_general %3, %v {contract_lhs = [2], contract_rhs = [1], batch_lhs = [0], \
batch_rhs = [0]} : f32[2, 3, 5]
  return %4
}

func @main(%q: f32[2, 3, 5], %k: f32[2, 4, 5], %v: f32[2, 4, 5]) -> (f32[2, 3, 5], si32[2, 3, 2]) {
  %0 = iota {shape = [2, 3, 4], axis = 1, dtype = si32} : si32[2, 3, 4]
  %1 = iota {shape = [2, 3, 4], axis = 2, dtype = si32} : si32[2, 3, 4]
  %2 = add %0, si32[2, 3, 4] splat(1) : si32[2, 3, 4]
  %3 = compare %1, %2 {direction = le} : i1[2, 3, 4]
  %4 = composite %q, %k, %v, %3 {kind = "gptrs.goldens.attention.v1", \
decomposition = @attention, operands = "q k v seen"} : f32[2, 3, 5]
  %5, %6 = top_k %4 {k = 2, axis = 2, indices_dtype = si32} : (f32[2, 3, 2], si32[2, 3, 2])
  return %4, %6
}
"""

COLLATZ = """\
ptir.v0.5
func @main(%n: si64[6]) -> (si32[6], si64[6], si64[]) {
  %0 = constant {value = 0} : si64[]
  %most, %steps, %tops = scan %0, %n {carry_count = 1}
    body(%most: si64[], %n: si64[]) {
      %0 = constant {value = 0} : si32[]
      %m, %steps, %top = while %n, %0, %n
        condition(%m: si64[], %steps: si32[], %top: si64[]) {
          %0 = compare %m, si64[] 1 {direction = gt} : i1[]
          return %0
        }
        body(%m: si64[], %steps: si32[], %top: si64[]) {
          %0 = and %m, si64[] 1 : si64[]
          %odd = cast %0 {dtype = i1} : i1[]
          %next = cond %odd, %m
            then(%m: si64[]) {
              %0 = mul %m, si64[] 3 : si64[]
              %1 = add %0, si64[] 1 : si64[]
              return %1
            }
            else(%m: si64[]) {
              %0 = div %m, si64[] 2 : si64[]
              return %0
            } : si64[]
          %more = add %steps, si32[] 1 : si32[]
          %higher = maximum %top, %next : si64[]
          return %next, %more, %higher
        } : (si64[], si32[], si64[])
      %more = maximum %most, %top : si64[]
      return %more, %steps, %top
    } : (si64[], si32[6], si64[6])
  return %steps, %tops, %most
}
"""


def attention() -> Golden:
    """Attention in which a row sees the columns up to the one after its own."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, n, 5)).astype(np.float32) for n in (3, 4, 4))
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1)
    scores[:, np.arange(4) > np.arange(3)[:, None] + 1] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    result = weights / weights.sum(axis=2, keepdims=True) @ v.astype(np.float64)
    order = np.argsort(-result, axis=2)[..., :2].astype(np.int32)
    expected = [result.astype(np.float32), order]
    return Golden(parse_program(ATTENTION), [q, k, v], expected, [CLOSE, EXACT])


def collatz() -> Golden:
    """The steps that numbers take to 1, the greatest number on the way, the greatest of all."""
    numbers = [1, 2, 7, 27, 97, 0]
    paths = [collatz_path(number) for number in numbers]
    steps = np.array([len(path) - 1 for path in paths], np.int32)
    tops = np.array([max(path) for path in paths], np.int64)
    inputs = [np.array(numbers, np.int64)]
    return Golden(parse_program(COLLATZ), inputs, [steps, tops, tops.max()], [EXACT] * 3)


def collatz_path(number: int) -> list[int]:
    """The numbers from `number` down to 1; one that is less stays alone."""
    path = [number]
    while path[-1] > 1:
        path.append(3 * path[-1] + 1 if path[-1] % 2 else path[-1] // 2)
    return path


GRAPHS = {"attention": attention, "collatz": collatz}
