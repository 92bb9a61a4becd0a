"""The primitive that calls a kernel of a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gptrs.capture.region import Body, as_function, capture_body
from gptrs.capture.tensor import Tensor, apply_many
from gptrs.errors import UsageError
from gptrs.ir.attributes import FunctionName
from gptrs.ir.dictionary import Dictionary, DictionaryValue
from gptrs.ir.ops import custom_call as ops
from gptrs.ir.tensor_type import TensorType


def custom_call(
    target: str,
    results: Sequence[TensorType],
    *operands: Tensor,
    attrs: Mapping[str, DictionaryValue] | None = None,
    decomposition: Body | None = None,
) -> tuple[Tensor, ...]:
    """Call the kernel `target`, or `decomposition` on a backend that does not know it."""
    values = Dictionary.of(attrs)
    if decomposition is None:
        return apply_many(ops.CustomCall(target, tuple(results), values), *operands)
    captured = capture_body("decomposition", decomposition, [operand.type for operand in operands])
    if captured.outside:
        raise UsageError(
            f"the decomposition of `{target}` reads a `{captured.outside[0].type}` from outside",
            hint="make it an operand of the custom call, so that a kernel gets it too",
        )
    made = as_function(captured)
    op = ops.CustomCall(target, tuple(results), values, FunctionName(made.name))
    return apply_many(op, *operands, functions=[*captured.functions, made])
