"""Activations after a convolution that are more than bounds, in place, while it is in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from gptrs_backend_numba.codegen.inlining import named_intrinsic, types
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.vector_ir import (
    FUSED,
    VECTOR,
    WIDTH,
    VectorEmitter,
    splat,
    words,
)
from gptrs_backend_numba.kernels.convolution.direct import masked_load, masked_store, masks_of

_ROUNDER = 1.5 * 2**23
"""Added to a small number, it leaves the nearest integer in the last bits of the sum."""
_LN2 = 0.6931471824645996
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
"""The logarithm of 2 as one f32, and as two: the first times a small integer is exact."""
_EXP = (0.008312501013278961, 0.041890330612659454, 0.16667115688323975, 0.499992311000824, 1.0)
"""Coefficients of `(e^r - 1) / r`, highest first: 1e-7 of `e^r` where |r| <= ln(2) / 2.

Fewer than those of attention, with which a pointwise layer of EfficientNet takes a seventh longer.
"""
_LEAST, _MOST = -89.0, 87.0
"""Bounds of `x` in `1 + e^-x`: beyond them it is infinite, or 1."""


@kernel
def activate(out, rows, step, width, p4, p5, p6, p7, p8, *, activated_rows):
    """Apply an activation to `rows` rows of `width` numbers, `step` bytes apart."""
    activated_rows(out, rows, step, width)
    return 0


@cache
def _activated_rows(name: str):
    """Intrinsic: what `activate` does, for one of `ACTIVATED`."""

    @named_intrinsic(f"activated_rows_{name}")
    def apply(typing_context, out, rows, step, width):
        def generate(context, builder, signature, arguments):
            out, rows, step, width = arguments
            emit = VectorEmitter(builder)

            def row(_, state):
                (start,) = state

                def vector(c, _):
                    address = emit.moved(start, (c, 4))
                    # Behind the last channel are those of the next position.
                    for (mask,) in masks_of(emit, builder.sub(width, c)):
                        value = ACTIVATED[name](emit, masked_load(emit, address, mask))
                        masked_store(emit, value, address, mask)
                    return []

                emit.loop(width, WIDTH, [], vector)
                return [emit.moved(start, (step, 1))]

            emit.loop(rows, 1, [emit.pointer(out)], row)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return apply


def _between(emit, x, low, high):
    """Return `x` within two bounds; NaN stays NaN."""
    b, low, high = emit.builder, splat(low), splat(high)
    x = b.select(b.fcmp_ordered("<", x, low), low, x)
    return b.select(b.fcmp_ordered(">", x, high), high, x)


def _silu(emit, x):
    """Return `x / (1 + e^-x)`; 0 for x below -88.4, where `e^-x` is near the largest f32."""
    b = emit.builder
    bent = _between(emit, x, _LEAST, _MOST)
    power = emit.multiply_add(bent, splat(-1 / math.log(2)), splat(_ROUNDER))
    n = b.fsub(power, splat(_ROUNDER))
    minus = b.fneg(bent)
    if FUSED:
        r = emit.multiply_add(n, splat(-_LN2), minus)
    else:
        r = emit.multiply_add(n, splat(-_LN2_HIGH), minus)
        r = emit.multiply_add(n, splat(-_LN2_LOW), r)
    p = splat(_EXP[0])
    for coefficient in (*_EXP[1:], 1.0):
        p = emit.multiply_add(p, r, splat(coefficient))
    # The bits of the rounder are shifted out, which leaves those of 2^n.
    bits = b.add(b.bitcast(power, words(0).type), words(127))
    scale = b.bitcast(b.shl(bits, words(23)), VECTOR)
    return b.fdiv(x, emit.multiply_add(p, scale, splat(1.0)))


_NORMAL = (
    -1.28630040e-6, 2.01821695e-5, -9.99099357e-5, -1.54507972e-4,
    4.96031670e-3, -3.64231430e-2, -3.18289965e-1, -7.97886014e-1,
)  # fmt: skip
"""Coefficients of `p(|x|) / |x|`, where `e^p` is twice the smaller share of the normal distribution
beyond `x`, see `scalar.normal_share_f32`."""


def _gelu(emit, x):
    """Return `x` times the share of the normal distribution below it, within 1.2e-7 of `x`."""
    b = emit.builder
    t = b.bitcast(b.and_(b.bitcast(x, words(0).type), words(0x7FFFFFFF)), VECTOR)
    p = splat(_NORMAL[0])
    for coefficient in _NORMAL[1:]:
        p = emit.multiply_add(p, t, splat(coefficient))
    p = b.fmul(p, t)
    power = emit.multiply_add(p, splat(1 / math.log(2)), splat(_ROUNDER))
    n = b.fsub(power, splat(_ROUNDER))
    r = emit.multiply_add(n, splat(-_LN2), p)  # one step: n >= -26 where it counts
    e = splat(_EXP[0])
    for coefficient in (*_EXP[1:], 1.0):
        e = emit.multiply_add(e, r, splat(coefficient))
    bits = b.add(b.bitcast(power, words(0).type), words(126))
    half = b.bitcast(b.shl(bits, words(23)), VECTOR)
    less = b.select(b.fcmp_ordered(">", p, splat(-87.0)), b.fmul(e, half), splat(0.0))
    share = b.select(b.fcmp_ordered("<", x, splat(0.0)), less, b.fsub(splat(1.0), less))
    return b.fmul(x, share)


def _hard_swish(emit, x):
    """Return `x * relu6(x + 3) / 6`."""
    b = emit.builder
    raised = _between(emit, b.fadd(x, splat(3.0)), 0.0, 6.0)
    return b.fmul(x, b.fmul(raised, splat(1 / 6)))


ACTIVATED: Mapping[str, Callable[[VectorEmitter, Any], Any]] = {
    "silu": _silu,
    "hard_swish": _hard_swish,
    "gelu": _gelu,
}
"""The activations, by name, of a vector."""


def activation(name: str) -> SpecializedKernel:
    """Return the kernel that applies one of `ACTIVATED`."""
    return activate.specialize(activated_rows=_activated_rows(name))
