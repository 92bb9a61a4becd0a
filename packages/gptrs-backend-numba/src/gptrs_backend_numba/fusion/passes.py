"""All fusions of this backend, in the order in which they run."""

from __future__ import annotations

from gptrs.backend.precision import Precision
from gptrs.optimizer.pass_base import Pass
from gptrs_backend_numba.fusion.attention import FUSE_ATTENTION
from gptrs_backend_numba.fusion.convolution import FUSE_CONVOLUTIONS
from gptrs_backend_numba.fusion.grouped_linear import FUSE_GROUPED_LINEAR
from gptrs_backend_numba.fusion.linear import FUSE_LINEAR
from gptrs_backend_numba.fusion.paged_attention import FUSE_PAGED_ATTENTION
from gptrs_backend_numba.fusion.quantized import FUSE_QUANTIZED
from gptrs_backend_numba.fusion.rotary import FUSE_ROTARY
from gptrs_backend_numba.fusion.rows import FUSE_ROWS
from gptrs_backend_numba.fusion.switch import is_on

FUSE: tuple[Pass, ...] = (
    FUSE_CONVOLUTIONS,
    *FUSE_PAGED_ATTENTION,
    *FUSE_GROUPED_LINEAR,
    *FUSE_ATTENTION,
    *FUSE_LINEAR,
    *FUSE_QUANTIZED,
    *FUSE_ROWS,
    FUSE_ROTARY,
)
"""A softmax is part of attention, and a linear layer may be a convolution: those come first.

What a rotary embedding needs is elsewhere mostly part of a norm: it comes last.
"""


def fusions(precision: Precision) -> tuple[Pass, ...]:
    """Return `FUSE`, for f32 without what rounds activations; nothing where it is switched off."""
    if not is_on():
        return ()
    return FUSE if precision == "int8" else tuple(p for p in FUSE if p not in FUSE_QUANTIZED)
