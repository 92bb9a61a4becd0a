"""Calls into backends: errors name the backend, and results are checked."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import NoReturn, cast

import numpy as np
from typing_extensions import override

from gptrs.backend.contract import (
    Backend,
    BoundInputs,
    Buffer,
    Executable,
    InputRole,
    KernelRun,
    SubmittedRun,
    overrides,
)
from gptrs.backend.mapped_files import release_pages
from gptrs.backend.sharding import ArraySource, Axes, sharding_of
from gptrs.capture.compile_notice import COMPILE_NOTICES
from gptrs.capture.ports import origin_of
from gptrs.errors import BackendError, GptrsError, PluginError, lacks_memory
from gptrs.ir import dtypes
from gptrs.ir.program import Program
from gptrs.ir.size_guards import SizeGuards
from gptrs.ir.specialize import lone_symbol
from gptrs.ir.symbolic_dim import evaluated
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import one_line
from gptrs.variables import Variables

_CHECK = Variables("GPTRS_CHECK_RESULTS")
"""Environment variable: `1` checks the results of every run, not only of the first."""
_PASSED_ON = (GptrsError, KeyboardInterrupt, MemoryError)
_HINT = "report it to the authors of the backend; --debug shows the traceback"


def compiled(backend: Backend, program: Program, roles: Sequence[InputRole]) -> Executable:
    """Compile with `backend` and check the results of runs; BackendError if it fails."""
    try:
        with COMPILE_NOTICES.during(backend):
            made = backend.compile(program, roles)
    except BaseException as error:
        _blame(backend, "`compile`", error)
    return CheckedExecutable(made, backend, program)


def compiled_symbolic(
    backend: Backend, program: Program, roles: Sequence[InputRole], guards: SizeGuards
) -> Executable:
    """Like `compiled`, for a program with symbolic dims on a `symbolic` backend."""
    try:
        with COMPILE_NOTICES.during(backend):
            made = backend.compile_symbolic(program, roles, guards)
    except BaseException as error:
        _blame(backend, "`compile_symbolic`", error)
    return CheckedExecutable(made, backend, program)


@contextmanager
def blamed(backend: Backend, what: str) -> Generator[None]:
    """Scope around code of `backend`: its errors become a BackendError that names it.

    `what` describes the code, phrased to follow "failed in".
    """
    try:
        yield
    except BaseException as error:
        _blame(backend, what, error)


@contextmanager
def without_exit(backend: Backend) -> Generator[None]:
    """Scope in which a SystemExit raised by `backend` becomes a BackendError."""
    try:
        yield
    except SystemExit as error:
        _blame(backend, "`compile`", error)


def to_device(backend: Backend, array: np.ndarray) -> Buffer:
    """Return `backend.to_device(array)`; BackendError if it fails or returns another type."""
    try:
        buffer = backend.to_device(array)
    except BaseException as error:
        _blame(backend, "`to_device`", error)
    if not _alike(buffer, array):
        # Big-endian arrays of files become native on the backend, which is no fault of it.
        dtype = array.dtype if array.dtype.isnative else array.dtype.newbyteorder()
        _require_type(backend, "`to_device`", buffer, dtype, array.shape)
    return buffer


def padded_size(backend: Backend, size: int) -> int | None:
    """Return `backend.padded_size(size)`; PluginError if it is smaller than `size`."""
    wanted = backend.padded_size(size)
    if wanted is not None and wanted < size:
        raise PluginError(f"`padded_size({size})` of backend `{backend.name}` is {wanted}")
    return wanted


def steps_at_once(backend: Backend) -> int:
    """Return how many steps `backend` wants per run; PluginError if below 1.

    1 for a backend with a fallback: the host would run a loop with a refused op, or the fallback.
    """
    wanted = backend.steps_at_once if backend.falls_back_to is None else 1
    if wanted < 1:
        raise PluginError(f"`steps_at_once` of backend `{backend.name}` is {wanted}")
    return wanted


def moved(backend: Backend, what: str, move: Callable[[], Buffer], type: TensorType) -> Buffer:
    """Return the buffer of `type` from `move`, which calls the method `what` of the backend."""
    try:
        buffer = move()
    except BaseException as error:
        _blame(backend, f"`{what}`", error)
    _require_type(backend, f"`{what}`", buffer, type.dtype.numpy, type.shape)
    return buffer


def placed(backend: Backend, array: np.ndarray, axes: Axes | None) -> Buffer:
    """Return `array` on `backend`, split by the names of its axes if the backend has a mesh."""
    mesh = None if axes is None else backend.mesh
    if mesh is None:
        return to_device(backend, array)
    sharding, source = sharding_of(mesh, array.shape, axes), ArraySource(array)
    return moved(backend, "place", lambda: backend.place(source, sharding), source.type)


def to_host(backend: Backend, buffer: Buffer) -> np.ndarray:
    """Return `backend.to_host(buffer)`; BackendError if it fails or returns another type."""
    try:
        array = backend.to_host(buffer)
    except BaseException as error:
        _blame(backend, "`to_host`", error)
    if _alike(array, buffer):
        return array
    if not isinstance(cast("object", array), np.ndarray):
        _refuse(backend, f"`to_host` gave a `{type(array).__name__}`, not a NumPy array")
    _require_type(backend, "`to_host`", array, buffer.dtype, buffer.shape)
    return array


def host_view(backend: Backend, buffer: Buffer) -> np.ndarray | None:
    """Return the host memory of `buffer`, None for a buffer on a device."""
    if not backend.own_memory:
        return to_host(backend, buffer)
    with blamed(backend, "`host_view`"):
        return backend.host_view(buffer)


def release_pages_of(backend: Backend, buffer: Buffer) -> None:
    """Let the system reclaim the pages of the mapped file under `buffer`."""
    view = host_view(backend, buffer)
    if view is not None:
        release_pages(view)


def copied(backend: Backend, buffer: Buffer) -> Buffer:
    """Return a copy of `buffer` in the same memory, host or device."""
    if backend.own_memory:
        type_ = TensorType(dtypes.from_numpy(buffer.dtype), buffer.shape)
        return moved(backend, "copy", lambda: backend.copy(buffer), type_)
    return to_device(backend, to_host(backend, buffer).copy())


class CheckedExecutable(Executable):
    """An executable of a backend whose results are checked against the types of its program.

    The first run, with `GPTRS_CHECK_RESULTS=1` every run, is checked: number, dtypes and shapes of
    results. Raises BackendError if they differ, and for any exception of the backend except
    GptrsErrors.
    """

    def __init__(self, made: Executable, backend: Backend, program: Program) -> None:
        if not isinstance(cast("object", made), Executable):
            _refuse(
                backend,
                f"`compile` gave a `{type(made).__name__}`, which does not derive from"
                " `gptrs.api.backends.Executable`",
            )
        self._made = made
        self._backend = backend
        self._params = [param.type for param in program.main.body.params]
        self._results = [result.type for result in program.main.body.results]
        self._always = _CHECK.values()[0] not in (None, "", "0")
        self._due = True

    @property
    @override
    def nbytes(self) -> int:
        return self._made.nbytes

    @override
    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        try:
            results = self._made.run(inputs)
        except BaseException as error:
            _blame(self._backend, "`run`", error)
        # Once is enough: the types of results depend on the program and the sizes, not on values.
        if self._due:
            self._check(results, inputs)
        return results

    @override
    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        try:
            results = self._made.run_bound(inputs, bound)
        except BaseException as error:
            _blame(self._backend, self._own("run_bound"), error)
        if self._due:
            self._check(results, [*inputs, *bound.buffers])
        return results

    @override
    def run_profiled(
        self, inputs: Sequence[Buffer], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        try:
            results = self._made.run_profiled(inputs, tell)
        except BaseException as error:
            _blame(self._backend, self._own("run_profiled"), error)
        if self._due:
            self._check(results, inputs)
        return results

    @override
    def submit(
        self, inputs: Sequence[Buffer], bound: BoundInputs | None
    ) -> tuple[list[Buffer], SubmittedRun | None]:
        try:
            results, run = self._made.submit(inputs, bound)
        except BaseException as error:
            by = ("submit",) if bound is None else ("submit", "run_bound")
            _blame(self._backend, self._own(*by), error)
        if self._due:
            self._check(results, inputs if bound is None else [*inputs, *bound.buffers])
        return results, None if run is None else _CheckedRun(run, self._backend)

    def _own(self, *methods: str) -> str:
        """Return the first of `methods` that the backend overrides: the defaults only call
        `run`."""
        return f"`{next((each for each in methods if overrides(self._made, each)), 'run')}`"

    def _check(self, results: object, inputs: Sequence[Buffer]) -> None:
        """Raise BackendError unless `results` have the program's result types for these inputs."""
        if not isinstance(results, (list, tuple)):
            _refuse(self._backend, f"`run` gave a `{type(results).__name__}`, not a list")
        found = cast("Sequence[Buffer]", results)
        wanted = self._results
        if len(found) != len(wanted):
            _refuse(
                self._backend, f"`run` gave {len(found)} results, the program has {len(wanted)}"
            )
        sizes = self._sizes(inputs)
        for number, (result, type_) in enumerate(zip(found, wanted, strict=True)):
            shape = tuple([evaluated(dim, sizes) for dim in type_.shape])
            what = f"result {number} of `run`"
            _require_type(self._backend, what, result, type_.dtype.numpy, shape)
        # Only after a run that passed: a failed one must be checked again.
        self._due = self._always

    def _sizes(self, inputs: Sequence[Buffer]) -> dict[int, int]:
        """Return the sizes of the symbols in this run; each is a plain dim of some parameter."""
        sizes: dict[int, int] = {}
        for type_, given in zip(self._params, inputs, strict=True):
            for dim, size in zip(type_.shape, given.shape, strict=True):
                number = lone_symbol(dim)
                if number is not None:
                    sizes[number] = size
        return sizes


