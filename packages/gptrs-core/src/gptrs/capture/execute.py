"""Runs graphs and programs: reading a value computes everything it depends on."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

import numpy as np

from gptrs.backend.contract import Backend, Buffer, InputRole, required_backend
from gptrs.capture.backend_calls import placed, to_device, to_host
from gptrs.capture.caching.program_cache import ProgramCache
from gptrs.capture.compilation import Prepared, prepare, settings_for
from gptrs.capture.graph import (
    Argument,
    Captured,
    GraphSlice,
    Leaf,
    Stored,
    common_backend,
    resolve,
    role_of,
)
from gptrs.capture.parameter import Parameter, Streaming
from gptrs.capture.ports import get_backend
from gptrs.errors import ConsumedTensorError, UsageError
from gptrs.ir import verify
from gptrs.ir.program import Program, Value
from gptrs.ir.specialize import bind, specialize
from gptrs.ir.tensor_type import TensorType
from gptrs.variables import Variables

# The backend of a graph whose leaves have none: that of the innermost scope, else the default.


_scope: ContextVar[Backend | None] = ContextVar("gptrs_backend", default=None)


class use_backend:  # noqa: N801 - used like a function; a generator would take 2 us more a call
    """Scope in which graphs whose leaves have no backend run on `backend`, an object or a name.

    PluginError for a name that no usable backend has, UsageError if it is not a backend.
    """

    __slots__ = ("_backend", "_token")

    def __init__(self, backend: Backend | str) -> None:
        self._backend = (
            get_backend(backend) if isinstance(backend, str) else required_backend(backend)
        )

    def __enter__(self) -> Backend:
        self._token = _scope.set(self._backend)
        return self._backend

    def __exit__(self, *_: object) -> None:
        _scope.reset(self._token)


def scoped_backend() -> Backend | None:
    """Return the backend of the innermost scope, None outside any scope."""
    return _scope.get()


def chosen_backend() -> Backend:
    """Return the backend of the innermost scope, else the default one."""
    backend = _scope.get()
    return get_backend(None) if backend is None else backend


_EAGER = Variables("GPTRS_EAGER")
_capturing: ContextVar[bool] = ContextVar("gptrs_capturing", default=False)

program_cache = ProgramCache[Prepared]()
"""Executables of flushed graphs, shared by all threads."""


_reads = 0


def values_read() -> int:
    """Return how often this process has computed or read a value, which a capture must not do."""
    return _reads


def _note_read() -> None:
    global _reads
    _reads += 1


def eager() -> bool:
    """Return whether ops run as soon as they are applied: `GPTRS_EAGER=1`, outside captures."""
    (asked,) = _EAGER.values()
    return asked not in (None, "", "0") and not _capturing.get()


@contextmanager
def capturing() -> Generator[None]:
    """Scope without eager mode, for capturing a program."""
    token = _capturing.set(True)
    try:
        yield
    finally:
        _capturing.reset(token)


def run_program(
    program: Program, inputs: Mapping[str, np.ndarray], backend: Backend | None = None
) -> list[np.ndarray]:
    """Verify, compile and run `program` on arrays given by parameter name.

    Returns the results in order. Symbolic dims take the sizes of the inputs. UsageError when an
    input is missing, unknown, or of another type than the parameter; ProgramError when the program
    is malformed.
    """
    verify(program)
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    _require_names(program.inputs, arrays)
    types = {name: TensorType.of(array) for name, array in arrays.items()}
    special = specialize(program, bind(program, types))
    engine = backend or chosen_backend()
    roles = [InputRole.ARGUMENT] * len(program.inputs)
    prepared = prepare(special, engine, roles, origin="run_program")
    buffers = [to_device(engine, arrays[name]) for name in program.inputs]
    results = prepared.run(buffers, cached=False)
    return [to_host(engine, result) for result in results]


def _require_names(params: Mapping[str, Value], inputs: Mapping[str, np.ndarray]) -> None:
    listed = ", ".join(f"`{name}: {param.type}`" for name, param in params.items()) or "none"
    for name in inputs:
        if name not in params:
            raise UsageError(f"the program has no parameter `{name}`", hint=f"it takes {listed}")
    for name in params:
        if name not in inputs:
            raise UsageError(f"input `{name}` is missing", hint=f"the program takes {listed}")


def materialize(outputs: Sequence[Captured]) -> None:
    """Run the graph below `outputs` as one program and store its results in their nodes.

    Results belong to the backend of the leaves, else of the scope. If there is neither, the default
    backend computes, and the results are host values that any backend can use.
    """
    _note_read()
    pending = [output for output in outputs if resolve(output) is output]
    if not pending:
        return
    graph = GraphSlice(pending)
    home = common_backend(graph.leaves, "flush") or scoped_backend()
    backend = home or chosen_backend()
    roles = [role_of(leaf) for leaf in graph.leaves]
    streaming = streaming_of(graph.leaves)
    lookup = program_cache.find_or_make(
        graph.key(graph.leaves, roles, backend, (settings_for(backend), streaming)),
        lambda reason: prepare(
            graph.lower(graph.leaves), backend, roles, "flush", reason, streaming
        ),
    )
    prepared = lookup.value
    leaves = prepared.leaves(graph.leaves)
    buffers = [input_of(leaf, backend) for leaf in leaves]
    results, outcome = prepared.submit(leaves, buffers, lookup.hit)
    if outcome is not None and home is None:
        outcome.require()
    for output, result in zip(pending, results, strict=True):
        kept = result if home else to_host(backend, result)
        output.node.stored[output.index] = Stored(output.type, kept, home, outcome=outcome)


def host_value(leaf: Leaf) -> np.ndarray:
    """Return the elements of a leaf as a NumPy array, which may share memory with it."""
    _note_read()
    if isinstance(leaf, Stored):
        leaf.viewed = True
        if leaf.outcome is not None:
            leaf.outcome.require()
        if not leaf.consumed:
            home = leaf.backend
            return np.asarray(leaf.buffer) if home is None else to_host(home, leaf.buffer)
    if isinstance(leaf, Parameter):
        return leaf.host_value()
    backend = leaf.backend or chosen_backend()
    return to_host(backend, buffer_of(leaf, backend))


def streaming_of(leaves: Sequence[Leaf]) -> Streaming | None:
    """Return how a program over these leaves streams its weights, None if it does not."""
    streamers = (leaf.streamer for leaf in leaves if isinstance(leaf, Parameter))
    return next((streamer.streaming for streamer in streamers if streamer is not None), None)


def input_of(leaf: Leaf, backend: Backend) -> Buffer:
    """Return a compiled program's input for a leaf: its buffer, or the `Parameter` if streamed.

    A program that reads streamed weights is compiled with `streaming_of` its leaves.
    """
    if isinstance(leaf, Parameter) and leaf.streamer is not None and leaf.backend is backend:
        return cast("Buffer", leaf)
    return buffer_of(leaf, backend)


def buffer_of(leaf: Leaf, backend: Backend) -> Buffer:
    """Return the buffer of a leaf on `backend`; a host value moves there once and remains."""
    if leaf.backend is not None and leaf.backend is not backend:
        raise UsageError(
            f"a `{leaf.type}` on backend `{leaf.backend.name}` is used on `{backend.name}`",
            hint="bring it over with `gptrs.tensor(x.numpy())`",
        )
    if isinstance(leaf, Parameter):
        return leaf.buffer()
    if isinstance(leaf, Argument):
        raise UsageError(
            "the value of a tensor is not known while `gptrs.jit` captures the function",
            hint="return the tensor and read it outside, or compute it with functionals",
        )
    if leaf.consumed:
        raise ConsumedTensorError(
            f"this `{leaf.type}` was donated to a compiled step and its memory reused",
            hint="use the tensor that the step returned instead",
        )
    if leaf.backend is None:
        leaf.buffer = placed(backend, np.asarray(leaf.buffer), leaf.axes)
        leaf.backend = backend
    return leaf.buffer
