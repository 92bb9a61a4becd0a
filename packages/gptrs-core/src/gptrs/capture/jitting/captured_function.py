"""The function behind `gptrs.jit`: flattens its calls, and captures it with placeholders."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import cast

from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs.capture import execute
from gptrs.capture.caching.source_identity import package_of
from gptrs.capture.compilation import settings_for
from gptrs.capture.graph import GraphSlice, Leaf, Source
from gptrs.capture.jitting.compiled_steps import StepKey, SymbolicKey
from gptrs.capture.jitting.dynamic_axes import (
    AxesTree,
    AxisPlan,
    CallShape,
    CallSignature,
    DynamicAxes,
    Names,
    refused,
)
from gptrs.capture.jitting.pytree import (
    AS_GIVEN,
    LEAF,
    LIST,
    SORTED,
    TUPLE,
    FieldsNode,
    PytreeNode,
    Refusal,
    Static,
    Structure,
    Tree,
    count_tensors,
    flatten,
    rebuild,
)
from gptrs.capture.jitting.repeated_calls import collecting_calls
from gptrs.capture.parameter import Parameter
from gptrs.capture.ports import load_signature_contexts
from gptrs.capture.tensor import Placeholder, Tensor, require_own
from gptrs.errors import GptrsError, UsageError
from gptrs.ir.program import Program
from gptrs.ir.symbolic_dim import UnknownSizeError
from gptrs.ir.tensor_type import TensorType

# The error for captured code that needs the number behind a `dynamic` axis.


_CORE = Path(__file__).parents[2]


def size_needed(error: UnknownSizeError, function: str, plan: AxisPlan) -> UsageError:
    """Return `error` with the source line that asked for the size, and the axis."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _CORE not in Path(frame.filename).parents]
    frame = (own or frames)[-1]
    described = ", ".join(plan.where(number) for number in sorted(error.symbols))
    return UsageError(
        f"`{function}` needs the number behind {described} at {frame.filename}:{frame.lineno},"
        f" `{frame.line}`: {plan.named(error.question)}",
        hint="leave the axis out of `dynamic`, or use only +, -, *, // by a number and comparisons",
    )


# Tensors recorded inside functions during capture: additional results of their steps.


_numbers = itertools.count(1)
_recorded: ContextVar[dict[str, Tensor] | None] = ContextVar("gptrs_told", default=None)
"""The records of the open capture."""


