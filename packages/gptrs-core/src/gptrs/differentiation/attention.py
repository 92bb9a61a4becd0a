"""The derivative rule of attention: block by block of queries, so that no [T, S] is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from gptrs.capture import primitives as p
from gptrs.capture.region import capture_body
from gptrs.capture.tensor import Tensor
from gptrs.differentiation.composites import OF_FUNCTIONAL, body_of
from gptrs.differentiation.reverse import Linearized
from gptrs.differentiation.rules import Cotangents, Rule, Step, filled, total, zeros
from gptrs.functionals.activation import safe_softmax
from gptrs.functionals.attention import attention_by
from gptrs.functionals.dispatch.composites import CompositeCalls
from gptrs.ir.ops.custom_call import Composite

MOST_SCORES = 1 << 20
"""Scores of a block of queries, which its derivative computes again: 4 MiB of f32."""
_LEAST_ROWS, _MOST_BLOCKS = 64, 8
"""Queries in a block at least, and blocks at most: each adds some 25 instructions."""


def _attention(step: Step[Composite], cotangents: Cotangents) -> Cotangents:
    """Differentiate block by block of queries, without the keys that causality hides from all.

    The probabilities are computed again, as in FlashAttention (Dao et al. 2022): they are read once
    more, but need not be kept. A learned bias is differentiated at once.
    """
    op = step.op
    named: dict[str, Tensor] = dict(zip(op.operand_names_given, step.operands, strict=True))
    given: dict[str, Any] = {**named, **dict(op.attrs.items)}
    wanted = dict(zip(op.operand_names_given, step.wanted, strict=True))
    blocks = [] if wanted.get("mask") else _blocks_of(given)
    if blocks and given.keys() <= _PLAIN:
        plain = {**given, "cotangent": cotangents[0]}
        by_name = dict(
            zip(named, cast("Any", GRADIENT.call(gradient, None, (), plain)), strict=True)
        )
        return [by_name[name] if wanted[name] else None for name in wanted]
    if len(blocks) < 2:
        body = body_of(op, step.functions)
        return Linearized(body, step.functions, step.operands, step.wanted).pull(cotangents)
    (g,) = cotangents
    assert g is not None
    found = _by_blocks(given, g, blocks)
    return [found.get(name) if wanted[name] else None for name in wanted]


def gradient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cotangent: Tensor,
    scale: float | None = None,
    causal: bool = False,
) -> list[Tensor]:
    """Return the cotangents of queries, keys and values: the body of a composite."""
    given = {"query": query, "key": key, "value": value, "scale": scale, "causal": causal}
    return list(_by_blocks(given, cotangent, _blocks_of(given)).values())


GRADIENT = CompositeCalls("attention_gradient.v1", gradient)
"""Captured as a composite, so that backends may have a kernel for it."""
_PLAIN = {"query", "key", "value", "scale", "causal"}


def _by_blocks(given: Mapping[str, Any], g: Tensor, blocks: Sequence[_Block]) -> dict[str, Tensor]:
    """Return the cotangents of queries, keys and values by name."""
    parts = [_of_block(given, g, block) for block in blocks]
    first, *others = [part[0] for part in parts]
    found = {"query": p.concat([first, *others], 2) if others else first}
    for at, name in ((1, "key"), (2, "value")):
        pairs = zip(parts, blocks, strict=True)
        found[name] = total([_among_keys(part[at], block, given[name]) for part, block in pairs])
    return found


class _Block(NamedTuple):
    """Queries from `first` to `last`, and the keys that they may see, from `begin` to `end`."""

    first: int
    last: int
    begin: int
    end: int


def _blocks_of(given: Mapping[str, Any]) -> list[_Block]:
    """Return the blocks of queries, none for sizes that are not numbers."""
    (batch, heads, queries, _), keys = given["query"].shape, given["key"].shape[2]
    if not all(type(size) is int for size in (batch, heads, queries, keys)):
        return []
    rows = MOST_SCORES // max(1, batch * heads * keys) // _LEAST_ROWS * _LEAST_ROWS
    rows = max(rows, _LEAST_ROWS, -(-queries // _MOST_BLOCKS))
    offset = given.get("offset")
    ahead, window = keys - queries if offset is None else offset, given.get("window")
    found: list[_Block] = []
    for first in range(0, queries, rows):
        last, begin, end = min(first + rows, queries), 0, keys
        if given.get("causal") and isinstance(ahead, int):
            end = min(keys, max(1, ahead + last))
            begin = 0 if window is None else min(end - 1, max(0, ahead + first + 1 - window))
        found.append(_Block(first, last, begin, end))
    return found


def _of_block(given: Mapping[str, Any], g: Tensor, block: _Block) -> list[Tensor]:
    """Return the cotangents of the queries of a block, and of its keys and values."""
    first, last, begin, end = block
    own = dict(given)
    own["query"] = _sliced(given["query"], 2, first, last)
    for name in ("key", "value"):
        own[name] = _sliced(given[name], 2, begin, end)
    mask = given.get("mask")
    if mask is not None:
        for axis, low, high in ((-2, first, last), (-1, begin, end)):
            if mask.rank >= -axis and mask.shape[axis] != 1:
                mask = _sliced(mask, mask.rank + axis, low, high)
        own["mask"] = mask
    if given.get("causal"):
        offset = given.get("offset")
        ahead = given["key"].shape[2] - given["query"].shape[2] if offset is None else offset
        shift = first - begin
        own["offset"] = (
            ahead + shift if isinstance(ahead, int) else p.add(ahead, filled(shift, ahead))
        )
    names = ("query", "key", "value")
    inputs = [own[name] for name in names]

    def body(*tensors: Tensor) -> Sequence[Tensor]:
        inner: dict[str, Any] = {**own, **dict(zip(names, tensors, strict=True))}
        return [attention_by(safe_softmax, **inner)]

    captured = capture_body("attention", body, [x.type for x in inputs])
    outside = [Tensor(each) for each in captured.outside]
    region, functions = captured.region(captured.outside), {f.name: f for f in captured.functions}
    wanted = [True] * len(inputs) + [False] * len(outside)
    pulled = Linearized(region, functions, [*inputs, *outside], wanted).pull(
        [_sliced(g, 2, first, last)]
    )
    return [zeros(x) if each is None else each for x, each in zip(inputs, pulled, strict=False)]


def _sliced(x: Tensor, axis: int, first: int, last: int) -> Tensor:
    if first == 0 and last == x.shape[axis]:
        return x
    starts, sizes = [0] * x.rank, list(x.shape)
    starts[axis], sizes[axis] = first, last - first
    return p.slice(x, starts, sizes)


def _among_keys(part: Tensor, block: _Block, whole: Tensor) -> Tensor:
    """Return the cotangent of some keys among zeros for the others."""
    low, high = [0] * 4, [0] * 4
    low[2], high[2] = block.begin, whole.shape[2] - block.end
    return p.pad(part, low, high) if any(low) or any(high) else part


OF_FUNCTIONAL["attention"] = Rule(_attention)
