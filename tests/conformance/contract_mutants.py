"""Wrong control flow, and what any kernel can do wrong to its operands and results."""

from __future__ import annotations

import numpy as np

from conformance.mutation import Kernel, Mutations
from gptrs.ir import Op

MUTATIONS = Mutations()
wrong, with_attributes = MUTATIONS.wrong, MUTATIONS.with_attributes


@wrong("the branches are swapped", "cond")
def _(kernel: Kernel) -> Kernel:
    return lambda op, p, *xs, bodies: kernel(op, ~p, *xs, bodies=bodies)


@wrong("the loop runs once too often", "while")
def _(kernel: Kernel) -> Kernel:
    return lambda op, *xs, bodies: bodies[1](*kernel(op, *xs, bodies=bodies))


with_attributes("reverse ignored by scan", "scan", reverse=False)


@wrong("an operand is overwritten", "neg", "exp")
def _(kernel: Kernel) -> Kernel:
    def in_place(op: Op, x: np.ndarray) -> np.ndarray:
        result = kernel(op, x)
        if x.size and x.flags.writeable:
            x[...] = result
        return result.copy()

    return in_place


@wrong("a bare exception", "tanh")
def _(kernel: Kernel) -> Kernel:
    def crash(op: Op, x: np.ndarray) -> np.ndarray:
        raise KeyError("no such kernel")

    return crash


@wrong("the result has another type", "compare", "is_finite")
def _(kernel: Kernel) -> Kernel:
    return lambda op, *xs: kernel(op, *xs).astype(np.uint8)


@wrong("rank 0 becomes rank 1", "add", "reduce")
def _(kernel: Kernel) -> Kernel:
    return lambda op, *xs: np.atleast_1d(kernel(op, *xs))
