"""Calls of functions, which are inlined, and custom calls known by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gptrs.api import UsageError
from gptrs_backend_jax.stablehlo.conversion import (
    Known,
    Node,
    Value,
    as_tensor,
    converter_of,
    converts,
)
from gptrs_backend_jax.stablehlo.ops.algebra import lapack
from gptrs_backend_jax.stablehlo.ops.sorting import approximate_top_k
from gptrs_backend_jax.stablehlo.reading.module import shown

SHAPE_ASSERTION: Final = "shape_assertion"
MARKS: Final = ("Sharding", "annotate_device_placement", "LayoutConstraint")
"""Targets of custom calls that only annotate the sharding of a value."""
_APPROXIMATE: Final = "ApproxTopK"
_KNOWN: Final = {"mhlo.erf": "chlo.erf", "mhlo.topk": "chlo.top_k"}
"""Targets for operations of CHLO, in artifacts of JAX before 0.10."""


@converts("func.call", "call")
def call(node: Node, *operands: Value, callee: str) -> list[Value]:
    """Inline a function, and return its results."""
    return node.conversion.call(callee, operands)


@converts("sdy.sharding_constraint")
def sharding_constraint(x: Value) -> Value:
    """Return the operand: a sharding changes no value."""
    return x


@converts("composite")
def composite(
    node: Node, *operands: Value, name: str, decomposition: str
) -> Value | Sequence[Value]:
    """Convert a composite that is known by name; else inline its decomposition."""
    known = converter_of(name)
    return known(node, operands) if known else node.conversion.call(decomposition, operands)


@converts("custom_call")
def custom_call(node: Node, *operands: Value) -> Value | Sequence[Value]:
    """Return the operand of an annotation, check an assertion, or convert a call known by name."""
    target = node.text("call_target_name")
    if target in MARKS:
        return operands[0]
    if target == SHAPE_ASSERTION:
        _require(node, *operands)
        return []
    if target == _APPROXIMATE:
        return approximate_top_k(node, as_tensor(operands[0]), as_tensor(operands[1]))
    made = lapack(node, target, [as_tensor(each) for each in operands])
    if made is not None:
        return made
    known = converter_of(_KNOWN.get(target, ""))
    details = node.operation.attributes.get("mhlo.attributes")
    if known is None or (isinstance(details, dict) and details.get("largest") is False):
        node.refuse(f"of `{shown(target)}` is a kernel of XLA or of another library")
    return known(node, operands)


def _require(node: Node, holds: Value, *sizes: Value) -> None:
    """Check an assertion about sizes while the program is captured."""
    if not isinstance(holds, Known) or any(not isinstance(each, Known) for each in sizes):
        node.refuse("of `shape_assertion` depends on values that are computed from data")
    if not bool(holds.array[()]):
        numbers = [each.integers()[0] for each in sizes if isinstance(each, Known)]
        message = node.text("error_message", "sizes do not fit")
        for index, number in enumerate(numbers):
            message = message.replace(f"{{{index}}}", str(number))
        raise UsageError(ascii(message.splitlines()[0])[1:-1][:400])
