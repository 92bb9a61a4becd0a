"""The kernel that computes the sizes of a run, and the code that it reads.

Sizes are int64 in slots. Every instruction is its number, the slot of its result, and operands;
slots of constants and symbols are filled before.

- `SUM to constant count (factor slot)..`
- `PRODUCT to a b`
- `FLOORDIV to a b`, rounded down as in Python
- `LEAST to a b`
- `GREATEST to a b`
- `SELECT to condition a b`: a where the condition is >= 0, else b
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import pointer

SUM, PRODUCT, FLOORDIV, LEAST, GREATEST, SELECT = range(6)


@kernel
def compute_sizes(code, length, slots):
    """Run `length` words of code on the slots."""
    C = pointer(code, np.int64)
    S = pointer(slots, np.int64)
    at = 0
    while at < length:
        what, to = C[at], C[at + 1]
        if what == SUM:
            total = C[at + 2]
            for term in range(C[at + 3]):
                total += C[at + 4 + 2 * term] * S[C[at + 5 + 2 * term]]
            S[to] = total
            at += 4 + 2 * C[at + 3]
            continue
        a, b = S[C[at + 2]], S[C[at + 3]]
        if what == SELECT:
            S[to] = b if a >= 0 else S[C[at + 4]]
            at += 1
        elif what == PRODUCT:
            S[to] = a * b
        elif what == LEAST:
            S[to] = min(a, b)
        elif what == GREATEST:
            S[to] = max(a, b)
        elif b != 0:
            S[to] = a // b
        at += 4
    return 0


@kernel
def place_sizes(uses, count, slots, words):
    """Write sums of two slots to words: `count` times (word, slot, slot)."""
    U = pointer(uses, np.int64)
    S = pointer(slots, np.int64)
    W = pointer(words, np.int64)
    for use in range(count):
        W[U[3 * use]] = S[U[3 * use + 1]] + S[U[3 * use + 2]]
    return 0
