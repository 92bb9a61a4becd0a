"""All fusions of this backend, in the order in which they run."""

from __future__ import annotations

from gptrs.backend.settings import Precision
from gptrs.optimizer.pass_base import Pass
from gptrs_backend_numba.fusion import is_on
from gptrs_backend_numba.fusion.attention import FUSE_ATTENTION
from gptrs_backend_numba.fusion.biased_attention import FUSE_BIASED_ATTENTION
from gptrs_backend_numba.fusion.code_tables import CODE_TABLES
from gptrs_backend_numba.fusion.convolution import FUSE_CONVOLUTIONS, PADDING, ROUND_CONVOLUTIONS
from gptrs_backend_numba.fusion.convolution_chain import CHANNELS_LAST, ROUNDED_CHAINS
from gptrs_backend_numba.fusion.integer_products import FUSE_INTEGERS
from gptrs_backend_numba.fusion.linear import (
    FUSE_LINEAR,
    NARROW_GROUPS,
    ROUND_TO_BF16,
    TRANSPOSED_WEIGHTS,
)
from gptrs_backend_numba.fusion.loop_codes import WIDEN_IN_LOOPS
from gptrs_backend_numba.fusion.quantized import (
    DECODE_IN_PRODUCTS,
    FUSE_QUANTIZED,
    FUSE_QUANTIZED_GROUPED,
)
from gptrs_backend_numba.fusion.rows import FUSE_NORMS, FUSE_ROTARY, FUSE_SOFTMAX, FUSE_SQUARES

LEGALIZE: tuple[Pass, ...] = (
    WIDEN_IN_LOOPS,
    FUSE_INTEGERS,
    CODE_TABLES,
    TRANSPOSED_WEIGHTS,
    PADDING,
)
"""Passes that absorb neighbours into claimed composites, before parameters are folded."""
FUSE: tuple[Pass, ...] = (
    CHANNELS_LAST,
    FUSE_CONVOLUTIONS,
    NARROW_GROUPS,
    *FUSE_QUANTIZED_GROUPED,
    *FUSE_SOFTMAX,
    *FUSE_ATTENTION,
    *FUSE_BIASED_ATTENTION,
    *FUSE_LINEAR,
    *FUSE_QUANTIZED,
    *FUSE_NORMS,
    *FUSE_SQUARES,
    FUSE_ROTARY,
)
"""Attention has a softmax in it, and a linear layer may be a convolution: those come first.

What a rotary embedding needs is elsewhere mostly part of a norm: it comes last.
"""


def fusions(precision: Precision) -> tuple[Pass, ...]:
    """Return the fusions of a precision: `int8` rounds activations that meet quantized weights."""
    if precision == "int8":
        return FUSE if is_on() else ()
    rounding = (*FUSE_QUANTIZED, *FUSE_QUANTIZED_GROUPED)
    exact = tuple(each for each in FUSE if each not in rounding) if is_on() else ()
    rounded = (ROUND_CONVOLUTIONS, ROUNDED_CHAINS, *ROUND_TO_BF16) if precision == "bf16" else ()
    return (*exact, *rounded, *((DECODE_IN_PRODUCTS,) if is_on() else ()))
