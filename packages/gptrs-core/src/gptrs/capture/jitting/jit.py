"""Capture a function once per signature, compile it, and replay it with almost no Python."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import MethodType
from typing import Generic, ParamSpec, TypeVar, cast, overload

from gptrs.backend.protocol import Backend, InputRole
from gptrs.capture import execute
from gptrs.capture.backend_choice import chosen_backend
from gptrs.capture.compilation import prepare
from gptrs.capture.graph import Leaf, common_backend, role_of
from gptrs.capture.jitting.call_signature import Names
from gptrs.capture.jitting.captured_function import CapturedFunction, JitCall
from gptrs.capture.jitting.compiled_steps import MANY_SIGNATURES, CompiledSteps, JitSignature
from gptrs.capture.jitting.pytree import rebuilder
from gptrs.capture.jitting.replay import CompiledStep, replay
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import known_leaves
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType

_TYPE: Callable[[Leaf], TensorType] = attrgetter("type")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Jitted(Generic[Parameters, Result]):
    """A jitted function: call it like the function itself."""

    def __init__(
        self,
        function: Callable[Parameters, Result],
        donate: Names = (),
        static: Names = (),
        signatures: int = MANY_SIGNATURES,
    ) -> None:
        functools.update_wrapper(self, function)
        self._name = str(getattr(function, "__name__", type(function).__name__))
        called = cast("Callable[..., object]", function)
        self._function = CapturedFunction(called, self._name, donate, static)
        self._steps = CompiledSteps[CompiledStep](self._name, signatures)
        self._home: Backend | None = None
        """The backend of the tensors that the function brings along, once that is known."""
        self._lock = threading.RLock()

    @property
    def compiled(self) -> int:
        """Number of signatures with a compiled program, at most 512."""
        return len(self._steps)

    @property
    def signatures(self) -> list[JitSignature]:
        """These signatures, with types, static values, and calls served."""
        return self._steps.signatures()

    def clear(self) -> None:
        """Forget all compiled programs; the next call of each signature captures anew."""
        with self._lock:
            self._steps.clear()
            self._home = None

    def lower(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Program:
        """Capture the function for these arguments: the program before it is optimized.

        Its parameters are the tensors of the arguments, in order, and then those that the function
        uses without taking them. Nothing is compiled, run, or donated.
        """
        call = self._function.flat_call(args, kwargs)
        return self._function.capture(call, [tensor.source for tensor in call.tensors]).program()

    def __get__(self, instance: object, owner: type | None = None) -> object:
        """Bind a method: `self` is its first argument."""
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Replay the step compiled for this signature, capturing it first if there is none."""
        call = self._function.flat_call(args, kwargs)
        if self._function.inlined:
            return cast("Result", self._function.run_inlined(call))
        inputs = known_leaves(call.tensors)
        if inputs is None:  # in the body of a loop or branch
            return cast("Result", self._function.run_inlined(call))
        step = self._find(call, inputs)
        if step is not None:
            return cast("Result", replay(step, inputs, cached=True))
        step, cached = self._new_step(call, inputs)
        return cast("Result", replay(step, inputs, cached))

    def _new_step(self, call: JitCall, inputs: Sequence[Leaf]) -> tuple[CompiledStep, bool]:
        """Compile the step of a call that had none; True if another thread did so meanwhile."""
        with self._lock:
            step = self._find(call, inputs)
            if step is not None:
                return step, True
            step = self._compiled_step(call, inputs)
            self._steps.keep(call.key(tuple(map(_TYPE, inputs)), step.backend), step)
            return step, False

    def _find(self, call: JitCall, inputs: Sequence[Leaf]) -> CompiledStep | None:
        backend = common_backend(inputs, self._name) or self._home
        if backend is None and self._steps:  # it binds nothing: the default backend decides
            backend = chosen_backend()
        if backend is None:
            return None
        return self._steps.find(call.key(tuple(map(_TYPE, inputs)), backend))

    def _compiled_step(self, call: JitCall, inputs: Sequence[Leaf]) -> CompiledStep:
        capture = self._function.capture(call, inputs)
        self._home = self._home or common_backend(capture.bound, self._name)
        engine = common_backend([*inputs, *capture.bound], self._name) or chosen_backend()
        donated = call.donated()
        roles = [
            InputRole.DONATED if position in donated else InputRole.ARGUMENT
            for position in range(len(inputs))
        ]
        roles += [role_of(leaf) for leaf in capture.bound]
        prepared = prepare(
            capture.program(),
            engine,
            roles,
            origin=f"jit {self._name}",
            streaming=execute.streaming_of(capture.bound),
        )
        # The arguments come first and stay; of what is bound, some parameters may be folded.
        bound = prepared.leaves([*inputs, *capture.bound])[len(inputs) :]
        known = {leaf.type: leaf.type for leaf in inputs}
        return CompiledStep(
            self._name,
            prepared,
            engine,
            [leaf for leaf in bound if not isinstance(leaf, Parameter)],
            [leaf for leaf in bound if isinstance(leaf, Parameter)],
            donated,
            rebuilder(capture.outputs),
            # The very types of the arguments where they are equal: the results of a step are mostly
            # arguments of the next one, and finding it compares types.
            [known.get(type_, type_) for type_ in capture.output_types],
        )


@overload
def jit(
    function: Callable[Parameters, Result],
    *,
    donate: Names = (),
    static: Names = (),
    signatures: int = ...,
) -> Jitted[Parameters, Result]: ...
@overload
def jit(
    function: None = None, *, donate: Names = (), static: Names = (), signatures: int = ...
) -> Callable[[Callable[Parameters, Result]], Jitted[Parameters, Result]]: ...
def jit(
    function: Callable[Parameters, Result] | None = None,
    *,
    donate: Names = (),
    static: Names = (),
    signatures: int = MANY_SIGNATURES,
) -> (
    Jitted[Parameters, Result]
    | Callable[[Callable[Parameters, Result]], Jitted[Parameters, Result]]
):
    """Compile `function` from tensors to tensors once for each signature, and replay it after that.

    Arguments and results are tensors, static values (None, bool, int, float, str, bytes, an Enum, a
    DType), and tuples, lists, dicts, named tuples, dataclasses and classes of
    `gptrs.register_pytree` that hold them. NumPy arrays are passed as tensors with a copy of them.

    The signature is the nesting of the arguments, the types of their tensors, the values of all
    other arguments, the backend, and the active overrides; it does not matter which arguments are
    given by position, by keyword, or by default, nor in which order a dict was filled. The function
    runs in Python once per signature, so its side effects happen then only, and it must not read
    the value of a tensor. Tensors that it uses without taking them as arguments are bound when it
    is captured.

    `donate` names arguments, by position or keyword, whose tensors the caller gives up: their
    memory may be reused for results, and reading them afterwards raises ConsumedTensorError.
    `static` names arguments that are part of the signature as they are: any hashable value.
    UsageError if the function has no such argument. When there are more than `signatures`
    signatures, one line of warning says which argument changes.

    A jitted function called while another one is being captured becomes part of that one, and
    donates nothing.
    """
    if function is None:
        return lambda function: Jitted(function, donate, static, signatures)
    return Jitted(function, donate, static, signatures)
