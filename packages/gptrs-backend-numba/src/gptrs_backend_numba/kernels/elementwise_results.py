"""Elementwise kernels with several results: operands that they share are read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import load, pointer, store, typed_pointer
from gptrs_backend_numba.codegen.separate_memory import MOST_RESULTS as MOST_RESULTS
from gptrs_backend_numba.codegen.tasks import share_tasks
from gptrs_backend_numba.kernels.elementwise import Access, Operation, expression

MOST_TENSORS = 16
"""The most operands and results of a kernel together."""


@kernel
def run_results(
    state, function, count, threads, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, geometry
):
    """Run the tasks of a kernel; tensors that it does not have may be any address."""
    G = pointer(geometry, np.int64)
    G[0], G[1], G[2], G[3], G[4], G[5], G[6], G[7] = a, b, c, d, e, f, g, h
    G[8], G[9], G[10], G[11], G[12], G[13], G[14], G[15] = i, j, k, l, m, n, o, p
    share_tasks(state, function, count, threads, a, b, p, geometry)
    return 0


def results_source(
    rank: int,
    inputs: Sequence[Access],
    outputs: Mapping[str, Access],
    operations: Sequence[Operation],
) -> str:
    """Return a task of `run_results` that computes one block of all results.

    `outputs` has the accesses of results by the registers that hold them. The geometry has the
    addresses, of the inputs first and of the results last, the sizes of the axes, those of a block,
    and the strides of each tensor that is not fixed.
    """
    lines = ["def kernel(first, second, last, geometry, task):"]
    lines.append("    G = pointer(geometry, np.int64)")
    for axis in reversed(range(rank)):
        size, part = f"G[{MOST_TENSORS + axis}]", f"G[{MOST_TENSORS + rank + axis}]"
        lines += [
            f"    count = ({size} + {part} - 1) // {part}",
            f"    b{axis} = task % count * {part}",
            f"    n{axis} = min({size}, b{axis} + {part})",
            "    task = task // count",
        ]
    at = MOST_TENSORS + 2 * rank
    first = MOST_TENSORS - len(outputs)
    numbers = (*range(len(inputs)), *range(first, MOST_TENSORS))
    for number, access in zip(numbers, (*inputs, *outputs.values()), strict=True):
        lines.append(f"    p_{access.name} = {typed_pointer(f'G[{number}]', access.dtype)}")
        if access.fixed:
            lines.append(f"    {access.name} = {load(access.dtype, f'p_{access.name}[0]')}")
            continue
        lines += [f"    s_{access.name}{axis} = G[{at + axis}]" for axis in range(rank)]
        at += rank
    for axis in range(rank):
        lines.append("    " * (axis + 1) + f"for i{axis} in range(b{axis}, n{axis}):")
    lines += ["    " * (rank + 1) + line for line in _body(rank, inputs, outputs, operations)]
    return "\n".join([*lines, "    return 0"]) + "\n"


def _body(
    rank: int,
    inputs: Sequence[Access],
    outputs: Mapping[str, Access],
    operations: Sequence[Operation],
) -> list[str]:
    lines: list[str] = []
    for access in (each for each in inputs if not each.fixed):
        element = f"read_apart(p_{access.name}, {_index(access, rank)})"
        lines.append(f"{access.name} = {load(access.dtype, element)}")
    lines += [f"{each.result[0]} = {expression(each)}" for each in operations]
    for number, (name, access) in enumerate(outputs.items()):
        value = store(access.dtype, name)
        lines.append(f"write_apart_{number}(p_{access.name}, {_index(access, rank)}, {value})")
    return lines


def _index(access: Access, rank: int) -> str:
    terms = [f"i{axis} * s_{access.name}{axis}" for axis in range(rank - 1)]
    terms += {0: [], 1: [f"i{rank - 1}"]}.get(
        -1 if access.inner is None else access.inner,
        [f"i{rank - 1} * s_{access.name}{rank - 1}"],
    )
    return " + ".join(terms) or "0"
