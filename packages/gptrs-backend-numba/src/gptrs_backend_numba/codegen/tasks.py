"""Parallel work inside compiled code: tasks that threads take from shared counters.

A job is a task function, its four arguments and a count. The calling thread publishes the job,
takes tasks like everybody else, and at the end waits only for tasks that a worker has begun: a
worker that the operating system has put aside costs nothing. (numba's own parallel loops wait for
every thread, abort the process when two threads enter at once or end a forked child.)

Neighbouring tasks form a range for each thread, which begins with its own range and then helps
with the others. Kernels that follow one another mostly cut their tensors alike, so that a thread
finds in its caches what it has written itself: a processor reads what another one has just written
several times slower.

The shared state is an array of int64, those written by several threads in a cache line of their
own. The ticket of a range holds the number of the job, the next task and the end, so taking a task
is one compare-and-exchange that fails if any has changed. A range without tasks left gives nothing
to take, and a job ends with its last task: whoever has read fields of different jobs also has an
outdated ticket.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, register_jitable, types
from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.system import (
    FUTEX_WAIT,
    FUTEX_WAKE,
    atomic_add,
    atomic_load,
    atomic_store,
    exchange_if,
    futex,
    give_way,
    pause,
)

MOST_RANGES = 8
"""The most ranges of a job; more threads than these share some. Each costs a job a store."""
_DONE, _WAKE, _SLEEPERS, _STOP, _JOB = (64 * line for line in range(5))
_LIMIT, _RANGES, _FIRST, _FUNCTION, _ARGUMENTS = (_JOB + 8 * field for field in range(1, 6))
_TICKETS = _JOB + 128
STATE_WORDS = (_TICKETS + 64 * MOST_RANGES) // 8
"""Length of the shared array."""

_MOST_TASKS = 0xFFFF
"""The most tasks that tickets can count; a job of more is published in parts."""
_SPINS = 2000
"""Times the caller looks for the end of a job before it gives way, some 20 to 60 microseconds."""
_IDLE_SPINS = 10 * _SPINS
"""Times an idle worker looks for work before it sleeps, so that it does not sleep through each
small kernel of one thread: to wake it takes longer. With 4 times `_SPINS` a MobileNetV3 and a GRU
are no faster on two threads than on one; with 10 times 1.5 times as fast."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)


@intrinsic
def call_task(typing_context, function, a, b, c, geometry, task):
    """Call a compiled function by its address, in numba's convention: status, result by pointer."""

    def generate(context, builder, signature, arguments):
        result, failure = ir.PointerType(_I64), ir.PointerType(ir.IntType(8))
        type_ = ir.FunctionType(_I32, [result, ir.PointerType(failure), *[_I64] * 5])
        function = builder.inttoptr(arguments[0], ir.PointerType(type_))
        with builder.goto_entry_block():
            returned, raised = builder.alloca(_I64), builder.alloca(failure)
        builder.call(function, [returned, raised, *arguments[1:]])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


@register_jitable
def has_tasks(ticket):
    """Return whether the range of a ticket has an untaken task."""
    return (ticket >> 16) & _MOST_TASKS < ticket & _MOST_TASKS


@register_jitable
def has_task(state, worker):
    """Return whether there is a task that this worker may take."""
    if worker >= atomic_load(state + _LIMIT):
        return False
    for number in range(atomic_load(state + _RANGES)):
        if has_tasks(atomic_load(state + _TICKETS + 64 * number)):
            return True
    return False


@register_jitable
def take_task(state, worker):
    """Run one task unless another thread takes it first; False if no task is left."""
    ranges = atomic_load(state + _RANGES)
    # What a thread wrote it reads fastest: a kernel on one thread that reads what two have written
    # takes 1.7 times as long as after one (Zen 4).
    own = worker % ranges if ranges else 0
    for step in range(ranges):
        number = own + step if own + step < ranges else own + step - ranges
        address = state + _TICKETS + 64 * number
        ticket = atomic_load(address)
        if not has_tasks(ticket):
            continue
        if worker >= atomic_load(state + _LIMIT):
            return False
        function = atomic_load(state + _FUNCTION)
        a = atomic_load(state + _ARGUMENTS)
        b = atomic_load(state + _ARGUMENTS + 8)
        c = atomic_load(state + _ARGUMENTS + 16)
        geometry = atomic_load(state + _ARGUMENTS + 24)
        task = atomic_load(state + _FIRST) + ((ticket >> 16) & _MOST_TASKS)
        if exchange_if(address, ticket, ticket + (1 << 16)):
            call_task(function, a, b, c, geometry, task)
            atomic_add(state + _DONE, 1)
        return True
    return False


