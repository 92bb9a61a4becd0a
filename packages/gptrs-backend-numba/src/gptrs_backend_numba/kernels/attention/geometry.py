"""What the kernels of attention share: their geometry, which keys a query sees, their operands.

All is computed in f32. The order of sums depends on the shape and on what is visible, never on
threads.
"""

from __future__ import annotations

import re

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.deferred import register_jitable
from gptrs_backend_numba.codegen.registers import load, typed_pointer

FIELDS = (
    "VALUE", "MASK", "OFFSET",  # addresses, filled in by the call
    "HEADS", "GROUP",  # heads of the keys, and heads of the queries for each of them
    "T", "S", "D", "E",
    "QB", "QH", "QT", "KB", "KH", "KS", "VB", "VH", "VS", "MB", "MH", "MT", "MS",  # strides
    "OB", "OT", "OH",
    "MASKED", "CAUSAL", "GIVEN",  # whether there is a mask, a causal one, an offset in memory
    "AHEAD",  # the offset if it is not
    "SCALE",  # the bits of an f32
    # Only on the matrix unit: tasks for the queries of a matrix, keys that are split at a time,
    "RUNS", "CHUNK", "TASKS", "THREADS",  # tasks of all matrices, threads,
    "PLAIN",  # the address of the kernel that computes the same on vector units
)  # fmt: skip
"""The names of the numbers of a geometry; strides count elements, the innermost ones are 1."""


@register_jitable
def seen_keys(causal, given, ahead, place, query, size):
    """How many keys a query sees, hidden ones of a mask included: all, or those up to its own."""
    if causal == 0:
        return size
    if given:
        ahead = place[0]
    # Bounded first: the sum of any two of these cannot overflow.
    return min(max(min(ahead, size) + query + 1, 0), size)


_HEAD = """
# {dtype}
def kernel(query, key, out, geometry, task):
    G = pointer(geometry, np.int64)
    group, size, depth, width = G[GROUP], G[S], G[D], G[E]
    columns = group * G[T]
    scale = pointer(geometry + 8 * {scale}, np.float32)[0]
    P = pointer(G[OFFSET], np.int64)
    HIDDEN = pointer(G[MASK], np.uint8)
"""


def source(body: str, dtype: DType, **parts: object) -> str:
    """A kernel for operands of one type, with the names in brackets `G[NAME]` as numbers."""
    text = (_HEAD + body).format(
        dtype=dtype,
        size=dtype.itemsize,
        scale=FIELDS.index("SCALE"),
        Q=typed_pointer("query", dtype),
        O=typed_pointer("out", dtype),
        q=load(dtype, "Q[place + d]"),
        **parts,
    )
    return re.sub(r"G\[([A-Z]+)\]", lambda word: f"G[{FIELDS.index(word[1])}]", text)
