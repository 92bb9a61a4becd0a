"""Programs with symbolic dims, by what they are made of; parameters are the inputs `%w..`."""

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
    "empty for the least size": """
func @main(%x: f32[?0, 6, ?1])
    -> (f32[?0-1, 6, ?1], f32[6, ?1], f32[?0-1, ?1], f32[2*?0-2, 6, ?1]) {
  %0 = slice %x {starts = [1, 0, 0], sizes = [?0-1, 6, ?1]} : f32[?0-1, 6, ?1]
  %1 = exp %0 : f32[?0-1, 6, ?1]
  %2 = reduce %1 {kind = sum, axes = [0]} : f32[6, ?1]
  %3 = reduce %0 {kind = max, axes = [1]} : f32[?0-1, ?1]
  %4 = pad %x {low = [?0, 0, 0], high = [-2, 0, 0]} : f32[2*?0-2, 6, ?1]
  return %1, %2, %3, %4
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
    "block": """
func @main(%x: f32[?0, 96], %w0: f32[288, 96], %w1: f32[288], %w2: f32[96, 96], %w3: f32[96])
    -> (f32[?0, 96], f32[1, 4, ?0, 24]) {
  %n = custom_call %x, %w3, %w3 {target = "gptrs.numba.layer_norm.f32.v1",
    results = [f32[?0, 96]], attrs = {epsilon = 1.0e-5, weight = true, bias = true}} : f32[?0, 96]
  %0 = custom_call %n, %w0, %w1 {target = "gptrs.numba.linear.f32.v1",
    results = [f32[?0, 288]], attrs = {layout = "out_in", activation = "none", bias = true,
    residual = false}} : f32[?0, 288]
  %1 = reshape %0 {shape = [1, ?0, 3, 4, 24]} : f32[1, ?0, 3, 4, 24]
  %2 = transpose %1 {permutation = [0, 2, 3, 1, 4]} : f32[1, 3, 4, ?0, 24]
  %3 = slice %2 {starts = [0, 0, 0, 0, 0], sizes = [1, 1, 4, ?0, 24]} : f32[1, 1, 4, ?0, 24]
  %4 = slice %2 {starts = [0, 1, 0, 0, 0], sizes = [1, 1, 4, ?0, 24]} : f32[1, 1, 4, ?0, 24]
  %5 = slice %2 {starts = [0, 2, 0, 0, 0], sizes = [1, 1, 4, ?0, 24]} : f32[1, 1, 4, ?0, 24]
  %q = reshape %3 {shape = [1, 4, ?0, 24]} : f32[1, 4, ?0, 24]
  %k = reshape %4 {shape = [1, 4, ?0, 24]} : f32[1, 4, ?0, 24]
  %v = reshape %5 {shape = [1, 4, ?0, 24]} : f32[1, 4, ?0, 24]
  %a = custom_call %q, %k, %v {target = "gptrs.numba.attention.f32.v1",
    results = [f32[1, 4, ?0, 24]], attrs = {scale = 0.25, causal = true, mask = false,
    offset = false, guard = "blind"}} : f32[1, 4, ?0, 24]
  %b = transpose %a {permutation = [0, 2, 1, 3]} : f32[1, ?0, 4, 24]
  %c = reshape %b {shape = [?0, 96]} : f32[?0, 96]
  %d = custom_call %c, %w2, %x {target = "gptrs.numba.linear.f32.v1",
    results = [f32[?0, 96]], attrs = {layout = "out_in", activation = "none", bias = false,
    residual = true}} : f32[?0, 96]
  return %d, %a
}""",
    "attention over a cache": """
func @main(%q: bf16[?0, 8, ?1, 16], %k: bf16[?0, 2, ?1+40, 16], %v: bf16[?0, 2, ?1+40, 16],
    %o: si64[]) -> bf16[?0, 8, ?1, 16] {
  %0 = custom_call %q, %k, %v, %o {target = "gptrs.numba.attention.bf16.v1",
    results = [bf16[?0, 8, ?1, 16]], attrs = {scale = 0.25, causal = true, mask = false,
    offset = true, guard = "blind"}} : bf16[?0, 8, ?1, 16]
  return %0
}""",
    "rotary": """
func @main(%x: f32[?0, ?1, 4, 32], %c: f32[?0, ?1, 4, 12]) -> f32[?0, ?1, 4, 32] {
  %0 = custom_call %x, %c, %c {target = "gptrs.numba.rotary.f32.v1",
    results = [f32[?0, ?1, 4, 32]], attrs = {interleaved = false}} : f32[?0, ?1, 4, 32]
  return %0
}""",
    "rows": """
func @main(%x: f16[?0, 3, ?1], %w: f16[40], %y: f16[?1, 40])
    -> (f16[?0, 3, ?1], f16[?1, 40]) {
  %0 = custom_call %x {target = "gptrs.numba.softmax.f16.v1",
    results = [f16[?0, 3, ?1]], attrs = {}} : f16[?0, 3, ?1]
  %1 = custom_call %y, %w {target = "gptrs.numba.rms_norm.f16.v1",
    results = [f16[?1, 40]], attrs = {epsilon = 1.0e-5, weight = true}} : f16[?1, 40]
  return %0, %1
}""",
    "convolution": """
func @main(%x: f32[?0, 6, 6, 16], %w: f32[144, 16]) -> f32[?0, 6, 6, 16] {
  %0 = custom_call %x, %w {target = "gptrs.numba.conv2d.f32.v1",
    results = [f32[?0, 6, 6, 16]], attrs = {window = [3, 3], stride = [1, 1],
    padding = [1, 1, 1, 1], dilation = [1, 1], scale = false, shift = false, residual = false,
    activation = "none"}} : f32[?0, 6, 6, 16]
  return %0
}""",
}
