"""The geometry of the kernels of attention, and which keys a query sees.

A task has the operands query [B, H, T, HEAD_DIM] and key [B, K, S, HEAD_DIM] and the result
[B, H, T, VALUE_DIM]; the addresses of value [B, K, S, VALUE_DIM], of the mask [B, H, T, S] and of
the offset are in the geometry; a bias of f32 may replace the mask. Everything is computed in f32.
The order of sums depends on the shape and on which keys are visible, never on threads.
"""

from __future__ import annotations

from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.kernels.elementwise_tasks import OTHERS

FIELDS = range(OTHERS + 33)
"""The numbers of a geometry. Strides count elements, and those of the innermost axes are 1."""
(
    VALUE, MASK, OFFSET, *_UNUSED,  # addresses, filled in by the call
    KV_HEADS, GROUP,  # K, and the heads of queries that share one of them
    T, S, HEAD_DIM, VALUE_DIM,
    QB, QH, QT, KB, KH, KS, VB, VH, VS, MB, MH, MT, MS,  # strides
    OB, OT, OH,
    MASKED, CAUSAL, IS_OFFSET_GIVEN,  # whether there is a mask, a causal one, an offset in memory
    DEFAULT_OFFSET,  # the offset if it is not in memory
    SCALE,  # the bits of an f32
    # Only with AMX: tasks for the queries that share keys, keys that are split at a time, tasks in
    TASKS_A_MATRIX, CHUNK, TASKS, THREADS,  # all, threads,
    VECTOR_TASK,  # the address of the kernel that computes the same without AMX
    GUARD,  # which queries give 0, not NaN: see `GUARDS`
) = FIELDS  # fmt: skip
GUARDS = ("none", "blind", "nan")
"""Words for the queries that give 0, by number: none, those whose every score is -inf, and besides
those with a NaN among their scores."""


@register_jitable
def visible_keys(causal, is_offset_given, default_offset, offset, query, size):
    """Return how many of `size` keys a query sees, those included that a mask hides."""
    if causal == 0:
        return size
    if is_offset_given:
        default_offset = offset[0]
    # Bounded first: the sum of any two of these cannot overflow.
    return min(max(min(default_offset, size) + query + 1, 0), size)