@register_jitable
def ranges_of(count, threads):
    """Return in how many ranges the tasks of a job are divided; number i begins with the task
    `count * i // ranges`.
    """
    return min(threads, count, MOST_RANGES)


@register_jitable
def publish(state, function, first, count, threads, a, b, c, geometry):
    """Make tasks of a job visible to the workers and wake those who sleep."""
    job = atomic_load(state + _JOB) + 1
    ranges = ranges_of(count, threads)
    atomic_store(state + _JOB, job)
    atomic_store(state + _LIMIT, threads)
    atomic_store(state + _RANGES, ranges)
    atomic_store(state + _FIRST, first)
    atomic_store(state + _FUNCTION, function)
    atomic_store(state + _ARGUMENTS, a)
    atomic_store(state + _ARGUMENTS + 8, b)
    atomic_store(state + _ARGUMENTS + 16, c)
    atomic_store(state + _ARGUMENTS + 24, geometry)
    atomic_store(state + _DONE, 0)
    begin = np.int64(0)
    for number in range(ranges):
        end = count * (number + 1) // ranges
        ticket = (job << 32) | (begin << 16) | end
        atomic_store(state + _TICKETS + 64 * number, ticket)
        begin = end
    wake_sleepers(state)


@register_jitable
def wake_sleepers(state):
    """Wake the workers that sleep, and keep those from sleeping who are about to."""
    atomic_add(state + _WAKE, 1)
    if atomic_load(state + _SLEEPERS) > 0:
        futex(state + _WAKE, FUTEX_WAKE, 0x7FFFFFFF)


@register_jitable
def stop(state):
    """Make all workers return."""
    atomic_store(state + _STOP, 1)
    wake_sleepers(state)


@register_jitable
def stopped(state):
    """Return whether `stop` has been called."""
    return atomic_load(state + _STOP) != 0


@register_jitable
def await_others(state, count):
    """Wait until all tasks of the job are done."""
    spins = 0
    while atomic_load(state + _DONE) < count:
        spins += 1
        if spins < _SPINS:
            pause()
        else:
            give_way()


@register_jitable
def sleep(state, worker):
    """Sleep until a job is published, unless there is one already; return whether there was one.

    Where the system cannot wake a thread, False says that a moment has passed without a job.
    """
    atomic_add(state + _SLEEPERS, 1)
    wake = atomic_load(state + _WAKE)
    if not (has_task(state, worker) or stopped(state)):
        futex(state + _WAKE, FUTEX_WAIT, wake & 0xFFFFFFFF)
    atomic_add(state + _SLEEPERS, -1)
    return has_task(state, worker) or atomic_load(state + _WAKE) != wake


@register_jitable
def share_tasks(state, function, count, threads, a, b, c, geometry):
    """Run all tasks of a job on up to `threads` threads; the caller is one of them."""
    if threads < 2 or count < 2:
        for task in range(count):
            call_task(function, a, b, c, geometry, task)
        return
    for first in range(np.int64(0), count, _MOST_TASKS):
        part = min(count - first, _MOST_TASKS)
        publish(state, function, first, part, threads, a, b, c, geometry)
        while take_task(state, 0):
            pass
        await_others(state, part)


@kernel
def run_tasks_kernel(state, function, count, threads, a, b, c, geometry):
    """Run all tasks of a job, see `share_tasks`."""
    share_tasks(state, function, count, threads, a, b, c, geometry)
    return 0


@kernel
def worker_kernel(state, worker):
    """Take tasks until stopped: what a worker thread does."""
    idle = 0
    while not stopped(state):
        if take_task(state, worker):
            idle = 0
        elif idle < _IDLE_SPINS:
            idle += 1
            pause()
        elif sleep(state, worker):
            idle = 0
    return 0


@kernel
def stop_kernel(state):
    """Make all workers return."""
    stop(state)
    return 0


# The kernel that computes the sizes of a run, and the code that it reads.
#
# Sizes are int64 in slots. Every instruction is its number, the slot of its result, and operands;
# slots of constants and symbols are filled before.
#
# - `SUM to constant count (factor slot)..`
# - `PRODUCT to a b`
# - `FLOORDIV to a b`, rounded down as in Python
# - `LEAST to a b`
# - `GREATEST to a b`
# - `SELECT to condition a b`: a where the condition is >= 0, else b


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
