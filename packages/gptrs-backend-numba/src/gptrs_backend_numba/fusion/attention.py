"""Fusions of attention, with and without a mask, an offset, and shared kv heads."""

from __future__ import annotations

from gptrs.functionals.attention import attention
from gptrs.ir import dtypes
from gptrs.ir.dictionary import Dictionary
from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import Compare, Div, Exp, Select
from gptrs.ir.ops.reduction import Reduce
from gptrs.optimizer.fusion import FoundCall
from gptrs.optimizer.pass_base import Pass
from gptrs_backend_numba.fusion.needed_patterns import fusion, tensors
from gptrs_backend_numba.lowering.attention import attention_target
from gptrs_backend_numba.lowering.matmul import FLOATS


def _attention(call: FoundCall) -> CustomCall | None:
    operands = call.operands
    query, key, value = (operands[name].type for name in ("query", "key", "value"))
    if query.dtype not in FLOATS or 0 in (*query.shape, *key.shape, *value.shape):
        return None
    if "offset" in operands and operands["offset"].type.dtype is not dtypes.si64:
        return None
    scale = call.attributes["scale"]
    assert isinstance(scale, float | int)
    attrs = Dictionary.of(
        causal=bool(call.attributes.get("causal", False)),
        mask="mask" in operands,
        offset="offset" in operands,
        scale=float(scale),
    )
    return CustomCall(attention_target(query.dtype), (call.result.type,), attrs)


def _calls(query: str, keys: str, **seen: object) -> list[dict[str, object]]:
    """Return example calls that differ in their scale, which is read off a program.

    For 1 there is none to be seen, as in programs that scale queries and keys themselves.
    """
    types = tensors(query=query, key=f"f32[2, 3, {keys}, 5]", value=f"f32[2, 3, {keys}, 7]")
    return [{**types, **seen, "scale": scale} for scale in (0.25, 0.75, 1.0)]


def _fusions(
    needs: tuple[type[Op], ...], lengths: tuple[str, str] = ("4", "6"), /, **seen: object
) -> tuple[Pass, ...]:
    """Return one pass for queries with kv heads of their own, one for those that share them.

    `lengths` are those of the queries and of the keys in the examples.
    """
    queries, keys = lengths
    table = (DotGeneral, Exp, Reduce, Div, *needs)
    return tuple(
        fusion(attention, _calls(f"f32[2, {heads}, {queries}, 5]", keys, **seen), table, _attention)
        for heads in (3, 6)
    )


FUSE_ATTENTION: tuple[Pass, ...] = (
    *_fusions((Select, Compare), causal=True, **tensors(offset="si64[]")),
    *_fusions((Select,), causal=True),
    # The mask of a symbolic size is no constant.
    *_fusions((Select, Compare), ("?0", "?0"), causal=True),
    *_fusions((Select,), **tensors(mask="i1[4, 6]")),
    *_fusions(()),
)
"""Attention that computes its mask comes first: to the others it looks like one that is given."""
