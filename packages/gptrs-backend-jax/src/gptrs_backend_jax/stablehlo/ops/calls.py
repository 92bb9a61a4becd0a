"""Calls of functions, which are written out, and of what is known by a name alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gptrs.api import UsageError
from gptrs_backend_jax.stablehlo.conversion import (
    CONVERTERS,
    KNOWING,
    Known,
    Node,
    Value,
    as_tensor,
    converts,
)
from gptrs_backend_jax.stablehlo.ops.sorting import approximate_top_k
from gptrs_backend_jax.stablehlo.reading.module import shown

SHAPE_ASSERTION: Final = "shape_assertion"
MARKS: Final = ("Sharding", "annotate_device_placement", "LayoutConstraint")
"""Targets of custom calls that say where a value lies, and change none."""
_APPROXIMATE: Final = "ApproxTopK"
_KNOWN: Final = {"mhlo.erf": "chlo.erf", "mhlo.topk": "chlo.top_k"}
"""Targets that stand for operations of CHLO, in artifacts of JAX before 0.10."""


def call(node: Node, *operands: Value) -> list[Value]:
    """Return the results of a function, written out."""
    return node.conversion.call(node.attribute("callee", str), operands)


CONVERTERS["func.call"] = CONVERTERS["call"] = call
KNOWING.update(("func.call", "call"))


def sharding_constraint(node: Node, x: Value) -> Value:
    """Return the operand: where it lies changes no value."""
    del node
    return x


CONVERTERS["sdy.sharding_constraint"] = sharding_constraint
KNOWING.add("sdy.sharding_constraint")


@converts("composite", knows=True)
def composite(node: Node, *operands: Value) -> Value | Sequence[Value]:
    """Return what is known by its name, else what the decomposition computes."""
    known = CONVERTERS.get(node.attribute("name", str))
    if known is not None:
        return known(node, *map(as_tensor, operands))
    return node.conversion.call(node.attribute("decomposition", str), operands)


@converts("custom_call", knows=True)
def custom_call(node: Node, *operands: Value) -> Value | Sequence[Value]:
    """Return the operand of a mark, check an assertion, else convert what is known by its name."""
    target = node.attribute("call_target_name", str)
    if target in MARKS:
        return operands[0]
    if target == SHAPE_ASSERTION:
        _require(node, *operands)
        return []
    if target == _APPROXIMATE:
        return approximate_top_k(node, as_tensor(operands[0]), as_tensor(operands[1]))
    known = CONVERTERS.get(_KNOWN.get(target, ""))
    details = node.operation.attributes.get("mhlo.attributes")
    if known is None or (isinstance(details, dict) and details.get("largest") is False):
        raise node.error(f"of `{shown(target)}` is a kernel of XLA or of another library")
    return known(node, *map(as_tensor, operands))


def _require(node: Node, holds: Value, *sizes: Value) -> None:
    """Check an assertion about sizes while the program is captured."""
    if not isinstance(holds, Known) or any(not isinstance(each, Known) for each in sizes):
        raise node.error("of `shape_assertion` depends on values that are computed of data")
    if not bool(holds.array[()]):
        numbers = [each.integers()[0] for each in sizes if isinstance(each, Known)]
        message = node.attribute("error_message", str, "sizes do not fit")
        for place, number in enumerate(numbers):
            message = message.replace(f"{{{place}}}", str(number))
        raise UsageError(ascii(message.splitlines()[0])[1:-1][:400])
