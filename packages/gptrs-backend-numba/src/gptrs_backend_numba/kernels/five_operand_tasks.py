"""Tasks that read more tensors than two: the addresses of the others go in front of a geometry."""

from __future__ import annotations

EXTRA = 3
"""How many other tensors a call takes; what a task does not need may be any address."""

RUN_SOURCE = """
def kernel(state, function, count, threads, a, b, x, y, z, out, geometry):
    G = pointer(geometry, np.int64)
    G[0], G[1], G[2] = x, y, z
    if threads < 2 or count < 2:
        for task in range(count):
            call_task(function, a, b, out, geometry, task)
        return 0
    publish(state, function, count, threads, a, b, out, geometry)
    while take_task(state, 0):
        pass
    await_others(state, count)
    return 0
"""
"""Runs tasks on up to `threads` threads; the first `EXTRA` numbers of the geometry are its own."""
