"""Whole programs as models have them, against NumPy in f64."""

from __future__ import annotations

import numpy as np

from gptrs_conformance.graph import Graph
from gptrs_conformance.running import normal


def perceived(x: np.ndarray, w: np.ndarray, b: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
    """Two layers with a rectifier between them."""
    return [np.maximum(x @ w + b, 0) @ v]


MLP = Graph(
    """
    ptir.v0.5
    func @main(%x: f32[5, 8], %w: f32[8, 16], %b: f32[16], %v: f32[16, 3]) -> f32[5, 3] {
      %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[5, 16]
      %1 = broadcast_to %b {shape = [5, 16]} : f32[5, 16]
      %2 = add %0, %1 : f32[5, 16]
      %3 = maximum %2, f32[5, 16] splat(0.0) : f32[5, 16]
      %4 = dot_general %3, %v {contract_lhs = [1], contract_rhs = [0]} : f32[5, 3]
      return %4
    }
    """,
    {
        "x": normal(1, 5, 8),
        # Divided so that results stay near 1, where the tolerance of the checks holds.
        "w": normal(2, 8, 16) / 4,
        "b": normal(3, 16),
        "v": normal(4, 16, 3) / 4,
    },
    perceived,
)


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
    """Causal attention, the softmax in its stable form."""
    scores = np.einsum("bhtd,bhsd->bhts", q, k) / 2
    scores = np.where(np.tril(np.ones((4, 4), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return [np.einsum("bhts,bhsd->bhtd", weights / weights.sum(-1, keepdims=True), v)]


ATTENTION = Graph(
    """
    ptir.v0.5
    func @main(%q: f32[2, 3, 4, 4], %k: f32[2, 3, 4, 4], %v: f32[2, 3, 4, 4]) -> f32[2, 3, 4, 4] {
      %0 = dot_general %q, %k {contract_lhs = [3], contract_rhs = [3], batch_lhs = [0, 1],
        batch_rhs = [0, 1]} : f32[2, 3, 4, 4]
      %1 = mul %0, f32[2, 3, 4, 4] splat(0.5) : f32[2, 3, 4, 4]
      %row = iota {shape = [4, 4], axis = 0, dtype = si32} : si32[4, 4]
      %column = iota {shape = [4, 4], axis = 1, dtype = si32} : si32[4, 4]
      %2 = compare %column, %row {direction = le} : i1[4, 4]
      %3 = broadcast_to %2 {shape = [2, 3, 4, 4]} : i1[2, 3, 4, 4]
      %4 = select %3, %1, f32[2, 3, 4, 4] splat(-inf) : f32[2, 3, 4, 4]
      %5 = reduce %4 {kind = max, axes = [3], keepdims = true} : f32[2, 3, 4, 1]
      %6 = broadcast_to %5 {shape = [2, 3, 4, 4]} : f32[2, 3, 4, 4]
      %7 = sub %4, %6 : f32[2, 3, 4, 4]
      %8 = exp %7 : f32[2, 3, 4, 4]
      %9 = reduce %8 {kind = sum, axes = [3], keepdims = true} : f32[2, 3, 4, 1]
      %10 = broadcast_to %9 {shape = [2, 3, 4, 4]} : f32[2, 3, 4, 4]
      %11 = div %8, %10 : f32[2, 3, 4, 4]
      %12 = dot_general %11, %v {contract_lhs = [3], contract_rhs = [2], batch_lhs = [0, 1],
        batch_rhs = [0, 1]} : f32[2, 3, 4, 4]
      return %12
    }
    """,
    {name: normal(seed, 2, 3, 4, 4) for seed, name in enumerate("qkv")},
    attended,
)


def normed(x: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
    """Each row divided by the root of its mean square."""
    return [x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * scale]


RMS_NORM = Graph(
    """
    ptir.v0.5
    func @main(%x: f32[3, 8], %scale: f32[8]) -> f32[3, 8] {
      %0 = mul %x, %x : f32[3, 8]
      %1 = reduce %0 {kind = sum, axes = [1], keepdims = true} : f32[3, 1]
      %2 = mul %1, f32[3, 1] splat(0.125) : f32[3, 1]
      %3 = add %2, f32[3, 1] splat(1e-05) : f32[3, 1]
      %4 = rsqrt %3 : f32[3, 1]
      %5 = broadcast_to %4 {shape = [3, 8]} : f32[3, 8]
      %6 = mul %x, %5 : f32[3, 8]
      %7 = broadcast_to %scale {shape = [3, 8]} : f32[3, 8]
      %8 = mul %6, %7 : f32[3, 8]
      return %8
    }
    """,
    {"x": normal(1, 3, 8), "scale": normal(2, 8)},
    normed,
)


def convolved(x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    """Return a 3 x 3 convolution with stride 2 and one of padding, then its 2 x 2 maxima."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    out = np.zeros((1, 4, 4, 5))
    for i, j in np.ndindex(4, 4):
        out[:, i, j] = padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].reshape(1, -1) @ w
    return [out, out.reshape(1, 2, 2, 2, 2, 5).max((2, 4))]


CONVOLUTION = Graph(
    """
    ptir.v0.5
    func @main(%x: f32[1, 8, 8, 2], %w: f32[18, 5]) -> (f32[1, 4, 4, 5], f32[1, 2, 2, 5]) {
      %0 = extract_patches %x {window = [3, 3], strides = [2, 2], padding = [1, 1, 1, 1]}
        : f32[1, 4, 4, 18]
      %1 = dot_general %0, %w {contract_lhs = [3], contract_rhs = [0]} : f32[1, 4, 4, 5]
      %2 = reduce_window %1 {kind = max, window = [1, 2, 2, 1], strides = [1, 2, 2, 1]}
        : f32[1, 2, 2, 5]
      return %1, %2
    }
    """,
    {"x": normal(1, 1, 8, 8, 2), "w": normal(2, 18, 5) / 4},
    convolved,
)


def tied(tokens: np.ndarray, table: np.ndarray) -> list[np.ndarray]:
    """Rows looked up and compared with all rows."""
    scores = table[tokens] @ table.T
    return [scores, scores.argmax(-1)]


EMBEDDING = Graph(
    """
    ptir.v0.5
    func @main(%tokens: si64[2, 3], %table: f32[11, 4]) -> (f32[2, 3, 11], si64[2, 3]) {
      %0 = take %table, %tokens : f32[2, 3, 4]
      %1 = dot_general %0, %table {contract_lhs = [2], contract_rhs = [1]} : f32[2, 3, 11]
      %2 = argmax %1 {axis = 2} : si64[2, 3]
      return %1, %2
    }
    """,
    # The first and the last row, and rows taken twice.
    {"tokens": np.array([[3, 10, 0], [0, 3, 7]]), "table": normal(5, 11, 4)},
    tied,
)


def quantized(x: np.ndarray, w: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
    """Integers that are multiplied exactly, then scaled."""
    # The scale is a power of two: the division is exact, so that no value lies near a tie only in
    # f32.
    q = np.clip(np.rint(x / 0.125), -128, 127).astype(np.int64)
    total = q @ w.astype(np.int64)
    return [total.astype(np.int32), total * 0.125 * scale]


QUANTIZED = Graph(
    """
    ptir.v0.5
    func @main(%x: f32[3, 8], %w: si8[8, 4], %scale: f32[4]) -> (si32[3, 4], f32[3, 4]) {
      %0 = quantize %x, f32[] 0.125, si32[] 0 {dtype = si8} : si8[3, 8]
      %1 = dot_general %0, %w {contract_lhs = [1], contract_rhs = [0], accum_dtype = si32,
        out_dtype = si32} : si32[3, 4]
      %2 = mul %scale, f32[4] splat(0.125) : f32[4]
      %3 = dequantize %1, %2, si32[4] splat(0) {dtype = f32, axis = 1} : f32[3, 4]
      return %1, %3
    }
    """,
    {
        "x": normal(1, 3, 8),
        "w": np.random.default_rng(2).integers(-128, 128, (8, 4)).astype(np.int8),
        "scale": np.abs(normal(3, 4)),
    },
    quantized,
)


def cached(cache: np.ndarray, new: np.ndarray, at: np.ndarray) -> list[np.ndarray]:
    """Return the new rows where they belong, and a window of the cache around them."""
    # As `dynamic_update_slice` clamps it: the block must lie inside.
    start = min(max(int(at), 0), 6)
    after = cache.copy()
    after[start : start + 2] = new
    return [after, after[min(start, 5) : min(start, 5) + 3]]


KV_CACHE = Graph(
    """
    ptir.v0.5
    func @main(%cache: f32[8, 3], %new: f32[2, 3], %at: si32[]) -> (f32[8, 3], f32[3, 3]) {
      %0 = reshape %at {shape = [1]} : si32[1]
      %1 = concat %0, si32[1] [0] {axis = 0} : si32[2]
      %2 = dynamic_update_slice %cache, %new, %1 : f32[8, 3]
      %3 = dynamic_slice %2, %1 {sizes = [3, 3]} : f32[3, 3]
      return %2, %3
    }
    """,
    # The last place where two rows fit, and one where the window of three rows no longer does.
    {"cache": normal(1, 8, 3), "new": normal(2, 2, 3), "at": np.array(6, np.int32)},
    cached,
)


def best(logits: np.ndarray, payload: np.ndarray) -> list[np.ndarray]:
    """The rows of the payload in the order of the largest logits, and their running total."""
    order = np.argsort(-logits, kind="stable")[:3]
    return [order, payload[order], np.cumsum(payload[order], 0)]


RANKING = Graph(
    """
    ptir.v0.5
    func @main(%logits: f32[7], %payload: si32[7, 2]) -> (si64[3], si32[3, 2], si32[3, 2]) {
      %v, %i = top_k %logits {k = 3, indices_dtype = si64} : (f32[3], si64[3])
      %0 = take %payload, %i : si32[3, 2]
      %1 = cumulative %0 {kind = sum, axis = 0} : si32[3, 2]
      return %i, %0, %1
    }
    """,
    {
        # Ties: of equal logits the first comes first, on every backend.
        "logits": np.array([0.5, 2, 2, -1, 3, 0, 2], np.float32),
        "payload": np.arange(14, dtype=np.int32).reshape(7, 2),
    },
    best,
)

CHECKS = [
    MLP.check("a perceptron"),
    ATTENTION.check("causal attention"),
    RMS_NORM.check("root mean square norm"),
    CONVOLUTION.check("a convolution by patches, and pooling"),
    EMBEDDING.check("an embedding with a tied head"),
    QUANTIZED.check("a quantized layer"),
    KV_CACHE.check("a key and value cache"),
    RANKING.check("ranking"),
]
