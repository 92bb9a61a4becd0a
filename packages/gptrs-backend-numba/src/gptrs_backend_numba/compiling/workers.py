"""The processes that compile kernels for this one; they end when it does, or without work."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from importlib import import_module
from types import CodeType
from typing import Any, Final, cast

import numpy as np

from gptrs.backend.memory import memory_bytes
from gptrs.backend.process_limits import granted_cpus
from gptrs.errors import UsageError
from gptrs.ir.dtypes import DType, by_name
from gptrs_backend_numba.codegen.compiled import (
    LISTENERS,
    WantedKernel,
    compile_if_free,
    is_stored,
    kernel_store,
)
from gptrs_backend_numba.codegen.inlining import recipe_of
from gptrs_backend_numba.codegen.interpreter import run_schedule
from gptrs_backend_numba.codegen.kernel import (
    GeneratedKernel,
    KernelFunction,
    SpecializedKernel,
    qualified_name,
)
from gptrs_backend_numba.codegen.tasks import compute_sizes, place_sizes, stop_kernel, worker_kernel

VARIABLE: Final = "GPTRS_NUMBA_COMPILERS"
"""The environment variable with the most processes that compile kernels, this one included."""
_MOST = 4
"""Unless the variable says otherwise: one large kernel takes as long as a quarter of the others."""
_ROOM = 1 << 30
"""Bytes of memory that the machine must have for each process; one takes a quarter of it."""
_PIPE_BYTES = 1 << 20
"""The most that Linux lets everybody have."""
_CODE = "from gptrs_backend_numba.compiling.worker import serve; serve()"
_CODE_BESIDE = f"import os; os.nice(10); {_CODE}"


def worker_count() -> int:
    """Return how many processes may compile kernels beside this one.

    UsageError if the variable is not a number from 1 to 64.
    """
    given = _given_processes()
    if given is not None:
        return given - 1
    most = min(granted_cpus(), _processes_for_memory(), _MOST)
    return max(0, most - 1) if sys.executable else 0


def compiles_beside() -> bool:
    """Return whether another process may compile what this one does without meanwhile."""
    if not sys.executable or not kernel_store().keeps or _processes_for_memory() < 1:
        return False
    return _given_processes() != 1


def _processes_for_memory() -> int:
    memory = memory_bytes()
    return _MOST if memory is None else memory // _ROOM


def _given_processes() -> int | None:
    text = os.environ.get(VARIABLE, "").strip()
    if text:
        number = int(text) if re.fullmatch("[0-9]{1,2}", text) else 0
        if not 1 <= number <= 64:
            raise UsageError(
                f"`{VARIABLE}` must be from 1 to 64, got `{text:.60}`",
                hint="unset it for as many as there are CPUs, 4 at most",
            )
        return number
    return None


class Workers:
    """The processes that were started, and the pipes that they read their work from."""

    def __init__(self, most: Callable[[], int] = worker_count, code: str = _CODE) -> None:
        self._most, self._code = most, code
        self._started: list[subprocess.Popen[bytes]] = []
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._forget)

    def _forget(self) -> None:
        """Close the pipes, whereupon the workers of this process end."""
        for worker in self._started:
            _close(worker)
        self._started.clear()

    def send(self, specs: Sequence[object]) -> None:
        """Have all processes look at kernels in this order; start those that are not there.

        Where none can be started this process compiles alone.
        """
        line = json.dumps(specs).encode() + b"\n"
        with contextlib.suppress(OSError):
            self._start()
        for worker in self._started:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                assert worker.stdin is not None
                worker.stdin.write(line)
                worker.stdin.flush()

    def _start(self) -> None:
        for worker in self._started:
            if worker.poll() is not None:
                _close(worker)
        self._started[:] = [worker for worker in self._started if worker.returncode is None]
        while len(self._started) < self._most():
            worker = subprocess.Popen(
                [sys.executable, "-c", self._code],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is for the process that asked
            )
            assert worker.stdin is not None
            # It reads between two kernels only; who sends it a hundred of them shall not wait.
            if hasattr(fcntl, "F_SETPIPE_SZ"):  # of Linux alone
                with contextlib.suppress(OSError):
                    fcntl.fcntl(worker.stdin, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            self._started.append(worker)


def _close(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(OSError):  # bytes that it has not taken
        worker.stdin.close()


WORKERS = Workers()
"""The workers of this process that it waits for."""
BESIDE = Workers(lambda: 1, _CODE_BESIDE)
"""The one that compiles while programs run, at a low priority: on a processor that is free."""


# Kernels as JSON: the name of the template and its bindings, for another process to compile.


def spec_of(value: object) -> object:
    """Return JSON for a kernel, or for one of its bindings or arguments.

    TypeError for what another process cannot find by its name.
    """
    if isinstance(value, SpecializedKernel):
        bindings = {name: spec_of(bound) for name, bound in value.bindings.items()}
        return {"kernel": _named(value.template, value.template.function), "bindings": bindings}
    if isinstance(value, GeneratedKernel):
        arguments = [spec_of(each) for each in value.arguments]
        return {"generate": _named(value.generate, value.generate), "with": arguments}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, np.generic):
        scalar = np.asarray(cast("np.generic[Any]", value))
        return {"scalar": [scalar.dtype.str, scalar.tobytes().hex()]}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, tuple):
        return [spec_of(each) for each in cast("tuple[object, ...]", value)]
    recipe = recipe_of(value)
    if recipe is not None:
        factory, arguments = recipe
        return {"made": _named(factory, factory), "with": [spec_of(each) for each in arguments]}
    return {"object": _named(value, value)}


def kernel_of(spec: object) -> SpecializedKernel | GeneratedKernel:
    """Return the kernel that `spec_of` wrote down; the errors of what it names are passed on."""
    kernel = _value_of(spec)
    if not isinstance(kernel, SpecializedKernel | GeneratedKernel):
        raise TypeError(f"a `{type(kernel).__name__}` is not a kernel")
    return kernel


def _value_of(spec: object) -> object:
    if isinstance(spec, list):
        return tuple(map(_value_of, cast("list[object]", spec)))
    if not isinstance(spec, dict):
        return spec
    fields = cast("Mapping[str, Any]", spec)
    if "kernel" in fields:
        template = _found(fields["kernel"])
        if not isinstance(template, KernelFunction):
            raise TypeError(f"`{fields['kernel']}` is not a kernel")
        bindings = fields["bindings"].items()
        return template.specialize(**{name: _value_of(bound) for name, bound in bindings})
    if "generate" in fields:
        return GeneratedKernel.of(_found(fields["generate"]), tuple(map(_value_of, fields["with"])))
    if "made" in fields:
        return _found(fields["made"])(*map(_value_of, fields["with"]))
    if "dtype" in fields:
        return by_name(fields["dtype"])
    if "scalar" in fields:
        dtype, content = fields["scalar"]
        return np.frombuffer(bytes.fromhex(content), np.dtype(dtype))[0]
    if "float" in fields:
        return float.fromhex(fields["float"])
    return _found(fields["object"])


def _named(value: object, function: object) -> list[str]:
    """Return where `value` is found; its name is that of `function`."""
    module = str(getattr(function, "__module__", ""))
    names = qualified_name(function).removeprefix(f"{module}.")
    reference = [module, names]
    try:
        found = _found(reference)
    except (ImportError, AttributeError):
        found = None
    if found is not value:
        raise TypeError(f"`{module}.{names}` is not found by its name")
    return reference


def _found(place: list[str]) -> Any:
    module, names = place
    get: Callable[[object, str], object] = getattr
    return reduce(get, names.split("."), cast("object", import_module(module)))


# Kernels that no store has, compiled by this process and others, the largest first.


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


_ASKED_FOR: set[str] = set()
"""The keys of kernels that are compiled beside."""


def compile_beside(kernels: Iterable[WantedKernel]) -> None:
    """Have another process compile kernels into the store, each once; return at once.

    That ends with the kernel at hand when this process does. One that cannot be compiled stays
    away: who asked goes on without.
    """
    wanted = {kernel.key: kernel for kernel in kernels if kernel.key not in _ASKED_FOR}
    _ASKED_FOR.update(wanted)
    specs = [spec for kernel in wanted.values() if (spec := _spec(kernel)) is not None]
    if specs:
        BESIDE.send(specs)


def _spec(kernel: WantedKernel) -> object:
    """Return JSON that another process makes the kernel from, None if none can."""
    try:
        return [spec_of(kernel.source), list(kernel.fastmath)]
    except TypeError:  # a function that was made for it is among its bindings
        return None


def _size(kernel: WantedKernel) -> int:
    """Return how long the kernel is, a measure of how long its compilation takes."""
    return _bytecode(kernel.source)


def _bytecode(value: object) -> int:
    if isinstance(value, GeneratedKernel):
        return len(value.generate(*value.arguments)[0])
    if isinstance(value, SpecializedKernel):
        bound = sum(map(_bytecode, value.bindings.values()))
        return _bytecode(value.template) + bound
    if isinstance(value, KernelFunction):
        return _bytecode(value.function.__code__)
    code = value if isinstance(value, CodeType) else getattr(value, "__code__", None)
    return len(code.co_code) if isinstance(code, CodeType) else 0
