"""Kernels that run regions and functions."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.ops.control_flow import Call, Cond, Scan, While
from gptrs.ir.ops.custom_call import Composite
from gptrs_backend_ref.table import TABLE, Body

Arrays = tuple[np.ndarray, ...]


@TABLE.register(Cond, dtypes=[dtypes.i1])
def cond(
    op: Cond, predicate: np.ndarray, *operands: np.ndarray, bodies: tuple[Body, Body]
) -> Arrays:
    """Run the first region if the predicate is true, else the second."""
    then, otherwise = bodies
    return then(*operands) if predicate else otherwise(*operands)


@TABLE.register(While, dtypes=[dtypes.i1])
def while_(op: While, *state: np.ndarray, bodies: tuple[Body, Body]) -> Arrays:
    """Run the body while the condition holds; return the first state for which it does not."""
    condition, body = bodies
    while condition(*state)[0]:
        state = body(*state)
    return state


@TABLE.register(Scan, dtypes=[dtypes.i1])
def scan(op: Scan, *operands: np.ndarray, bodies: tuple[Body]) -> Arrays:
    """Run the body for each step; return the last carried values, then the stacked results."""
    (body,) = bodies
    carried, scanned = operands[: op.carry_count], operands[op.carry_count :]
    length = len(scanned[0]) if op.length is None else op.length
    ys_types = body.signature.results[op.carry_count :]
    stacked = [np.empty((length, *type_.shape), type_.dtype.numpy) for type_ in ys_types]
    for i in reversed(range(length)) if op.reverse else range(length):
        results = body(*carried, *(x[i, ...] for x in scanned))
        carried, ys = results[: op.carry_count], results[op.carry_count :]
        for stack, y in zip(stacked, ys, strict=True):
            stack[i] = y
    return (*carried, *stacked)


@TABLE.register(Call, Composite, dtypes=[dtypes.i1])
def call(op: Call | Composite, *operands: np.ndarray, bodies: tuple[Body]) -> Arrays:
    """Run the function."""
    return bodies[0](*operands)
