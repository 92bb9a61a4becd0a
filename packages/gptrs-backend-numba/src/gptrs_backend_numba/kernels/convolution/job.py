"""Sources of a job whose tasks each make several calls of other task functions, one after another.

What the calls of a task hand to one another lies in memory that belongs to the task as long as it
runs: it stays in the nearest caches of the processor that made it. A geometry begins with `FIELDS`
and the addresses of the operands; for each task follow its steps, each `STEP_FIELDS` and then the
geometry of the function that it calls.
"""

from __future__ import annotations

from gptrs_backend_numba.codegen.deferred import register_jitable
from gptrs_backend_numba.codegen.system import atomic_store, exchange_if
from gptrs_backend_numba.kernels.convolution.direct import COMMON, placed

FIELDS = (
    "SLOTS", "SLOT_BYTES",  # memories of tasks: how many, and how large
    "FLAGS",  # where there is a word for each, not 0 while a task has it
    "STARTS",  # where the positions of the first steps of all tasks are, and of the end
)  # fmt: skip
"""The names of the numbers of a geometry; positions count words."""
OPERANDS = len(FIELDS)
"""Where the addresses of the operands begin: the memory of all tasks, then the others."""

PLACES = ("X", "RIGHT", "OUT", "SCALE", "SHIFT", "RESIDUAL", "BOUNDS", "EXTRA")
"""What a step is given: the number of an operand and an offset in bytes each."""
STEP_FIELDS = (
    "FUNCTION", "COUNT",  # a task function, and how many tasks of it there are
    "WORDS",  # of the function's geometry
    "IS_CONVOLUTION",  # whether that begins with the fields of a convolution
    *(f"{name}_{part}" for name in PLACES for part in ("OPERAND", "OFFSET")),
)  # fmt: skip
"""The names of the numbers of a step."""


@register_jitable
def operand(geometry, scratch, place):
    """The address at an operand and an offset; the first operand is the task's own memory."""
    if geometry[place] == 0:
        return scratch + geometry[place + 1]
    return geometry[OPERANDS + geometry[place]] + geometry[place + 1]


def _task_source() -> str:
    lines = [
        f"        C[{COMMON.index(name)}] = operand(G, scratch, at + {_place(name)})"
        for name in PLACES[3:]
        if name != "RESIDUAL"
    ]
    residual, has = COMMON.index("RESIDUAL"), COMMON.index("HAS_RESIDUAL")
    return placed(
        f"""
def kernel(unused, unused_too, nor_this, geometry, task):
    G = pointer(geometry, np.int64)
    flags, slot = geometry + 8 * G[FLAGS], np.int64(0)
    while not exchange_if(flags + 8 * slot, 0, 1):
        slot = slot + 1 if slot + 1 < G[SLOTS] else 0
    scratch = G[{OPERANDS}] + slot * G[SLOT_BYTES]
    at, end = G[G[STARTS] + task], G[G[STARTS] + task + 1]
    while at < end:
        own = geometry + 8 * (at + {len(STEP_FIELDS)})
        function, count = G[at], G[at + 1]
        C = pointer(own, np.int64)
        if G[at + 3]:
    {"    ".join(line + chr(10) for line in lines)}
            C[{residual}] = operand(G, scratch, at + {_place("RESIDUAL")}) if C[{has}] else 0
        x = operand(G, scratch, at + {_place("X")})
        right = operand(G, scratch, at + {_place("RIGHT")})
        out = operand(G, scratch, at + {_place("OUT")})
        for number in range(count):
            call_task(function, x, right, out, own, number)
        at += {len(STEP_FIELDS)} + G[at + 2]
    atomic_store(flags + 8 * slot, 0)
    return 0
""",
        FIELDS,
    )


def _place(name: str) -> int:
    return STEP_FIELDS.index(f"{name}_OPERAND")


TASK_SOURCE = _task_source()
"""All steps of a task."""
NAMES: dict[str, object] = {
    "operand": operand,
    "exchange_if": exchange_if,
    "atomic_store": atomic_store,
}
"""Additional names of the source."""


def run_source(operands: int) -> str:
    """Runs the tasks of a job with so many operands, the last of which is the result."""
    names = [f"p{number}" for number in range(operands)]
    return f"""
def kernel(state, function, count, threads, {", ".join(names)}, geometry):
    G = pointer(geometry, np.int64)
    {", ".join(f"G[{OPERANDS + at}]" for at in range(operands))} = {", ".join(names)}
    if threads < 2 or count < 2:
        for task in range(count):
            call_task(function, p0, p0, p0, geometry, task)
        return 0
    publish(state, function, count, threads, p0, p0, p0, geometry)
    while take_task(state, 0):
        pass
    await_others(state, count)
    return 0
"""
