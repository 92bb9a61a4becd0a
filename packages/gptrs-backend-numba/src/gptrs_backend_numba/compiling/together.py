"""Kernels that no store has, compiled by this process and others, the largest first."""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType

from gptrs_backend_numba.codegen.compile_listeners import LISTENERS
from gptrs_backend_numba.codegen.compiled import compile_if_free, is_stored, kernel_store
from gptrs_backend_numba.codegen.interpreter import run_schedule
from gptrs_backend_numba.codegen.kernel import KernelFunction, SpecializedKernel
from gptrs_backend_numba.codegen.size_formulas import compute_sizes, place_sizes
from gptrs_backend_numba.codegen.tasks import stop_kernel, worker_kernel
from gptrs_backend_numba.codegen.wanted_kernel import WantedKernel
from gptrs_backend_numba.compiling.kernel_spec import spec_of
from gptrs_backend_numba.compiling.workers import WORKERS, worker_count

_FEWEST = 4
"""Fewer kernels are compiled before another process has imported numba."""
_OF_EVERY_RUN = (run_schedule, worker_kernel, compute_sizes, place_sizes, stop_kernel)
"""Kernels that programs of all kinds need when they run."""


def compile_together(kernels: Iterable[WantedKernel]) -> None:
    """Compile kernels that no store has; those that another process has begun are left to it.

    This process begins with those that it alone can compile, and all processes with the largest, so
    that none is left with one when the others are done. Others compile into the store: without one
    this process does without them.
    """
    wanted = list(kernels)
    if len(wanted) >= _FEWEST and worker_count() and kernel_store().keeps:
        general = [WantedKernel(kernel.specialize()) for kernel in _OF_EVERY_RUN]
        wanted += [kernel for kernel in general if not is_stored(kernel)]
        wanted.sort(key=_size, reverse=True)
        specs = {kernel.key: spec for kernel in wanted if (spec := _spec(kernel)) is not None}
        WORKERS.send(list(specs.values()))
        wanted.sort(key=lambda kernel: kernel.key in specs)
    for kernel in wanted:
        if not compile_if_free(kernel):
            LISTENERS.kernel()  # by another process, but for this one


def _spec(kernel: WantedKernel) -> object:
    """Return JSON that another process makes the kernel from, None if none can."""
    if kernel.constants is not None:
        return None
    source = kernel.source
    try:
        return [source if isinstance(source, str) else spec_of(source), list(kernel.fastmath)]
    except TypeError:  # a function that was made for it is among its bindings
        return None


def _size(kernel: WantedKernel) -> int:
    """Return how long the kernel is, a measure of how long its compilation takes."""
    source = kernel.source
    return len(source) if isinstance(source, str) else _bytecode(source)


def _bytecode(value: object) -> int:
    if isinstance(value, SpecializedKernel):
        bound = sum(map(_bytecode, value.bindings.values()))
        return _bytecode(value.template) + bound
    if isinstance(value, KernelFunction):
        return _bytecode(value.function.__code__)
    code = value if isinstance(value, CodeType) else getattr(value, "__code__", None)
    return len(code.co_code) if isinstance(code, CodeType) else 0
