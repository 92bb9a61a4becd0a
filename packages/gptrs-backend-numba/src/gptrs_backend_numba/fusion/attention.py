"""Fusions of attention, with and without a mask, an offset, and shared kv heads.

Both of the functional and of programs that have a plain softmax in its place, as files have: there
a query that sees nothing gives NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from msgspec.structs import replace

from gptrs.capture.tensor import Tensor
from gptrs.functionals.activation import softmax
from gptrs.functionals.attention import attention, attention_by
from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.creation import Constant, Iota
from gptrs.ir.ops.custom_call import CustomCall, Declined
from gptrs.ir.ops.elementwise import Add, Compare, Select
from gptrs.ir.ops.layout import BroadcastTo
from gptrs.ir.program import Value
from gptrs.optimizer.fusion import FoundCall
from gptrs.optimizer.pass_base import Pass, RewritePass
from gptrs.optimizer.rewrite.pattern import Emitter, Match, Operand, OpPattern, calls, rewrite
from gptrs_backend_numba.fusion.claims import claim_softmax
from gptrs_backend_numba.fusion.needed_patterns import Need, fusion, tensors
from gptrs_backend_numba.lowering.attention import attention_target
from gptrs_backend_numba.lowering.matmul import FLOATS


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    scale: float = 1.0,
    causal: bool = False,
    offset: Tensor | None = None,
) -> Tensor:
    """Return `attention`, but NaN for queries whose every score is -inf."""
    return attention_by(softmax, query, key, value, mask, scale, causal, offset=offset)


def _replaced(call: FoundCall, guard: str) -> CustomCall | None:
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
        guard=guard,
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


_KINDS: tuple[tuple[tuple[type[Op], ...], tuple[str, str], Mapping[str, object]], ...] = (
    ((Select, Compare), ("4", "6"), {"causal": True, **tensors(offset="si64[]")}),
    ((Select,), ("4", "6"), {"causal": True}),
    # The mask of a symbolic size is no constant.
    ((Select, Compare), ("?0", "?0"), {"causal": True}),
    ((Select,), ("4", "6"), tensors(mask="i1[4, 6]")),
    ((), ("4", "6"), {}),
)
"""Kinds of calls: their ops, how many queries and keys the examples have, and what these see.

Attention that computes its mask comes first: to the others it looks like one that is given.
"""


def _fusions(
    function: Callable[..., Tensor], guard: str, heads: tuple[int, ...], normal: Need
) -> Iterator[Pass]:
    """Yield passes for all kinds, of examples with `heads` of queries on three of keys."""
    for ops, (queries, keys), seen in _KINDS:
        for count in heads:
            calls = _calls(f"f32[2, {count}, {queries}, 5]", keys, **seen)
            replaced = partial(_replaced, guard=guard)
            yield fusion(function, calls, (DotGeneral, normal, *ops), replaced, claim_softmax)


# `attention(.., mask=causal_mask(..))`: the claim of a composite sees types, not what makes a mask.

_call, _compare, _add, _spread = calls(CustomCall), calls(Compare), calls(Add), calls(BroadcastTo)
_column, _row = calls(Iota), calls(Iota)
_query, _key, _value, _offset = map(Operand, ("query", "key", "value", "offset"))


def _masked(last: OpPattern) -> OpPattern:
    """Return the pattern of attention to the keys up to `last`, the one of each query."""
    return _call(_query, _key, _value, _compare(_column(axis=1), last, direction="le"))


@rewrite(_masked(_row(axis=0)))
def causal_mask_from_0(m: Match, emit: Emitter) -> Value | Declined:
    """attention(q, k, v, mask=iota_1 <= iota_0) -> attention(q, k, v, causal, offset=0)"""
    return _causal(m, emit, None)


@rewrite(_masked(_add(_row(axis=0), _spread(_offset))))
def causal_mask_from_offset(m: Match, emit: Emitter) -> Value | Declined:
    """attention(q, k, v, mask=iota_1 <= iota_0 + n) -> attention(q, k, v, causal, offset=n)"""
    return _causal(m, emit, m[_offset])


def _causal(m: Match, emit: Emitter, offset: Value | None) -> Value | Declined:
    """Return the call without its mask: the kernel does not read what `causal` hides."""
    call, query, key = m[_call], m[_query].type, m[_key].type
    if call.target != attention_target(query.dtype) or call.attrs["causal"]:
        return Declined("it is another kernel")
    queries, keys = query.shape[2], key.shape[2]
    if m[_column].shape != (queries, keys) or (offset and offset.type.shape):
        return Declined("a row of the mask is for several queries")
    operands = [m[_query], m[_key], m[_value]]
    if offset or queries != keys:
        zero = Constant(Literal.full(0, m[_row].dtype))
        operands.append(offset or emit(zero))
    made = dict(call.attrs.items) | {"mask": False, "causal": True, "offset": len(operands) > 3}
    return emit(replace(call, attrs=Dictionary.of(made)), *operands)


FUSE_ATTENTION: tuple[Pass, ...] = (
    *_fusions(attention, "blind", (3, 6), "safe_softmax"),
    # Files repeat keys for the heads that share them.
    *_fusions(plain_attention, "none", (3,), "softmax"),
    RewritePass("numba-fuse-causal-mask", (causal_mask_from_0, causal_mask_from_offset)),
)
