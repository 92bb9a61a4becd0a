"""Capture a function once per signature, compile it, and replay it with almost no Python."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from operator import attrgetter
from types import MappingProxyType, MethodType
from typing import Generic, ParamSpec, TypeVar, cast, overload

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gptrs.backend.contract import Backend, BoundInputs, Buffer
from gptrs.capture import execute
from gptrs.capture.backend_calls import copied, to_device, to_host
from gptrs.capture.compilation import Prepared, prepare
from gptrs.capture.execute import chosen_backend
from gptrs.capture.graph import Leaf, Source, Stored, common_backend
from gptrs.capture.jitting.captured_function import (
    CapturedFunction,
    Describe,
    JitCall,
    active_recording,
    capture_is_open,
    signature_context,
)
from gptrs.capture.jitting.compiled_steps import (
    MANY_SIGNATURES,
    CompiledSteps,
    JitSignature,
    SymbolicKey,
)
from gptrs.capture.jitting.dynamic_axes import AxesTree, Names
from gptrs.capture.jitting.kept_captures import CaptureRecord, StepInterface, donating_roles
from gptrs.capture.jitting.pytree import Rebuild, Tree, rebuilder
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor, known_leaves
from gptrs.errors import UsageError
from gptrs.ir.program import Program
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.symbolic_dim import evaluated
from gptrs.ir.tensor_type import TensorType
from gptrs.lazy_module import collector_paused
from gptrs.quoting import counted
from gptrs.spans import span

# A compiled step, and its runs on new inputs.


class CompiledStep(Struct, frozen=True):
    """A compiled capture: the program, its closed-over inputs, and the nesting of its result."""

    function: str
    prepared: Prepared
    backend: Backend
    constants: Sequence[Leaf]
    """Closed-over tensors other than parameters; appended after the arguments."""
    parameters: Sequence[Parameter]
    """Closed-over parameters; they come last."""
    donated: Mapping[int, str]
    """The indices of the donated inputs, with the names of their arguments."""
    rebuild: Rebuild
    """Nests the result tensors as the function returned them."""
    output_types: Sequence[TensorType]
    """Their types, with symbols for a step of many sizes, see `at`."""
    symbolic_outputs: Sequence[tuple[int, int | None]]
    """The symbolic outputs, each with the index of an input of the same type, or None."""
    _loaded: list[BoundInputs] = field(default_factory=list[BoundInputs])
    """The buffers of the parameters, once loaded."""

    @property
    def weights(self) -> BoundInputs:
        """Return the buffers of the parameters, which are loaded once."""
        if not self._loaded:
            with span("read weights", self.function):
                buffers = [execute.input_of(leaf, self.backend) for leaf in self.parameters]
            self._loaded[:] = [BoundInputs(buffers)]
        return self._loaded[0]

    def at(self, sizes: Sequence[int], inputs: Sequence[Leaf]) -> CompiledStep:
        """Return the step for these sizes of its symbols, in a call with these inputs.

        ExecutionError if there is not enough memory for these sizes.
        """
        values = dict(enumerate(sizes))
        if self.prepared.memory is not None:
            self.prepared.memory.require(values)
        types = list(self.output_types)
        for output, source in self.symbolic_outputs:
            # Reuse the type object of an equal argument: results of a step are usually arguments of
            # the next, whose lookup compares types, fastest by identity.
            known = None if source is None else inputs[source].type
            types[output] = known or _sized(types[output], values)
        return replace(self, output_types=types)


def _sized(type_: TensorType, sizes: Mapping[int, int]) -> TensorType:
    return type_.with_shape(tuple([evaluated(dim, sizes) for dim in type_.shape]))


def replay(step: CompiledStep, inputs: Sequence[Leaf], cached: bool) -> Tree:
    """Run `step` on the tensors of its arguments; return what the function would return.

    `cached`: an earlier call compiled the step.
    """
    backend = step.backend
    leaves = (*inputs, *step.constants)
    buffers = [
        leaf.buffer  # nearly always a plain tensor: avoids a call for each
        if isinstance(leaf, Stored) and leaf.backend is backend and not leaf.consumed
        else execute.buffer_of(leaf, backend)
        for leaf in leaves
    ]
    weights = step.weights if step.parameters else None
    if step.donated:
        _prepare_donation(step, inputs, buffers)
    results, outcome = step.prepared.submit(leaves, buffers, cached, weights)
    # By `map`: one result takes 0.6 us, 1.0 by a comprehension over a strict `zip`.
    stored = list(map(Stored, step.output_types, results, repeat(backend)))
    if outcome is not None:
        for each in stored:
            each.outcome = outcome
    return step.rebuild(list(map(Tensor, stored)))


def _prepare_donation(step: CompiledStep, inputs: Sequence[Leaf], buffers: list[Buffer]) -> None:
    """Mark donated tensors as consumed; copy first if a host view shares the memory.

    Marks none unless all may be donated.
    """
    donors = [leaf for position in step.donated if isinstance(leaf := inputs[position], Stored)]
    distinct = {*inputs, *step.constants}
    if len(donors) < len(step.donated) or len(distinct) < len(inputs) + len(step.constants):
        _require_donors(step, inputs)
    for position, leaf in zip(step.donated, donors, strict=True):
        if leaf.viewed:
            buffers[position] = copied(step.backend, buffers[position])
        leaf.consumed = True


def _require_donors(step: CompiledStep, inputs: Sequence[Leaf]) -> None:
    """Raise UsageError for a donated parameter, or a donated tensor that the call uses twice."""
    uses = Counter[Leaf]((*inputs, *step.constants))
    for position, name in step.donated.items():
        leaf = inputs[position]
        if isinstance(leaf, Parameter):
            raise UsageError(
                f"`{step.function}` donates `{name}`, which holds the parameter `{leaf.name}`",
                hint="a parameter is needed again; donate a computed tensor, `x * 1` makes a copy",
            )
        if uses[leaf] > 1:
            raise UsageError(
                f"`{step.function}` donates `{name}`, which holds a `{leaf.type}` that is used"
                " twice in one call",
                hint="pass a copy for one of the arguments, `x * 1` makes one",
            )


# A repeated call of a jitted function without flattening and lookup, on arrays.


class PinnedCall:
    """The compiled step of one signature, as a function of arrays.

    It keeps closed-over tensors (weights) alive. Environment variables are not read again: the step
    remains as it was when pinned.
    """

    def __init__(self, step: CompiledStep, context: tuple[Hashable, ...]) -> None:
        self._step = step
        self._context = context

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Return the result tensors in order, as arrays that the caller owns.

        `arrays` are the tensors of the arguments in order, with the types of the signature; they
        are used without a copy. Returns None, before anything runs, if the function itself must be
        called: other overrides are active, or a capture is open.
        """
        if signature_context() != self._context or capture_is_open():
            return None
        step = self._step
        backend = step.backend
        buffers = [to_device(backend, array) for array in arrays]
        if step.constants:
            buffers += [execute.buffer_of(leaf, backend) for leaf in step.constants]
        results, outcome = step.prepared.submit(step.constants, buffers, True, step.weights)
        if outcome is not None:
            outcome.require()
        found = [to_host(backend, result) for result in results]
        return [array if array.flags.writeable else array.copy() for array in found]


