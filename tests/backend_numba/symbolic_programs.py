"""Programs with symbolic dims, by what they are made of."""

from __future__ import annotations

FAMILIES = {
    "elementwise": """
func @main(%x: f32[?0, 96], %w: f32[96], %n: si32[?0, 96])
    -> (f32[?0, 96], f32[96, ?0], si32[?0, 96]) {
  %0 = tanh %x : f32[?0, 96]
  %1 = broadcast_to %w {shape = [?0, 96]} : f32[?0, 96]
  %2 = mul %0, %1 : f32[?0, 96]
  %3 = transpose %2 {permutation = [1, 0]} : f32[96, ?0]
  %4 = exp %3 : f32[96, ?0]
  %5 = add %n, %n : si32[?0, 96]
  return %2, %4, %5
}""",
    "two symbols": """
func @main(%x: f32[?0, ?1, 8], %y: f32[?1, 1]) -> (f32[?1, ?0, 8], f32[?0*?1, 8]) {
  %0 = broadcast_to %y {shape = [?0, ?1, 8]} : f32[?0, ?1, 8]
  %1 = sub %x, %0 : f32[?0, ?1, 8]
  %2 = transpose %1 {permutation = [1, 0, 2]} : f32[?1, ?0, 8]
  %3 = logistic %2 : f32[?1, ?0, 8]
  %4 = reshape %1 {shape = [?0*?1, 8]} : f32[?0*?1, 8]
  %5 = neg %4 : f32[?0*?1, 8]
  return %3, %5
}""",
    "layout": """
func @main(%x: f32[?0, 6], %y: f32[2, 6])
    -> (f32[?0+2, 6], f32[?0, 2, 3], f32[2*?0, 6], f32[?0+5, 6], f32[6, ?0], f32[1, 6]) {
  %0 = concat %x, %y {axis = 0} : f32[?0+2, 6]
  %1 = reshape %x {shape = [?0, 2, 3]} : f32[?0, 2, 3]
  %2 = reverse %1 {axes = [0, 2]} : f32[?0, 2, 3]
  %3 = tile %x {repeats = [2, 1]} : f32[2*?0, 6]
  %4 = pad %x {low = [2, 0], high = [3, 0]} : f32[?0+5, 6]
  %5 = transpose %x {permutation = [1, 0]} : f32[6, ?0]
  %6 = slice %x {starts = [?0-1, 0], sizes = [1, 6]} : f32[1, 6]
  return %0, %2, %3, %4, %5, %6
}""",
    "reduction": """
func @main(%x: f32[?0, 5, ?1])
    -> (f32[?0, 5], f32[5], f32[?1], f32[?0, ?1], si64[?0, 5], si64[5, ?1], f32[]) {
  %0 = reduce %x {kind = sum, axes = [2]} : f32[?0, 5]
  %1 = reduce %x {kind = sum, axes = [0, 2]} : f32[5]
  %2 = reduce %x {kind = max, axes = [0, 1]} : f32[?1]
  %3 = reduce %x {kind = prod, axes = [1]} : f32[?0, ?1]
  %4 = argmax %x {axis = 2} : si64[?0, 5]
  %5 = argmin %x {axis = 0} : si64[5, ?1]
  %6 = reduce %x {kind = sum, axes = [0, 1, 2]} : f32[]
  return %0, %1, %2, %3, %4, %5, %6
}""",
    "lines": """
func @main(%x: f32[?0, 64], %w: f32[64], %y: f32[4, ?0])
    -> (f32[?0, 64], f32[4, ?0], f32[?0, 64], f32[4, ?0], f32[?0, 3]) {
  %0 = layer_norm %x, %w, %w {axis = 1, epsilon = 0.00001} : f32[?0, 64]
  %1 = cumulative %y {kind = sum, axis = 1} : f32[4, ?0]
  %2 = cumulative %x {kind = max, axis = 0, reverse = true} : f32[?0, 64]
  %3 = sort %y {axis = 1, descending = true} : f32[4, ?0]
  %4, %5 = top_k %x {k = 3, axis = 1} : (f32[?0, 3], si32[?0, 3])
  return %0, %1, %2, %3, %4
}""",
    "indexing": """
func @main(%x: f32[?0, 12], %i: si64[?1], %j: si64[?0, 12], %p: f32[40, 12], %s: si32[2])
    -> (f32[?1, 12], f32[40, 12], f32[?1, 12], f32[40, 12], f32[?0+40, 12], f32[?0, 12]) {
  %0 = take %p, %i : f32[?1, 12]
  %1 = segment_reduce %0, %i {kind = sum, num_segments = 40} : f32[40, 12]
  %2 = neg %0 : f32[?1, 12]
  %3 = scatter_reduce %p, %j, %x {kind = max, axis = 0} : f32[40, 12]
  %4 = concat %p, %x {axis = 0} : f32[?0+40, 12]
  %5 = dynamic_update_slice %4, %x, %s : f32[?0+40, 12]
  %6 = dynamic_slice %5, %s {sizes = [?0, 12]} : f32[?0, 12]
  return %0, %1, %2, %3, %5, %6
}""",
    "creation": """
func @main(%x: f32[?0, 12]) -> (f32[?0, 12], si32[?0, 3], f16[12, ?0], si16[?0]) {
  %c = constant {value = 1.5} : f32[]
  %0 = broadcast_to %c {shape = [?0, 12]} : f32[?0, 12]
  %1 = add %x, %0 : f32[?0, 12]
  %2 = iota {shape = [?0, 3], axis = 0, dtype = si32} : si32[?0, 3]
  %3 = iota {shape = [12, ?0], axis = 1, dtype = f16} : f16[12, ?0]
  %4 = iota {shape = [?0], axis = 0, dtype = si16} : si16[?0]
  return %1, %2, %3, %4
}""",
    "loops": """
func @main(%n: si32[], %x: f32[?0, 20], %s: f32[20]) -> (f32[20], f32[?0, 20], f32[?0, 20]) {
  %0, %1 = scan %s, %x {carry_count = 1, reverse = true}
    body(%total: f32[20], %row: f32[20]) {
      %0 = add %total, %row : f32[20]
      %1 = neg %total : f32[20]
      return %0, %1
    } : (f32[20], f32[?0, 20])
  %2, %3 = while %n, %x
    condition(%j: si32[], %c: f32[?0, 20]) {
      %0 = compare %j, si32[] 40 {direction = lt} : i1[]
      return %0
    }
    body(%j: si32[], %c: f32[?0, 20]) {
      %0 = add %j, si32[] 3 : si32[]
      %1 = add %c, %c : f32[?0, 20]
      return %0, %1
    } : (si32[], f32[?0, 20])
  return %0, %1, %3
}""",
    "products": """
func @main(%x: f32[?0, 96], %w: f32[96, 40], %y: f32[?1, 96], %b: f32[3, ?0, 96])
    -> (f32[?0, 40], f32[?0, ?1], f32[3, ?0, ?0], f32[?1, 96], f32[96, 40]) {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[?0, 40]
  %1 = dot_general %x, %y {contract_lhs = [1], contract_rhs = [1]} : f32[?0, ?1]
  %2 = dot_general %b, %b
    {contract_lhs = [2], contract_rhs = [2], batch_lhs = [0], batch_rhs = [0]} : f32[3, ?0, ?0]
  %3 = dot_general %1, %x {contract_lhs = [0], contract_rhs = [0]} : f32[?1, 96]
  %4 = dot_general %x, %0 {contract_lhs = [0], contract_rhs = [0]} : f32[96, 40]
  return %0, %1, %2, %3, %4
}""",
    "integer products": """
func @main(%x: si32[?0, 9], %w: si32[9, 4]) -> si32[?0, 4] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : si32[?0, 4]
  return %0
}""",
    "windows": """
func @main(%x: f32[?0, 8, 8, 3]) -> (f32[?0, 4, 4, 3], f32[?0, 8, 8, 27]) {
  %0 = reduce_window %x {kind = max, window = [1, 2, 2, 1], strides = [1, 2, 2, 1]}
    : f32[?0, 4, 4, 3]
  %1 = extract_patches %x {window = [3, 3], padding = [1, 1, 1, 1]} : f32[?0, 8, 8, 27]
  return %0, %1
}""",
}
