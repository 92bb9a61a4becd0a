"""Branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gptrs.api.models import Tensor, primitives
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.registry import converts
from gptrs_backend_jax.stablehlo.values import Known, Value, as_tensor, scalar


def _tensors(values: Sequence[Value]) -> tuple[Tensor, ...]:
    return tuple(as_tensor(each) for each in values)


def _branch(node: Node, number: int) -> Callable[..., tuple[Tensor, ...]]:
    return lambda *none: _tensors(node.region(number, none))


@converts("if", knows=True)
def if_(node: Node, predicate: Value) -> Sequence[Value]:
    """Return the results of one of two regions."""
    if isinstance(predicate, Known):
        return node.region(0 if predicate.array.reshape(-1)[0] else 1, ())
    if not node.operation.results:
        return ()
    return primitives.cond(predicate, _branch(node, 0), _branch(node, 1))


@converts("case", knows=True)
def case(node: Node, index: Value) -> Sequence[Value]:
    """Return the results of a region by number; the last one for numbers outside."""
    count = len(node.operation.regions)
    if isinstance(index, Known):
        number = index.integers()[0]
        return node.region(number if 0 <= number < count else count - 1, ())
    if not node.operation.results:
        return ()
    return _chosen(node, index, 0)


def _chosen(node: Node, index: Tensor, number: int) -> tuple[Tensor, ...]:
    if number == len(node.operation.regions) - 1:
        return _tensors(node.region(number, ()))
    is_it = primitives.compare(index, scalar(number, index.dtype), "eq")
    return primitives.cond(is_it, _branch(node, number), lambda: _chosen(node, index, number + 1))


@converts("while")
def while_(node: Node, *state: Tensor) -> tuple[Tensor, ...]:
    """Return the last state of a loop."""
    if not state:
        return ()

    def condition(*values: Tensor) -> tuple[Tensor, ...]:
        return _tensors(node.region(0, values))

    def body(*values: Tensor) -> tuple[Tensor, ...]:
        return _tensors(node.region(1, values))

    return primitives.while_(condition, body, *state)
