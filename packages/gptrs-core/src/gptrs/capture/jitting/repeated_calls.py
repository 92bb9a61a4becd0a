"""Calls of equal blocks within one capture: the first is captured as a function, all call it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce

from gptrs.capture.graph import Captured, Source, resolve
from gptrs.capture.parameter import Parameter
from gptrs.capture.region import as_function, capture_block
from gptrs.capture.tensor import Tensor, apply, apply_many
from gptrs.errors import GptrsError
from gptrs.ir.attributes import FunctionName
from gptrs.ir.op import Op
from gptrs.ir.ops.control_flow import Call
from gptrs.ir.program import Function
from gptrs.quick_dataclass import dataclass

Block = Callable[[Iterator[Tensor]], tuple[Sequence[Tensor], Hashable]]
"""Computes results of the tensors of a call; the second value is whatever else it returns."""


@dataclass(frozen=True, slots=True)
class _Repeated:
    functions: tuple[Function, ...]
    """The function of the block, after those that it calls."""
    used: tuple[int, ...]
    """The distinct tensors of a call that it takes."""
    rest: Hashable


_NEW = object()
"""Stands for what is not known of a block yet."""


class RepeatedCalls:
    """The blocks that one capture has met, by all that decides what they compute."""

    def __init__(self) -> None:
        self._known: dict[Hashable, object] = {}

    def call(
        self, name: str, key: Hashable, tensors: Sequence[Tensor], block: Block
    ) -> tuple[tuple[Tensor, ...], Hashable] | None:
        """Return the results of `block` on `tensors`, as a call of a function of the program.

        Calls with equal `key`, equal types of tensors and the same of them equal share a function.
        None where the block cannot be one: it raises, reads values, uses tensors that are not among
        `tensors`, or returns none.
        """
        numbers: dict[Hashable, int] = {}
        sources: list[Source] = []
        places: list[_Place] = []
        for tensor in tensors:
            source, ops = _weight_below(tensor.source)
            same = (source.node, source.index) if isinstance(source, Captured) else source
            place = numbers.setdefault(same, len(numbers))
            places.append((place, ops))
            if place == len(sources):
                sources.append(source)
        signature = tuple([(source.type, source.backend) for source in sources])
        full = key, tuple(places), signature
        found = self._known.get(full, _NEW)  # hashing a block takes long: once a call
        if found is _NEW:
            found = self._known[full] = _captured(name, sources, places, block)
        if not isinstance(found, _Repeated):
            return None
        inputs = [Tensor(sources[place]) for place in found.used]
        op = Call(FunctionName(found.functions[-1].name))
        return apply_many(op, *inputs, functions=found.functions), found.rest


_Place = tuple[int, tuple[Op, ...]]
"""A tensor of a call: the number of the source that it is made of, and the ops that make it."""

_MOST_OPS = 4


def _weight_below(source: Source) -> tuple[Source, tuple[Op, ...]]:
    """Return the weight that a tensor is made of by a few ops, a widening cast mostly, and these.

    The block has to see both: kernels read weights in the type in which they lie in memory.
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
    name: str, sources: Sequence[Source], places: Sequence[_Place], block: Block
) -> _Repeated | None:
    rest: list[Hashable] = []

    def run(arguments: Sequence[Tensor]) -> Sequence[Tensor]:
        tensors = [reduce(_applied, ops, arguments[place]) for place, ops in places]
        results, other = block(iter(tensors))
        rest.append(other)
        return results

    try:
        body, used = capture_block(name, run, sources)
    except (GptrsError, TypeError, ValueError, AttributeError):
        return None  # it is captured in place, where the error comes again if it was none of ours
    if body.outside or not body.results:
        return None
    return _Repeated((*body.functions, as_function(body)), used, rest[0])


def _applied(tensor: Tensor, op: Op) -> Tensor:
    return apply(op, tensor)


_calls: ContextVar[RepeatedCalls | None] = ContextVar("gptrs_repeated_calls", default=None)


def repeated_calls() -> RepeatedCalls | None:
    """Return the calls of the capture that is going on, None outside of one."""
    return _calls.get()


@contextmanager
def collecting_calls() -> Generator[None]:
    """Let equal blocks share functions in this scope, with those of the scope around it if any."""
    if _calls.get() is not None:
        yield
        return
    token = _calls.set(RepeatedCalls())
    try:
        yield
    finally:
        _calls.reset(token)
