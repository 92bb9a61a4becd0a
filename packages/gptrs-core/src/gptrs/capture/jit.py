"""Capture a function once per signature, compile it, and replay it with almost no Python."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from gptrs.backend.protocol import Backend, Buffer, Executable, InputRole
from gptrs.capture import execute
from gptrs.capture.backend_choice import chosen_backend
from gptrs.capture.graph import (
    Argument,
    Captured,
    GraphSlice,
    Leaf,
    Stored,
    common_backend,
    role_of,
)
from gptrs.capture.structure import Tree, flatten, rebuild
from gptrs.capture.tensor import Tensor, flush
from gptrs.errors import UsageError
from gptrs.ir.tensor_type import TensorType

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_contexts: list[Callable[[], Hashable]] = []


def add_signature_context(value: Callable[[], Hashable]) -> None:
    """Make `value()` part of every signature: for ambient state that changes what is captured."""
    _contexts.append(value)


@dataclass(frozen=True, slots=True)
class _Step:
    """A compiled capture: what to run, the inputs it brings along, and the shape of its result."""

    executable: Executable
    backend: Backend
    bound: Sequence[Leaf]
    outputs: Tree
    output_types: Sequence[TensorType]


class Jitted(Generic[Parameters, Result]):
    """What `gptrs.jit` returns: call it like the function."""

    def __init__(
        self, function: Callable[Parameters, Result], donate: Sequence[int | str] = ()
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._donate = frozenset(donate)
        self._steps: dict[Hashable, _Step] = {}
        self._home: Backend | None = None
        """The backend of the tensors that the function brings along, once that is known."""
        self._lock = threading.RLock()

    @property
    def compiled(self) -> int:
        """How many signatures have been compiled so far."""
        return len(self._steps)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Replay the step compiled for this signature, capturing it first if there is none."""
        if execute.eager():
            return self._function(*args, **kwargs)
        leaves: list[Tensor] = []
        donated: list[bool] = []
        structure = (
            self._flatten(args, kwargs, leaves, donated),
            *(value() for value in _contexts),
        )
        if any(leaf.source.traced for leaf in leaves):
            return self._function(*args, **kwargs)
        flush(leaves)
        inputs = [_leaf_of(tensor) for tensor in leaves]
        given = common_backend(inputs, self._function.__name__)
        signature = (structure, tuple(leaf.type for leaf in inputs))
        step = self._find(signature, given)
        if step is None:
            with self._lock:
                step = self._find(signature, given)
                if step is None:
                    step = self._capture(args, kwargs, inputs, donated, given)
                    self._steps[signature, step.backend] = step
        return cast("Result", _replay(step, inputs, donated))

    def _find(self, signature: Hashable, given: Backend | None) -> _Step | None:
        backend = given or self._home
        if backend is None and self._steps:  # it binds nothing: the default backend decides
            backend = chosen_backend()
        return self._steps.get((signature, backend)) if backend else None

    def _flatten(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        leaves: list[Tensor],
        donated: list[bool],
    ) -> Hashable:
        parts: list[Hashable] = []
        for name, value in (*enumerate(args), *kwargs.items()):
            parts.append((name, flatten(value, leaves)))
            donated.extend([name in self._donate] * (len(leaves) - len(donated)))
        return tuple(parts)

    def _capture(
        self,
        args: Any,
        kwargs: Any,
        inputs: Sequence[Leaf],
        donated: Sequence[bool],
        backend: Backend | None,
    ) -> _Step:
        arguments = [Argument(leaf.type, position, backend) for position, leaf in enumerate(inputs)]
        stand_ins = iter([Tensor(argument) for argument in arguments])
        given, named = cast("tuple[Any, Any]", rebuild((args, kwargs), stand_ins))
        outputs = cast("Callable[..., object]", self._function)(*given, **named)
        results: list[Tensor] = []
        flatten(outputs, results)
        graph = GraphSlice([tensor.source for tensor in results])
        own = set[Leaf](arguments)
        bound = [leaf for leaf in graph.leaves if leaf not in own]
        _require_own_arguments(bound, self._function.__name__)
        self._home = self._home or common_backend(bound, self._function.__name__)
        engine = common_backend([*arguments, *bound], self._function.__name__) or chosen_backend()
        roles = [
            InputRole.DONATED if given_away else InputRole.ARGUMENT for given_away in donated
        ] + [role_of(leaf) for leaf in bound]
        program = graph.lower([*arguments, *bound])
        executable = execute.compile_program(program, engine, roles)
        types = [tensor.type for tensor in results]
        # Empty tensors stand in for the results, so that a kept step does not keep its graph.
        outputs = rebuild(outputs, iter([_PLACEHOLDER] * len(results)))
        return _Step(executable, engine, bound, outputs, types)