class _CheckedRun:
    """A run of a backend, whose name `check` adds to errors."""

    __slots__ = ("_backend", "_run")

    def __init__(self, run: SubmittedRun, backend: Backend) -> None:
        self._run = run
        self._backend = backend

    def check(self) -> None:
        """Wait for it; see `SubmittedRun`."""
        try:
            self._run.check()
        except BaseException as error:
            _blame(self._backend, "`check`", error)


def _alike(one: Buffer, other: Buffer) -> bool:
    """Return whether both are NumPy arrays of equal dtype and shape; every step calls it."""
    return (
        # By identity and without `isinstance`: each step of a generation comes here several times.
        type(one) is np.ndarray
        and type(other) is np.ndarray
        and one.dtype is other.dtype
        and one.shape == other.shape
    )


def _require_type(
    backend: Backend,
    what: str,
    buffer: Buffer,
    dtype: np.dtype[np.generic],
    shape: tuple[int, ...],
) -> None:
    found, dims = getattr(buffer, "dtype", None), getattr(buffer, "shape", None)
    if found == dtype and dims == shape:
        return
    shown = f"a `{type(buffer).__name__}`" if found is None else f"{found}{list(dims or ())}"
    plain = isinstance(found, np.dtype) and isinstance(cast("object", dtype), np.dtype)
    needs = "" if plain else "; the `dtype` of a buffer is a NumPy dtype: wrap other tensors"
    _refuse(backend, f"{what} is {shown}, not {dtype}{list(shape)}{needs}")


def _refuse(backend: Backend, problem: str) -> NoReturn:
    raise BackendError(f"{origin_of(backend)} broke its contract: {problem}", hint=_HINT)


def _blame(backend: Backend, what: str, error: BaseException) -> NoReturn:
    """Raise `error` itself if it is meant for the caller, else a BackendError that names the
    backend.

    This includes SystemExit: a plugin must not end the program.
    """
    # Ctrl-C and a lack of memory are no faults of the backend.
    if isinstance(error, _PASSED_ON):
        raise error
    if lacks_memory(error):  # a first compilation may load the backend's libraries
        raise MemoryError(f"no memory is left for {what} of {origin_of(backend)}") from error
    problem = f"{origin_of(backend)} failed in {what}: {one_line(error)}"
    raise BackendError(problem, hint=_HINT) from error
