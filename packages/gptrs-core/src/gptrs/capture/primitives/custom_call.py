"""The primitives for functions under a name, and for kernels of a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gptrs.capture.region import Body, as_function, capture_body
from gptrs.capture.tensor import Tensor, apply_many
from gptrs.errors import UsageError
from gptrs.ir.attributes import FunctionName
from gptrs.ir.dictionary import Dictionary, DictionaryValue
from gptrs.ir.ops import custom_call as ops
from gptrs.ir.tensor_type import TensorType


def composite(
    kind: str,
    decomposition: Body,
    operands: Mapping[str, Tensor],
    attrs: Mapping[str, DictionaryValue] | None = None,
) -> tuple[Tensor, ...]:
    """Compute `decomposition` of the operands, in their order; a backend may claim the `kind`."""
    given = [operand.type for operand in operands.values()]
    captured = capture_body(kind, decomposition, given)
    if captured.outside:
        raise UsageError(
            f"the decomposition of `{kind}` reads a `{captured.outside[0].type}` from outside",
            hint="make it an operand of the composite, so that a kernel gets it too",
        )
    made = as_function(captured)
    names, values = " ".join(operands), Dictionary.of(attrs)
    op = ops.Composite(kind, FunctionName(made.name), names, values)
    return apply_many(op, *operands.values(), functions=[*captured.functions, made])


def custom_call(
    target: str,
    results: Sequence[TensorType],
    *operands: Tensor,
    attrs: Mapping[str, DictionaryValue] | None = None,
) -> tuple[Tensor, ...]:
    """Call the kernel `target`, which only the backend that provides it can run."""
    return apply_many(ops.CustomCall(target, tuple(results), Dictionary.of(attrs)), *operands)