@overload
def jit(
    function: Callable[Parameters, Result], *, donate: Sequence[int | str] = ()
) -> Jitted[Parameters, Result]: ...
@overload
def jit(
    function: None = None, *, donate: Sequence[int | str] = ()
) -> Callable[[Callable[Parameters, Result]], Jitted[Parameters, Result]]: ...
def jit(
    function: Callable[Parameters, Result] | None = None, *, donate: Sequence[int | str] = ()
) -> (
    Jitted[Parameters, Result]
    | Callable[[Callable[Parameters, Result]], Jitted[Parameters, Result]]
):
    """Compile `function` from tensors to tensors once for each signature, and replay it after that.

    The signature is the nesting of the arguments, the types of their tensors, the values of all
    other arguments, the backend, and the active overrides. The function runs in Python once per
    signature, so its side effects happen then only, and it must not read the value of a tensor.
    Tensors that it uses without taking them as arguments are bound when it is captured.

    `donate` names arguments, by position or keyword, whose tensors the caller gives up: their
    memory may be reused for results, and reading them afterwards raises ConsumedTensorError.
    A jitted function called while another one is being captured becomes part of that one.
    """
    if function is None:
        return lambda function: Jitted(function, donate)
    return Jitted(function, donate)


def _leaf_of(tensor: Tensor) -> Leaf:
    source = tensor.source
    assert not isinstance(source, Captured), "flushed above"
    return source


def _require_own_arguments(bound: Sequence[Leaf], name: str) -> None:
    for leaf in bound:
        if isinstance(leaf, Argument):
            raise UsageError(
                f"`{name}` uses a tensor that stood for an argument of another captured function",
                hint="a captured function must return what others are to use, not store it aside",
            )


_PLACEHOLDER = Tensor.of_array(0)


def _replay(step: _Step, inputs: Sequence[Leaf], donated: Sequence[bool]) -> Tree:
    backend = step.backend
    buffers = [execute.buffer_of(leaf, backend) for leaf in inputs]
    if any(donated):
        _prepare_donation(step, inputs, donated, buffers)
    buffers += [execute.buffer_of(leaf, backend) for leaf in step.bound]
    results = step.executable.run(buffers)
    made = [
        Tensor(Stored(type_, result, backend))
        for type_, result in zip(step.output_types, results, strict=True)
    ]
    return rebuild(step.outputs, iter(made))


def _prepare_donation(
    step: _Step, inputs: Sequence[Leaf], donated: Sequence[bool], buffers: list[Buffer]
) -> None:
    """Mark what is given away; copy first where somebody else can still see the memory."""
    uses = Counter[Leaf]((*inputs, *step.bound))
    given_away = [position for position, donate in enumerate(donated) if donate]
    for position in given_away:
        if uses[inputs[position]] > 1:
            raise UsageError(f"a donated `{inputs[position].type}` is used twice in one call")
    for position in given_away:
        leaf = inputs[position]
        if not isinstance(leaf, Stored) or leaf.viewed:
            host = step.backend.to_host(buffers[position])
            buffers[position] = step.backend.to_device(host.copy())
        if isinstance(leaf, Stored):
            leaf.consumed = True
