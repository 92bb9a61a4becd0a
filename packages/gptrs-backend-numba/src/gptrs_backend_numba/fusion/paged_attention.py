"""Fusions of `paged_attention` and `update_pages`, of any sizes, symbolic ones too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gptrs.functionals.paged_attention import paged_attention, update_pages
from gptrs.ir import dtypes
from gptrs.ir.dictionary import Dictionary
from gptrs.ir.ops.control_flow import Scan
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import (
    Add,
    Cast,
    Clamp,
    Compare,
    Div,
    Exp,
    Mul,
    RoundNearestEven,
    Select,
    Tanh,
)
from gptrs.ir.ops.indexing import ScatterReduce, Take
from gptrs.ir.ops.layout import BroadcastTo, Concat, Reshape, Transpose
from gptrs.ir.program import Region, Value
from gptrs.optimizer.evaluation import definitions
from gptrs.optimizer.fusion import FoundCall
from gptrs.optimizer.pass_base import Pass
from gptrs.optimizer.rewrite.template import Definer, Made
from gptrs_backend_numba.fusion.needed_patterns import GatedFusion
from gptrs_backend_numba.fusion.read_calls import ReadCall, ReadPattern, number_of
from gptrs_backend_numba.lowering.matmul import FLOATS
from gptrs_backend_numba.lowering.paged_attention import (
    PAGED_ATTENTION,
    UPDATE_PAGES,
    fits_attention,
    fits_update,
)

_ROUNDING: tuple[tuple[type, int], ...] = (
    (Reshape, 0), (Transpose, 0), (Concat, 0), (Cast, 0), (Select, 1), (Clamp, 0),
    (RoundNearestEven, 0), (Div, 0),
)  # fmt: skip
"""From rows that are written to a pool of si8 back to what they were: ops, and their operands."""


def _read_attention(made: Made, definition: Definer) -> ReadCall | None:
    """Read the loop over texts: what it carries besides its result, and what it scans."""
    if not isinstance(made.op, Scan) or made.op.carry_count < 5:
        return None
    _, row_starts, key_pool, queries, *others = made.operands[: made.op.carry_count]
    table, lengths = made.operands[-2:]
    pages = key_pool.type.shape[:3]
    value_pool = next((x for x in others if x.type.rank == 4 and x.type.shape[:3] == pages), None)
    if value_pool is None:
        return None
    scaled = _behind(queries, Reshape, definition)
    if scaled is None:
        return None
    query, scale = _scaled(scaled, definition)
    if made.results[0].type.dtype is not query.type.dtype:
        query = _behind(query, Cast, definition)
    if query is None:
        return None
    operands = {
        "query": query,
        "key_pool": key_pool,
        "value_pool": value_pool,
        "page_table": table,
        "row_starts": row_starts,
        "lengths": lengths,
    }
    sinks = _sinks(others, query.type.shape[1:2], definition)
    if sinks is not None:
        operands["sinks"] = sinks
    return ReadCall(operands, {"scale": scale, **_settings(made.regions[0])})


def _sinks(carried: Sequence[Value], heads: Sequence[int], definition: Definer) -> Value | None:
    """Return the scores of heads; they may have been repeated for each row before the loop."""
    for value in carried:
        source: Value | None = value
        while source is not None and source.type.shape != heads:
            source = _behind(source, BroadcastTo, definition) or _behind(
                source, Reshape, definition
            )
        if source is not None:
            return source
    return None


def _behind(value: Value, op: type, definition: Definer) -> Value | None:
    """Return the operand of the instruction that gives `value`; None unless it applies `op`."""
    made = definition(value)
    return made.operands[0] if made is not None and isinstance(made.op, op) else None


def _scaled(value: Value, definition: Definer) -> tuple[Value, float]:
    """Return what was multiplied by a number, and the number: 1.0 where there is none."""
    made = definition(value)
    if made is not None and isinstance(made.op, Mul):
        for one, other in (made.operands, made.operands[::-1]):
            number = number_of(other, definition)
            if number is not None:
                return one, float(number)
    return value, 1.0


def _settings(body: Region) -> Mapping[str, object]:
    """Return the window and the softcap of the loop, None where it has none."""
    defined = definitions(body)
    found: dict[str, object] = {"window": None, "softcap": None}
    for made in body.instructions:
        if isinstance(made.op, Compare) and made.op.direction == "lt":
            window = number_of(made.operands[1], defined.get)
            found["window"] = found["window"] if window is None else window
        elif isinstance(made.op, Tanh):
            divided = defined.get(made.operands[0])
            if divided is not None and isinstance(divided.op, Div):
                found["softcap"] = number_of(divided.operands[1], defined.get)
    return found


def _read_update(made: Made, definition: Definer) -> ReadCall | None:
    """Read the rows that are scattered into a pool."""
    scattered = definition(made.operands[0]) if isinstance(made.op, Reshape) else None
    if scattered is None or not isinstance(scattered.op, ScatterReduce):
        return None
    flat, index, updates = scattered.operands
    pool = _behind(flat, Reshape, definition)
    is_rounded = updates.type.dtype is dtypes.si8
    new = (_rounded_rows if is_rounded else _new_rows)(updates, definition)
    if pool is None or new is None:
        return None
    slots = _slots(index, new.type.shape[0], definition)
    return None if slots is None else ReadCall({"pool": pool, "new": new, "slots": slots}, {})


def _new_rows(updates: Value, definition: Definer) -> Value | None:
    """Return what was transposed and reshaped to rows, and cast, in whatever order."""
    awaited: list[type] = [Reshape, Transpose, Cast]
    value = updates
    while made := definition(value):
        if type(made.op) not in awaited or made.operands[0].type.dtype not in FLOATS:
            break
        awaited.remove(type(made.op))
        value = made.operands[0]
    return value if awaited in ([], [Cast]) and value.type.rank == 3 else None


def _rounded_rows(updates: Value, definition: Definer) -> Value | None:
    """Return what was rounded to the codes that come first in the rows."""
    value = updates
    for op, place in _ROUNDING:
        made = definition(value)
        if made is None or not isinstance(made.op, op):
            return None
        value = made.operands[place]
    return _behind(value, Cast, definition) or value


def _slots(index: Value, rows: int, definition: Definer) -> Value | None:
    """Return the slots behind indices of rows: what is divided, else the first vector there is."""
    pending, vector = [index], None
    while pending:
        value = pending.pop()
        made = definition(value)
        if made is not None and isinstance(made.op, Div):
            return made.operands[0]
        if vector is None and value.type.shape == (rows,):
            vector = value
        if made is not None and isinstance(made.op, Reshape | BroadcastTo | Add | Mul):
            pending.extend(made.operands)
    return vector


def _attention(call: FoundCall) -> CustomCall | None:
    if not fits_attention([bound.type for bound in call.operands.values()]):
        return None
    attrs = Dictionary.of(
        scale=_number(call, "scale"),
        window=int(_number(call, "window")),
        softcap=_number(call, "softcap"),
    )
    return CustomCall(PAGED_ATTENTION, (call.result.type,), attrs)


def _number(call: FoundCall, name: str) -> float:
    number = call.attributes[name]
    assert isinstance(number, float | int | None)
    return float(number or 0)


def _update(call: FoundCall) -> CustomCall | None:
    if not fits_update([bound.type for bound in call.operands.values()]):
        return None
    return CustomCall(UPDATE_PAGES, (call.result.type,), Dictionary())


FUSE_PAGED_ATTENTION: tuple[Pass, ...] = tuple(
    GatedFusion(
        f"numba-fuse-{function.__name__.replace('_', '-')}",
        ReadPattern(function, read),
        replacement,
        frozenset(needs),
    )
    for function, read, replacement, needs in (
        (paged_attention, _read_attention, _attention, (Scan, Take, Exp)),
        (update_pages, _read_update, _update, (ScatterReduce,)),
    )
)
