"""Programs in canonical text that together have every kind of attribute, region and reference."""

from __future__ import annotations

CONTRACTION = """\
ptir.v0.5
func @main(%x: f32[2, 3], %w: f32[3, 4]) -> f32[2, 4] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0], accum_dtype = f64} : f32[2, 4]
  %1 = tanh %0 : f32[2, 4]
  return %1
}
"""

LITERALS = """\
ptir.v0.5
func @main(%0: f32[2, 2]) -> (f32[2, 2], si4[3], f32[2], i1[2], cf64[], f16[0, 3], f32[4, 4]) {
  %1 = constant {value = [-8, 0, 7]} : si4[3]
  %2 = constant {value = [nan, hex("0100c0ff")]} : f32[2]
  %3 = constant {value = [true, false]} : i1[2]
  %4 = constant {value = (-0.0, inf)} : cf64[]
  %5 = constant {value = []} : f16[0, 3]
  %6 = pad %0 {low = [1, 0], high = [1, 2], value = -inf} : f32[4, 4]
  return %0, %1, %2, %3, %4, %5, %6
}
"""

CONTROL_FLOW = """\
ptir.v0.5
func @row.sum(%x: f32[3]) -> f32[] {
  %0 = reduce %x {kind = sum, axes = [0]} : f32[]
  return %0
}

func @main(%p: i1[], %x: f32[5, 3], %start: f32[]) -> (f32[], f32[5]) {
  %2, %3 = scan %start, %x {carry_count = 1, reverse = true}
    body(%total: f32[], %row: f32[3]) {
      %0 = call %row {function = @row.sum} : f32[]
      %1 = add %total, %0 : f32[]
      return %1, %0
    } : (f32[], f32[5])
  %8, %9 = while %2, %p
    condition(%a: f32[], %q: i1[]) {
      %4 = constant {value = 10.0} : f32[]
      %5 = compare %a, %4 {direction = lt} : i1[]
      return %5
    }
    body(%a: f32[], %q: i1[]) {
      %7 = cond %q, %a
        then(%b: f32[]) {
          %6 = add %b, %b : f32[]
          return %6
        }
        else(%b: f32[]) {
          return %b
        } : f32[]
      return %7, %q
    } : (f32[], i1[])
  return %8, %3
}
"""

CUSTOM_CALL = """\
ptir.v0.5
func @twice(%x: f32[2]) -> f32[2] {
  %0 = add %x, %x : f32[2]
  return %0
}

func @main(%x: f32[2]) -> (f32[2], si32[]) {
  %0 = composite %x {kind = "vendor.twice.v1", decomposition = @twice, operands = "x", attrs = \
{a = 1, b = 1.0, c = nan, d = f32, e = "f32", f = [1, -2], g = true, h = -0.0}} : f32[2]
  %1 = custom_call {target = "vendor.clock.v2", results = [si32[]]} : si32[]
  return %0, %1
}
"""

OTHERS = """\
ptir.v0.5
func @main(%x: f32[2, 6], %s: f32[6], %seed: ui64[2]) -> \
(f32[2, 6], f8e4m3[3], f32[2, 2], si32[2, 2]) {
  %0 = layer_norm %x, %s, %s {epsilon = 1e-05, axis = 1} : f32[2, 6]
  %1 = rng_normal %seed {shape = [3], dtype = f8e4m3} : f8e4m3[3]
  %2, %3 = top_k %x {k = 2, axis = 1} : (f32[2, 2], si32[2, 2])
  return %0, %1, %2, %3
}
"""

SYMBOLIC = """\
ptir.v0.5
func @main(%x: f32[?0, 3], %y: f32[?1, 3]) -> (f32[?0+?1, 3], f32[2, ?0, 3]) {
  %0 = concat %x, %y {axis = 0} : f32[?0+?1, 3]
  %1 = broadcast_to %x {shape = [2, ?0, 3]} : f32[2, ?0, 3]
  return %0, %1
}
"""

TEXTS = (CONTRACTION, LITERALS, CONTROL_FLOW, CUSTOM_CALL, OTHERS, SYMBOLIC)
