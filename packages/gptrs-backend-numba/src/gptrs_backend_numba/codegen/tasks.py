"""Parallel work inside compiled code: tasks that threads take from a shared counter.

A job is a task function, its four arguments and a count. The calling thread publishes the job,
takes tasks like everybody else, and at the end waits only for tasks that a worker has begun: a
worker that the operating system has put aside costs nothing. (numba's own parallel loops wait for
every thread, abort the process when two threads enter at once or end a forked child.)

The shared state is an array of int64, those written by several threads in a cache line of their
own. The ticket holds the number of the job in its upper and the next task in its lower half, so
taking a task is one compare-and-exchange that fails if either has changed. Between two jobs the
ticket names a job without tasks: whoever has read fields of different jobs also has an outdated
ticket.
"""

from __future__ import annotations

from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import intrinsic, register_jitable, types
from gptrs_backend_numba.codegen.kernel import kernel
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

STATE_WORDS = 128
"""Length of the shared array."""

_TICKET, _COUNT, _DONE, _WAKE, _SLEEPERS, _LIMIT, _STOP, _FUNCTION = (
    64 * line for line in range(8)
)
_ARGUMENTS = _FUNCTION + 8
_NO_TASKS = 0xFFFFFFFF
_SPINS = 2000
"""Times an idle worker looks for work before it sleeps, some 20 to 60 microseconds."""

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
def has_task(state, worker):
    """Return whether there is a task that this worker may take."""
    next_task = atomic_load(state + _TICKET) & _NO_TASKS
    return next_task < atomic_load(state + _COUNT) and worker < atomic_load(state + _LIMIT)


@register_jitable
def take_task(state, worker):
    """Run one task, or find that another thread was faster; False when there is none to take."""
    ticket = atomic_load(state + _TICKET)
    task = ticket & _NO_TASKS
    if task >= atomic_load(state + _COUNT) or worker >= atomic_load(state + _LIMIT):
        return False
    function = atomic_load(state + _FUNCTION)
    a = atomic_load(state + _ARGUMENTS)
    b = atomic_load(state + _ARGUMENTS + 8)
    c = atomic_load(state + _ARGUMENTS + 16)
    geometry = atomic_load(state + _ARGUMENTS + 24)
    if exchange_if(state + _TICKET, ticket, ticket + 1):
        call_task(function, a, b, c, geometry, task)
        atomic_add(state + _DONE, 1)
    return True


@register_jitable
def publish(state, function, count, threads, a, b, c, geometry):
    """Make a job visible to the workers and wake those who sleep."""
    job = (atomic_load(state + _TICKET) >> 32) + 1
    atomic_store(state + _TICKET, (job << 32) | _NO_TASKS)
    atomic_store(state + _COUNT, count)
    atomic_store(state + _LIMIT, threads)
    atomic_store(state + _FUNCTION, function)
    atomic_store(state + _ARGUMENTS, a)
    atomic_store(state + _ARGUMENTS + 8, b)
    atomic_store(state + _ARGUMENTS + 16, c)
    atomic_store(state + _ARGUMENTS + 24, geometry)
    atomic_store(state + _DONE, 0)
    atomic_store(state + _TICKET, (job + 1) << 32)
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
    """Sleep until a job is published, unless there is one already."""
    atomic_add(state + _SLEEPERS, 1)
    wake = atomic_load(state + _WAKE)
    if not (has_task(state, worker) or stopped(state)):
        futex(state + _WAKE, FUTEX_WAIT, wake & 0xFFFFFFFF)
    atomic_add(state + _SLEEPERS, -1)


@register_jitable
def share_tasks(state, function, count, threads, a, b, c, geometry):
    """Run all tasks of a job on up to `threads` threads; the caller is one of them."""
    if threads < 2 or count < 2:
        for task in range(count):
            call_task(function, a, b, c, geometry, task)
        return
    publish(state, function, count, threads, a, b, c, geometry)
    while take_task(state, 0):
        pass
    await_others(state, count)


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
        elif idle < _SPINS:
            idle += 1
            pause()
        else:
            sleep(state, worker)
            idle = 0
    return 0


@kernel
def stop_kernel(state):
    """Make all workers return."""
    stop(state)
    return 0
