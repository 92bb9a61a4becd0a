"""Branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from gptrs.api.importers import scalar
from gptrs.api.models import Tensor, primitives
from gptrs_backend_jax.stablehlo.conversion import Known, Node, Value, as_tensor, converts
from gptrs_backend_jax.stablehlo.reading.module import Block, ConstantArray, Operation, StableHlo


def _tensors(values: Sequence[Value]) -> tuple[Tensor, ...]:
    return tuple(as_tensor(each) for each in values)


def _branch(node: Node, number: int) -> Callable[..., tuple[Tensor, ...]]:
    return lambda *none: _tensors(node.region(number, none))


@converts("if")
def if_(node: Node, predicate: Value) -> Sequence[Value]:
    """Return the results of one of two regions."""
    if isinstance(predicate, Known):
        return node.region(0 if predicate.array.reshape(-1)[0] else 1, ())
    if not node.operation.results:
        return ()
    return primitives.cond(predicate, _branch(node, 0), _branch(node, 1))


@converts("case")
def case(node: Node, index: Value) -> Sequence[Value]:
    """Return the results of a region by index; indices out of range select the last one."""
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


# Regions of scalars as expressions, which identify reductions and comparators.


Expression: TypeAlias = "tuple[str | Expression, ...]"
"""`("param", "0")`, `("constant", bits)`, or an operation: its name, then its operands."""

_COMMUTATIVE: Final = ("add", "multiply", "and", "or", "xor", "maximum", "minimum")
_KINDS: Final = {
    "add": "add",
    "multiply": "mul",
    "maximum": "max",
    "minimum": "min",
    "and": "and",
    "or": "or",
    "xor": "xor",
}


def param(number: int) -> Expression:
    """Return the expression of a parameter."""
    return ("param", str(number))


def call(name: str, *operands: Expression) -> Expression:
    """Return an operation; operands of commutative ones are sorted."""
    return (name, *(sorted(operands, key=repr) if name in _COMMUTATIVE else operands))


def compared(direction: str, lhs: Expression, rhs: Expression) -> Expression:
    """Return a comparison other than by the total order of floats."""
    return call(f"compare {direction}", lhs, rhs)


def expressions(module: StableHlo, block: Block) -> list[Expression | None]:
    """Return each result of a block; None if it uses regions, or outer values except constants."""
    found: dict[int, Expression | None] = {
        number: param(position) for position, number in enumerate(block.params)
    }

    def known(number: int) -> Expression | None:
        outside = module.definitions.get(number)
        return found.get(number, None if outside is None else _constant(outside))

    for operation in block.operations:
        operands = [known(each) for each in operation.operands]
        made = _constant(operation)
        name = operation.name.removeprefix("stablehlo.")
        if (
            made is None
            and not operation.regions
            and len(operation.results) == 1
            and None not in operands
        ):
            if name == "compare":
                total = operation.attributes.get("compare_type") == "TOTALORDER"
                direction = operation.attributes.get("comparison_direction")
                name = f"compare {direction}{' TOTAL' if total else ''}"
            if name == "convert":
                name = f"convert {operation.types[0]}"
            made = call(name, *(each for each in operands if each is not None))
        for number in operation.results:
            found[number] = made
    return [known(each) for each in block.results]


def _constant(operation: Operation) -> Expression | None:
    held = operation.attributes.get("value")
    if operation.name != "stablehlo.constant" or not isinstance(held, ConstantArray):
        return None
    return None if held.shape else ("constant", f"{held.type.element} {held.array.tobytes().hex()}")


def combined_by(module: StableHlo, block: Block) -> list[str | None]:
    """Return how a region with parameters (first.., second..) combines each pair.

    `add`, `mul`, `max`, `min`, `and`, `or`, `xor`, `sub` (first minus second), `replace` (the
    second), `keep` (the first); None for anything else.
    """
    count = len(block.results)
    kinds: list[str | None] = []
    for position, made in enumerate(expressions(module, block)):
        first, second = param(position), param(position + count)
        known: dict[Expression, str] = {second: "replace", first: "keep"}
        known[call("subtract", first, second)] = "sub"
        for name, kind in _KINDS.items():
            known[call(name, first, second)] = kind
        kinds.append(None if made is None else known.get(made))
    return kinds
