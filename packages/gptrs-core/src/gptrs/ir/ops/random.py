"""Ops that make random numbers from a seed: the same bits on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op, op
from gptrs.ir.size_guards import Shape
from gptrs.ir.tensor_type import TensorType


class Random(Op):
    """Common base of the random ops: a seed in, a tensor of a given type out."""

    shape: Shape
    dtype: DType
    allowed: ClassVar[tuple[DType, ...]]
    """The element types that the numbers may have."""

    def infer(self, seed: TensorType) -> TensorType:
        """`dtype[shape]`."""
        if seed != TensorType(dtypes.ui64, (2,)):
            raise self.error("needs a seed of ui64[2]", seed)
        if self.dtype not in self.allowed:
            wanted = " ".join(map(str, self.allowed))
            raise self.error(f"needs one of the dtypes {wanted}, got {self.dtype}", seed)
        return TensorType(self.dtype, self.shape)

    def key_dtype(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> DType:
        """Return the type of the numbers, since the seed always has the same."""
        return results[0].dtype


@op("rng_uniform")
class RngUniform(Random):
    """Uniform random numbers: of [0, 1) for floats, all values for `ui32` and `ui64`.

    They come from the counter-based generator Philox 4x32-10 and are bit-exact. `seed` holds a key
    and a counter. Block `b` = 0, 1, ... is four 32-bit words, `w[4b] .. w[4b + 3]`: the words
    `c0 c1 c2 c3` of the 128-bit number `seed[1] + b`, least significant first, after ten rounds
    with the key `k0 k1`, at first the low and the high half of `seed[0]`. A round is, with
    `p = 0xD2511F53 * c0` and `q = 0xCD9E8D57 * c2` as 64-bit products,
    `c0 c1 c2 c3 = high(q) ^ c1 ^ k0, low(q), high(p) ^ c3 ^ k1, low(p)`, and after it
    `k0 = k0 + 0x9E3779B9`, `k1 = k1 + 0xBB67AE85` modulo 2^32.

    Element `i` of the result, in row-major order, is derived from the word `v = w[i]`, for a 64-bit
    type from `v = w[2i] + 2^32 * w[2i + 1]`. An unsigned result is `v` itself. A float is
    `floor(v / 2^(W - p)) * 2^-p`: the `p` leading of the `W` = 32 or 64 bits of `v`, where `p` is
    53 for f64, 24 for f32, 11 for f16, 8 for bf16, 4 for f8e4m3, 3 for f8e5m2. Every such number
    is exact in its type. So a draw of `n` elements and one with `n / 4` (64-bit: `n / 2`) added to
    the counter follow each other in the same stream, if that is whole.
    """

    shape: Shape
    dtype: DType
    allowed = (dtypes.ui32, dtypes.ui64, *dtypes.FLOATS)


@op("rng_normal")
class RngNormal(Random):
    """Normal random numbers of mean 0 and variance 1, of a float type, bit-exact.

    Element `i` is made of the same `v` as in `rng_uniform`. `u = (v + 0.5) * 2^-32`, for f64
    `u = (floor(v / 2^12) + 0.5) * 2^-52`: exact in f64, and never 0 or 1. The result is the inverse
    of the normal distribution function at `u`, by Wichura's algorithm AS 241 (PPND16), computed in
    f64 and rounded once, to nearest even, to `dtype`. Each operation below follows IEEE 754, is
    rounded to nearest even separately (nothing is fused), and is done in the order of the brackets.
    `P(x; a, b, .., z)` is a polynomial by Horner's rule, `(((a * x) + b) * x + ..) * x + z`.

    `q = u - 0.5`. If `|q| <= 0.425`: `r = 0.180625 - q * q`, result
    `(q * P(r; A)) / P(r; B)`. Else `t = sqrt(-log(min(u, 1 - u)))`; if `t <= 5`: `s = t - 1.6`,
    result `P(s; C) / P(s; D)`, else `s = t - 5`, result `P(s; E) / P(s; F)`, negated where `q < 0`.
    `log(x)`, `x = m * 2^e` with `0.7071067811865476 <= m < 2 * 0.7071067811865476`:
    `s = (m - 1) / (m + 1)`, result
    `(e * 0.6931471805599453) + (2 * s) * P(s * s; 1/21, 1/19, .., 1/3, 1)`, each fraction rounded
    to f64.

    A = 2509.0809287301227, 33430.57558358813, 67265.7709270087, 45921.95393154987,
    13731.69376550946, 1971.5909503065513, 133.14166789178438, 3.3871328727963665.
    B = 5226.495278852854, 28729.085735721943, 39307.89580009271, 21213.794301586597,
    5394.196021424751, 687.1870074920579, 42.31333070160091, 1.0.
    C = 0.0007745450142783414, 0.022723844989269184, 0.2417807251774506, 1.2704582524523684,
    3.6478483247632045, 5.769497221460691, 4.630337846156546, 1.4234371107496835.
    D = 1.0507500716444169e-09, 0.0005475938084995345, 0.015198666563616457, 0.14810397642748008,
    0.6897673349851, 1.6763848301838038, 2.053191626637759, 1.0.
    E = 2.0103343992922881e-07, 2.7115555687434876e-05, 0.0012426609473880784,
    0.026532189526576124, 0.29656057182850487, 1.7848265399172913, 5.463784911164114,
    6.657904643501103.
    F = 2.0442631033899397e-15, 1.421511758316446e-07, 1.8463183175100548e-05,
    0.0007868691311456133, 0.014875361290850615, 0.1369298809227358, 0.599832206555888, 1.0.
    """

    shape: Shape
    dtype: DType
    allowed = dtypes.FLOATS