_TYPE: Callable[[Source], TensorType] = attrgetter("type")
NO_AXES: Mapping[str, AxesTree] = MappingProxyType({})

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Lowered(Struct, frozen=True):
    """A captured function before optimization; nothing is compiled."""

    program: Program
    bound: tuple[Leaf, ...]
    """The values of the program's trailing parameters in order: tensors, then weights."""
    conditions: tuple[str, ...]
    """Conditions on sizes, `N >= 3`, under which the program is the same; empty for all sizes."""
    guards: SizeGuards | None = None
    """The same as dims of the program, with the sizes of the call; None without symbols."""


class Jitted(Generic[Parameters, Result]):
    """A jitted function: call it like the function itself.

    With `describe`, captures are kept on disk for other processes. The caller promises that
    captures depend only on the closure it returns, the arguments, source code, and environment
    variables that start with `GPTRS_`.
    """

    def __init__(
        self,
        function: Callable[Parameters, Result],
        donate: Names = (),
        static: Names = (),
        signatures: int = MANY_SIGNATURES,
        dynamic: Mapping[str, AxesTree] = NO_AXES,
        describe: Describe | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._name = str(getattr(function, "__name__", type(function).__name__))
        called = cast("Callable[..., object]", function)
        self._function = CapturedFunction(called, self._name, donate, static, dynamic)
        self._steps = CompiledSteps[CompiledStep](self._name, signatures)
        self._home: Backend | None = None
        """The backend of the closed-over tensors, once known."""
        self._describe = describe
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<jit of {self._name}: {counted(self.compiled, 'compiled program')}>"

    @property
    def compiled(self) -> int:
        """Return the number of compiled programs, at most 512: one per signature, or a few with
        `dynamic`."""
        return len(self._steps)

    @property
    def signatures(self) -> list[JitSignature]:
        """Return the compiled signatures with types, static values, guards, and calls served."""
        return self._steps.signatures()

    def clear(self) -> None:
        """Drop all compiled programs; the next call of each signature captures again."""
        with self._lock:
            self._steps.clear()
            self._home = None

    def lower(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Program:
        """Capture the function for these arguments: the program before it is optimized.

        Its parameters are the tensors of the arguments in order, then the closed-over tensors.
        Named axes are symbols, `?0`, in the order of their names. Nothing is compiled, run, or
        donated.
        """
        return self.captured(*args, **kwargs).program

    def captured(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Lowered:
        """Capture the function for these arguments, as `lower` does; return all parts of the
        capture.
        """
        call = self._function.flat_call(args, kwargs)
        sources = [tensor.source for tensor in call.tensors]
        symbolic = call.symbolic(call.key(tuple(map(_TYPE, sources)), None))
        guards = _guards(symbolic)
        with _deciding(guards):
            capture = self._function.capture(call, sources, symbolic)
            program = capture.program()
        conditions = map(symbolic.plan.named, guards.words()) if symbolic and guards else ()
        return Lowered(program, tuple(capture.bound), tuple(conditions), guards)

    def __get__(self, instance: object, owner: type | None = None) -> object:
        """Bind a method: `self` is its first argument."""
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Replay the step compiled for this signature, capturing it first if there is none."""
        call = self._function.flat_call(args, kwargs)
        inputs = None if self._function.inlined else known_leaves(call.tensors)
        if inputs is None:  # eager, in a capture, or in the body of a loop or branch
            return cast("Result", self._function.run_inlined(call))
        step, cached = self._find(call, inputs), True
        if step is None:
            step, cached = self._new_step(call, inputs)
        result = replay(step, inputs, cached)
        recording = active_recording()
        if recording is None:
            return cast("Result", result)
        result, recorded = cast("tuple[Result, dict[str, Tensor]]", result)
        recording.deliver(recorded)
        return result

    def pin(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> PinnedCall | None:
        """Return the compiled step of calls like this one as a function of arrays.

        Saves the overhead of repeated identical calls. None if there is no such step yet, if it
        donates arguments, and during a recording.
        """
        call = self._function.flat_call(args, kwargs)
        if self._function.inlined or active_recording() is not None:
            return None
        inputs = known_leaves(call.tensors)
        step = None if inputs is None else self._find(call, inputs)
        return None if step is None or step.donated else PinnedCall(step, call.context)

    def _new_step(self, call: JitCall, inputs: Sequence[Leaf]) -> tuple[CompiledStep, bool]:
        """Compile the step of a call without one; True if another thread did so meanwhile."""
        # A capture makes many objects but little garbage.
        with self._lock, collector_paused():
            step = self._find(call, inputs)
            if step is not None:
                return step, True
            types = tuple(map(_TYPE, inputs))
            symbolic = call.symbolic(call.key(types, None))
            guards = _guards(symbolic)
            interface, prepared, engine = self._prepared(call, inputs, symbolic, guards)
            step = self._compiled_step(call, inputs, interface, prepared, engine)
            key = call.key(types, step.backend)
            if symbolic is None:
                self._steps.keep(key, step)
                return step, False
            bound = step.at(symbolic.sizes, inputs)
            self._steps.keep(key, step, symbolic.on(step.backend, key.settings), guards, bound)
            return bound, False

    def _backend_of(self, inputs: Sequence[Leaf]) -> Backend | None:
        """Return the backend that a call runs on, None if that is unknown yet."""
        backend = common_backend(inputs, self._name) or self._home
        if backend is None and self._steps:  # no closed-over tensors: the default backend is used
            backend = chosen_backend()
        return backend

    def _find(self, call: JitCall, inputs: Sequence[Leaf]) -> CompiledStep | None:
        backend = self._backend_of(inputs)
        if backend is None:
            return None
        key = call.key(tuple(map(_TYPE, inputs)), backend)
        step = self._steps.find(key)
        if step is not None or not call.dynamic:
            return step
        symbolic = call.symbolic(key)
        if symbolic is None:
            return None
        return self._steps.bind(key, symbolic, lambda step: step.at(symbolic.sizes, inputs))

    def _prepared(
        self,
        call: JitCall,
        inputs: Sequence[Leaf],
        symbolic: SymbolicKey | None,
        guards: SizeGuards | None,
    ) -> tuple[StepInterface, Prepared, Backend]:
        """Compile a call, captured now or by another process; return the step and its backend."""
        types = symbolic.key.types if symbolic else tuple(map(_TYPE, inputs))
        record = None
        if self._describe is not None:
            with span("find capture", self._name):
                record = CaptureRecord.of(self._name, self._describe, call, types, inputs)
                found = record and record.find(call, types, guards)
            if record and found:
                return *found, record.backend
        with span("capture", self._name), _deciding(guards):
            capture = self._function.capture(call, inputs, symbolic)
            program = capture.program()
        engine = common_backend([*inputs, *capture.bound], self._name) or chosen_backend()
        prepared = prepare(
            program,
            engine,
            donating_roles(call, capture.bound),
            origin=f"jit {self._name}",
            streaming=execute.streaming_of(capture.bound),
            guards=guards,
            # A small program is optimized soon, but capturing it imports what its function needs.
            keeps=record is not None,
        )
        interface = StepInterface.of(capture)
        if record and prepared.kept:
            record.keep(interface, engine, *prepared.kept)
        return interface, prepared, engine

    def _compiled_step(
        self,
        call: JitCall,
        inputs: Sequence[Leaf],
        interface: StepInterface,
        prepared: Prepared,
        engine: Backend,
    ) -> CompiledStep:
        self._home = self._home or common_backend(interface.bound, self._name)
        # The arguments come first and remain; some of the bound parameters may be folded.
        bound = prepared.leaves([*inputs, *interface.bound])[len(inputs) :]
        for leaf in bound:
            # Backends keep forms of it by its buffer, whose contents must never change then.
            if isinstance(leaf, Stored):
                leaf.viewed = True
        types = interface.types
        known = {type_: type_ for type_ in types}
        sources = {type_: position for position, type_ in enumerate(types)}
        return CompiledStep(
            self._name,
            prepared,
            engine,
            [leaf for leaf in bound if not isinstance(leaf, Parameter)],
            [leaf for leaf in bound if isinstance(leaf, Parameter)],
            call.donated(),
            rebuilder(interface.outputs),
            # Reuse the type objects of equal arguments: results of a step are usually arguments of
            # the next, whose lookup compares types, fastest by identity.
            [known.get(type_, type_) for type_ in interface.output_types],
            [
                (position, sources.get(type_))
                for position, type_ in enumerate(interface.output_types)
                if not type_.is_static
            ],
        )


def _guards(symbolic: SymbolicKey | None) -> SizeGuards | None:
    """Return guards for the sizes of a call, None without symbols."""
    return SizeGuards(dict(enumerate(symbolic.sizes))) if symbolic else None


def _deciding(guards: SizeGuards | None) -> AbstractContextManager[object]:
    """Scope in which guards decide about symbols; no effect without guards."""
    return nullcontext() if guards is None else deciding(guards)


@overload
def jit(
    function: Callable[Parameters, Result],
    *,
    donate: Names = (),
    static: Names = (),
    dynamic: Mapping[str, AxesTree] = ...,
    signatures: int = ...,
) -> Jitted[Parameters, Result]: ...
@overload
def jit(
    function: None = None,
    *,
    donate: Names = (),
    static: Names = (),
    dynamic: Mapping[str, AxesTree] = ...,
    signatures: int = ...,
) -> Callable[[Callable[Parameters, Result]], Jitted[Parameters, Result]]: ...
def jit(
    function: Callable[Parameters, Result] | None = None,
    *,
    donate: Names = (),
    static: Names = (),
    dynamic: Mapping[str, AxesTree] = NO_AXES,
    signatures: int = MANY_SIGNATURES,
) -> (
    Jitted[Parameters, Result]
    | Callable[[Callable[Parameters, Result]], Jitted[Parameters, Result]]
):
    """Compile `function` of tensors once per signature, and replay it afterwards.

    Arguments and results are tensors, static values (None, bool, int, float, str, bytes, an Enum, a
    DType), and tuples, lists, dicts, named tuples, dataclasses, Structs and classes of
    `gptrs.register_pytree` that hold them. NumPy arrays are copied and passed as tensors.

    The signature comprises the nesting of the arguments, the types of their tensors, the values of
    all other arguments, the backend, and the active overrides. Passing an argument by position,
    keyword or default makes no difference, nor does the insertion order of a dict. The function
    runs in Python once per signature, so its side effects happen only then, and it must not read
    the value of a tensor. Closed-over tensors are bound at capture: the backend may keep them in
    another form, as it does the weights of a model.

    `donate` names arguments, by position or keyword, whose tensors the caller gives up: their
    memory may be reused for results, and reading them afterwards raises ConsumedTensorError.
    `static` names arguments that are part of the signature by value: any hashable value. UsageError
    if the function has no such argument.

    `dynamic` names axes of arguments whose sizes are not part of the signature: for each argument a
    tuple with a name or None for each axis, `{"x": ("N", None)}`; `"N+1"` is an axis with one more
    element. An argument that holds several tensors takes one tuple for all of them, or tuples with
    the same nesting. Axes of one name must have one size in a call, or UsageError is raised. The
    program is captured and compiled for all sizes. Where Python compares sizes, the outcome in the
    first call becomes a guard, and a call with another outcome is compiled again. UsageError if the
    function needs a number, as in `range(x.shape[0])`. A call with a size of 0 is compiled for its
    exact sizes.

    Beyond `signatures` signatures, a warning says once which argument changes.

    A jitted function called during the capture of another becomes part of it, and donates nothing.
    """
    if function is None:
        return lambda function: Jitted(function, donate, static, signatures, dynamic)
    return Jitted(function, donate, static, signatures, dynamic)