class Recording:
    """Collects the tensors that code records during capture, and holds their values after each run.

    It is part of the signature of jitted functions: a step is captured and compiled once for it,
    and then replayed.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.found: dict[str, Tensor] = {}
        """The tensors of the last run, in the order in which they were recorded."""

    def tell(self, name: str, value: Tensor) -> None:
        """Record a tensor; a repeated name gets a number, `name@1`."""
        recorded = _recorded.get()
        target = self.found if recorded is None else recorded  # eager mode has no capture
        key, again = name, 0
        while key in target:
            again += 1
            key = f"{name}@{again}"
        target[key] = value

    def deliver(self, values: Mapping[str, Tensor]) -> None:
        """Store the tensors recorded in a run."""
        self.found.update(values)


_active: ContextVar[Recording | None] = ContextVar("gptrs_recording", default=None)


def active_recording() -> Recording | None:
    """Return the active recording, if any."""
    return _active.get()


def recording_key() -> Hashable:
    """Return the part of a signature that identifies the recording; () without one."""
    active = _active.get()
    return () if active is None else active.number


@contextmanager
def recording(wanted: Recording) -> Generator[None]:
    """Scope in which `wanted` collects the recorded tensors."""
    token = _active.set(wanted)
    try:
        yield
    finally:
        _active.reset(token)


@contextmanager
def telling() -> Generator[dict[str, Tensor]]:
    """Scope of a capture: yields the list of tensors recorded in it."""
    recorded: dict[str, Tensor] = {}
    token = _recorded.set(recorded)
    try:
        yield recorded
    finally:
        _recorded.reset(token)


_contexts: list[Callable[[], Hashable]] = []
_open_captures: ContextVar[tuple[tuple[object, StepKey], ...]] = ContextVar(
    "gptrs_open_captures", default=()
)
"""The functions being captured, outermost first, each with the key of its call."""


def add_signature_context(value: Callable[[], Hashable]) -> None:
    """Add ambient state that affects captures: `value()` becomes part of every signature."""
    _contexts.append(value)


def signature_context() -> tuple[Hashable, ...]:
    """Return the current ambient state that affects captures."""
    return tuple([value() for value in _contexts])


add_signature_context(recording_key)


def capture_is_open() -> bool:
    """Return whether a jitted function is being captured."""
    return bool(_open_captures.get())


_TENSORS: set[type] = {Tensor}


class JitCall(Struct, eq=False):
    """The flattened arguments of one call of a jitted function."""

    shape: CallShape
    structures: tuple[Structure, ...]
    tensors: Sequence[Tensor]
    context: tuple[Hashable, ...]
    dynamic: DynamicAxes

    def key(self, types: tuple[TensorType, ...], backend: Backend | None) -> StepKey:
        """Return the key of its step on `backend`, with the types of its tensors."""
        settings = settings_for(backend) if backend else ()
        return StepKey(self.shape.labels, self.structures, types, self.context, backend, settings)

    def symbolic(self, key: StepKey) -> SymbolicKey | None:
        """Return `key` with symbols for the sizes of `dynamic` axes.

        None without such axes, and for a size of 0: symbols are at least 1.
        """
        if not self.dynamic:
            return None
        plan = self.dynamic.plan(self.shape, self.structures)
        sizes = plan.sizes(key.types)
        if not sizes or not all(sizes):
            return None
        return SymbolicKey(key._replace(types=plan.symbolic(key.types)), sizes, plan)

    def donated(self) -> dict[int, str]:
        """Return the positions of the donated tensors, with the names of their arguments."""
        names: list[str | None] = []
        for slot, structure in zip(self.shape.slots, self.structures, strict=True):
            names += [slot.label if slot.donated else None] * count_tensors(structure)
        return {position: name for position, name in enumerate(names) if name is not None}


class Capture(Struct, frozen=True):
    """The graph of a function that was called with placeholders."""

    graph: GraphSlice
    arguments: Sequence[Placeholder]
    bound: Sequence[Leaf]
    """Closed-over tensors, parameters last."""
    outputs: Structure
    output_types: Sequence[TensorType]

    def program(self) -> Program:
        """Return the program; its parameters are the arguments, then the closed-over tensors."""
        return self.graph.lower([*self.arguments, *self.bound])


class CapturedFunction:
    """A function whose calls can be flattened, captured, or inlined.

    `name` is for errors; `donate`, `static` and `dynamic` are those of `gptrs.jit`.
    """

    def __init__(
        self,
        function: Callable[..., object],
        name: str,
        donate: Names,
        static: Names,
        dynamic: Mapping[str, AxesTree],
    ) -> None:
        load_signature_contexts()  # before the first call, whose signature must include them
        self.name = name
        self._function = function
        self._signature = CallSignature(function, name, donate, static)
        labels = {self._signature.label("dynamic", each): axes for each, axes in dynamic.items()}
        self._dynamic = DynamicAxes(name, labels)

    @property
    def inlined(self) -> bool:
        """Whether calls run the Python function: in eager mode, and within another capture."""
        return bool(_open_captures.get()) or execute.eager()

    def flat_call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> JitCall:
        """Flatten a call; UsageError for what cannot be passed, TypeError as Python raises it."""
        shape = self._signature.shape(args, kwargs)
        if shape.plain is not None and set(map(type, args)) == _TENSORS:
            plain = cast("tuple[Tensor, ...]", args)
            return JitCall(shape, shape.plain, plain, signature_context(), self._dynamic)
        tensors: list[Tensor] = []
        structures = shape.flatten(args, kwargs, tensors)
        return JitCall(shape, structures, tensors, signature_context(), self._dynamic)

    def capture(
        self, call: JitCall, inputs: Sequence[Source], symbolic: SymbolicKey | None = None
    ) -> Capture:
        """Call the function with placeholders for `inputs`; with the types of `symbolic` if given.

        UsageError if the function needs a size to be a number that is a symbol.
        """
        types = [source.type for source in inputs] if symbolic is None else symbolic.key.types
        arguments = [
            Placeholder(type_, position, source.backend, self.name)
            for position, (type_, source) in enumerate(zip(types, inputs, strict=True))
        ]
        try:
            tensors = [Tensor(argument) for argument in arguments]
            with telling() as recorded:
                returned = self._captured_call(call, tensors)
            if active_recording() is not None:
                returned = (returned, recorded)  # `Jitted` takes them apart again
            results: list[Tensor] = []
            outputs = self._result_structure(returned, results)
        except UnknownSizeError as error:
            if symbolic is None:
                raise
            raise size_needed(error, self.name, symbolic.plan) from None
        except GptrsError as error:
            if symbolic is not None:
                error.message = symbolic.plan.named(error.message)
            raise
        finally:
            for argument in arguments:
                argument.ended = True
        graph = GraphSlice([tensor.source for tensor in results])
        own = set[Leaf](arguments)
        bound = sorted(
            [leaf for leaf in graph.leaves if leaf not in own],
            key=lambda leaf: isinstance(leaf, Parameter),
        )
        require_own(bound, self.name)
        return Capture(graph, arguments, bound, outputs, [tensor.type for tensor in results])

    def _captured_call(self, call: JitCall, tensors: Sequence[Tensor]) -> object:
        """Call the function; UsageError if that very call is being captured already."""
        key = call.key(tuple([tensor.type for tensor in tensors]), None)
        opened = _open_captures.get()
        if (self, key) in opened:
            raise UsageError(
                f"`{self.name}` calls itself with arguments of the same types and static values,"
                " so its capture would never end",
                hint="stop at a static argument that changes, or use a loop functional",
            )
        token = _open_captures.set((*opened, (self, key)))
        try:
            with execute.capturing(), collecting_calls():
                return call.shape.call(self._function, call.structures, iter(tensors))
        finally:
            _open_captures.reset(token)

    def run_inlined(self, call: JitCall) -> Tree:
        """Call the Python function in place: values in eager mode, else a part of the open
        capture."""
        if execute.eager():
            returned = call.shape.call(self._function, call.structures, iter(call.tensors))
        else:
            returned = self._captured_call(call, call.tensors)
        results: list[Tensor] = []
        structure = self._result_structure(returned, results)
        return rebuild(structure, iter(results))

    def _result_structure(self, returned: Tree, results: list[Tensor]) -> Structure:
        try:
            return flatten(returned, results, AS_GIVEN)
        except Refusal as refusal:
            refusal.hint = "return tensors, arrays, static values, and containers of them"
            raise refused(refusal, f"`{self.name}` cannot return", returned, "result") from None


# The closure of a jitted function, in a form comparable across processes.


class Closure(Struct, frozen=True):
    """A function and everything it closes over: equal closures have equal captures."""

    text: str
    """Names of classes and functions, values of attributes, types and order of tensors."""
    packages: frozenset[str]
    """The top-level packages with that code."""
    leaves: tuple[Leaf, ...]
    """The distinct tensors."""


Describe = Callable[[], Closure | None]
"""Returns the current closure of a function; None if a part cannot be identified."""


# Structures of arguments and results as tuples and strings, for other processes.


_VALUES = (bool, int, float, str, bytes, type(None))
_NODES: dict[str, PytreeNode] = {
    "tuple": TUPLE,
    "list": LIST,
    "sorted dict": SORTED,
    "dict": AS_GIVEN,
}
_KINDS = {id(node): kind for kind, node in _NODES.items()}
_TENSOR = "tensor"
_STATIC = "static"
_FIELDS = "fields"


class NotPlainError(ValueError):
    """Raised for a structure with a value or container known only in this process."""


def plain_structure(structure: Structure) -> object:
    """Return a structure as nested tuples; raise NotPlainError if it has no such form.

    Enum members, element types, values of other classes, and containers of classes outside gptrs
    have none.
    """
    if structure is LEAF:
        return _TENSOR
    if isinstance(structure, Static):
        if type(structure.value) not in _VALUES:
            raise NotPlainError
        return _STATIC, structure.value
    node, rest, *parts = cast("tuple[PytreeNode, Hashable, *tuple[Structure, ...]]", structure)
    return *_kind(node, rest), *map(plain_structure, parts)


def _kind(node: PytreeNode, rest: Hashable) -> tuple[object, object]:
    if isinstance(node, FieldsNode) and package_of(node.kind.__module__) == "gptrs":
        return _FIELDS, f"{node.kind.__module__}.{node.kind.__qualname__}"
    kind = _KINDS.get(id(node))
    if kind is None or (rest is not None and not _all_strings(rest)):
        raise NotPlainError
    return kind, None if rest is None else cast("tuple[object, ...]", rest)[1:]


def _all_strings(rest: Hashable) -> bool:
    """Return whether `rest` holds the keys of a dict, after their type, and all are strings."""
    return isinstance(rest, tuple) and all(
        type(key) is str for key in cast("tuple[object, ...]", rest)[1:]
    )


def structure_of(plain: object) -> Structure:
    """Return the structure of a `plain_structure`; NotPlainError for named fields."""
    if plain == _TENSOR:
        return LEAF
    kind, rest, *parts = cast("tuple[str, Hashable, *tuple[object, ...]]", plain)
    if kind == _STATIC:
        return Static(rest)
    if kind not in _NODES:
        raise NotPlainError
    if rest is not None:
        keys = cast("tuple[str, ...]", rest)
        rest = (*map(type, keys[:1]), *keys)
    return (_NODES[kind], rest, *map(structure_of, parts))
