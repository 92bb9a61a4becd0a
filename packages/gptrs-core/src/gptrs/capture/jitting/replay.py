"""Runs a compiled step on new inputs, and handles donated memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from itertools import repeat

from msgspec import Struct, field
from msgspec.structs import replace

from gptrs.backend.contract import Backend, BoundInputs, Buffer
from gptrs.capture import execute
from gptrs.capture.backend_calls import copied
from gptrs.capture.compilation import Prepared
from gptrs.capture.graph import Captured, Leaf, Source, Stored, resolve
from gptrs.capture.jitting.pytree import Rebuild, Tree
from gptrs.capture.parameter import Parameter
from gptrs.capture.region import as_function, capture_block
from gptrs.capture.tensor import Tensor, apply, apply_many
from gptrs.errors import GptrsError, UsageError
from gptrs.ir.attributes import FunctionName
from gptrs.ir.op import Op
from gptrs.ir.ops.control_flow import Call
from gptrs.ir.program import Function
from gptrs.ir.symbolic_dim import evaluated
from gptrs.ir.tensor_type import TensorType
from gptrs.spans import span


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


# Calls of equal blocks within one capture: the first is captured as a function that all call.


Block = Callable[[Iterator[Tensor]], tuple[Sequence[Tensor], Hashable]]
"""Computes the result tensors of a call; the second value is the rest of its result."""


class _Repeated(Struct, frozen=True):
    functions: tuple[Function, ...]
    """The function of the block, after its callees."""
    used: tuple[int, ...]
    """Which distinct tensors of a call it takes."""
    rest: Hashable


_NEW = object()
"""Marks an unknown property of a block."""


class RepeatedCalls:
    """The blocks in one capture, keyed by everything that determines their computation."""

    def __init__(self) -> None:
        self._known: dict[Hashable, object] = {}

    def call(
        self, name: str, key: Hashable, tensors: Sequence[Tensor], block: Block
    ) -> tuple[tuple[Tensor, ...], Hashable] | None:
        """Return the results of `block` on `tensors`, as a call of a function of the program.

        Calls share a function if `key`, the types of tensors, and the identities among tensors are
        equal. None if the block cannot be a function: it raises, reads values, uses tensors that
        are not among `tensors`, or returns none.
        """
        numbers: dict[Hashable, int] = {}
        sources: list[Source] = []
        wiring: list[_Slot] = []
        for tensor in tensors:
            source, ops = _weight_below(tensor.source)
            same = (source.node, source.index) if isinstance(source, Captured) else source
            slot = numbers.setdefault(same, len(numbers))
            wiring.append((slot, ops))
            if slot == len(sources):
                sources.append(source)
        signature = tuple([(source.type, source.backend) for source in sources])
        full = key, tuple(wiring), signature
        found = self._known.get(full, _NEW)  # hashing a block is slow: once per call
        if found is _NEW:
            found = self._known[full] = _captured(name, sources, wiring, block)
        if not isinstance(found, _Repeated):
            return None
        inputs = [Tensor(sources[slot]) for slot in found.used]
        op = Call(FunctionName(found.functions[-1].name))
        return apply_many(op, *inputs, functions=found.functions), found.rest


_Slot = tuple[int, tuple[Op, ...]]
"""A tensor of a call: the number of its source, and the ops that compute it from the source."""

_MOST_OPS = 4


def _weight_below(source: Source) -> tuple[Source, tuple[Op, ...]]:
    """Return the weight below a tensor, and the few ops, usually a widening cast, applied to it.

    The block must see both: kernels read weights in their stored type.
    """
    ops: list[Op] = []
    below = source
    while isinstance(below, Captured) and len(ops) < _MOST_OPS:
        node = below.node
        if (
            node.abstract
            or node.regions
            or node.functions
            or len(node.operands) != 1
            or len(node.types) != 1
        ):
            break
        ops.append(node.op)
        below = resolve(node.operands[0])
    return (below, tuple(reversed(ops))) if isinstance(below, Parameter) else (source, ())


def _captured(
    name: str, sources: Sequence[Source], wiring: Sequence[_Slot], block: Block
) -> _Repeated | None:
    rest: list[Hashable] = []

    def run(arguments: Sequence[Tensor]) -> Sequence[Tensor]:
        tensors = [reduce(_applied, ops, arguments[slot]) for slot, ops in wiring]
        results, other = block(iter(tensors))
        rest.append(other)
        return results

    try:
        body, used = capture_block(name, run, sources)
    except (GptrsError, TypeError, ValueError, AttributeError):
        # Captured in place instead, which raises the error again if the block itself is at fault.
        return None
    if body.outside or not body.results:
        return None
    return _Repeated((*body.functions, as_function(body)), used, rest[0])


def _applied(tensor: Tensor, op: Op) -> Tensor:
    return apply(op, tensor)


_calls: ContextVar[RepeatedCalls | None] = ContextVar("gptrs_repeated_calls", default=None)


def repeated_calls() -> RepeatedCalls | None:
    """Return the repeated calls of the current capture, None outside a capture."""
    return _calls.get()


@contextmanager
def collecting_calls() -> Generator[None]:
    """Let equal blocks share functions in this scope, also with those of an enclosing scope."""
    if _calls.get() is not None:
        yield
        return
    token = _calls.set(RepeatedCalls())
    try:
        yield
    finally:
        _calls.reset(token)
