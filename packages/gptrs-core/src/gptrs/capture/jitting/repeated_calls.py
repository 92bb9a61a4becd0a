"""Calls of equal blocks within one capture: the first is captured as a function that all call."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce

from msgspec import Struct

from gptrs.capture.graph import Captured, Source, resolve
from gptrs.capture.parameter import Parameter
from gptrs.capture.region import as_function, capture_block
from gptrs.capture.tensor import Tensor, apply, apply_many
from gptrs.errors import GptrsError
from gptrs.ir.attributes import FunctionName
from gptrs.ir.op import Op
from gptrs.ir.ops.control_flow import Call
from gptrs.ir.program import Function

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
