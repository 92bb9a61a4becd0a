"""Regions of scalars as expressions, by which reductions and orders are known."""

from __future__ import annotations

from typing import Final, TypeAlias

from gptrs_backend_jax.stablehlo.reading.module import (
    Block,
    ConstantArray,
    Operation,
    StableHlo,
)

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
    """Return an operation; operands that may change places are in one order."""
    return (name, *(sorted(operands, key=repr) if name in _COMMUTATIVE else operands))


def compared(direction: str, lhs: Expression, rhs: Expression) -> Expression:
    """Return a comparison that is not of the total order of floats."""
    return call(f"compare {direction}", lhs, rhs)


def expressions(module: StableHlo, block: Block) -> list[Expression | None]:
    """Return each result of a block; None for what has regions, or reads more than constants."""
    found: dict[int, Expression | None] = {
        number: param(place) for place, number in enumerate(block.params)
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
    """Return how a region of (first.., second..) combines each pair.

    `add`, `mul`, `max`, `min`, `and`, `or`, `xor`, `sub` (first minus second), `replace` (the
    second), `keep` (the first); None for anything else.
    """
    count = len(block.results)
    kinds: list[str | None] = []
    for place, made in enumerate(expressions(module, block)):
        first, second = param(place), param(place + count)
        known: dict[Expression, str] = {second: "replace", first: "keep"}
        known[call("subtract", first, second)] = "sub"
        for name, kind in _KINDS.items():
            known[call(name, first, second)] = kind
        kinds.append(None if made is None else known.get(made))
    return kinds
