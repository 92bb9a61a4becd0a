"""Several greedy generation steps as one loop of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple

import numpy as np
from typing_extensions import TypeVar

from gptrs import functionals as F
from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.nn.page_buffers import LayerPools
from gptrs.nn.ragged_step import PAGE_SIZE, RaggedStep

Array = TypeVar("Array", np.ndarray, Tensor, default=np.ndarray)
NextLogits = Callable[[RaggedStep[Tensor], list[LayerPools]], tuple[Tensor, list[LayerPools]]]
"""Runs one step: the logits [B, V] after each text, and the pools with its tokens."""


class GreedySteps(NamedTuple, Generic[Array]):
    """Up to K steps of B texts, with one new token per text and step.

    Each token after the first has the largest logit. `rows` is the first step, with a row for each
    text; its `positions`, `lengths` and `slots` cover all steps, [K, B]. A text without room for a
    step writes to page 0.
    """

    rows: RaggedStep[Array]
    ends: Array
    """Si64 [B, E], the tokens that end each text; unused entries are -1."""
    limit: Array
    """Si64 [], how many steps to run, K at most. No step runs once all texts have ended."""


STEPS_AXES: Final = GreedySteps[Any](
    RaggedStep._make([("B",), (None, "B"), ("B+1",), (None, "B"), ("B", "W"), (None, "B")]),
    ends=("B", None),
    limit=(),
)
"""Names of the axes of `GreedySteps`."""


class Chosen(NamedTuple):
    """The tokens of K steps of B texts; 0 for steps that did not run."""

    tokens: np.ndarray
    """Si64 [K, B]."""
    logits: np.ndarray
    """F32 [K, B], the logit of each token: the largest, or NaN."""


def greedy_steps(
    step: RaggedStep, rooms: Sequence[int], ends: Sequence[frozenset[int]], count: int, most: int
) -> GreedySteps:
    """Return `count` of at most `most` steps, starting with `step`, which has one token per text.

    `rooms[b]`, at least 1, is how many steps text b has room for; its page tables cover all of
    them. `ends[b]` are the tokens that end it. Further texts of `step` are padding.
    """
    texts, rows = len(rooms), len(step.tokens)
    last = np.zeros(rows, np.int64)
    last[:texts] = np.array(rooms) - 1
    number = np.arange(most)[:, None]
    ahead = np.minimum(number, last)
    positions = step.positions + ahead
    inside = (number <= last) & (np.arange(rows) < texts)
    slots = [
        np.where(inside, _slots(table, positions), 0).astype(np.int32) for table in step.page_tables
    ]
    held = 1 << (max(1, *(len(each) for each in ends)) - 1).bit_length()
    ending = np.full((rows, held), -1, np.int64)
    for row, each in zip(ending, ends, strict=False):
        row[: len(each)] = sorted(each)
    whole = step._replace(
        positions=positions,
        lengths=(step.lengths + ahead).astype(np.int32),
        slots=tuple(slots),
    )
    return GreedySteps(whole, ending, np.array(count, np.int64))


def _slots(table: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return where the keys and values of positions [K, B] go, of texts with pages [B, W]."""
    pages = np.take_along_axis(table, positions.T // PAGE_SIZE, axis=1).T
    return pages * PAGE_SIZE + positions % PAGE_SIZE


def run_greedy_steps(
    next_logits: NextLogits, steps: GreedySteps[Tensor], pools: list[LayerPools]
) -> tuple[Tensor, Tensor, list[LayerPools]]:
    """Return the tokens and logits of `Chosen`, and the pools after the last step that ran."""
    rows, ends, limit = steps
    most, texts = rows.positions.shape[0], rows.tokens.shape[0]
    flat = [pool for pair in pools for pool in pair]
    ended = F.zeros((texts,), dtypes.i1)

    def goes_on(number: Tensor, _: Tensor, ended: Tensor, *rest: Tensor) -> Tensor:
        return F.logical_and(number < limit, F.logical_not(F.all(ended)))

    def advance(number: Tensor, tokens: Tensor, ended: Tensor, *rest: Tensor) -> list[Tensor]:
        found, largest, *flat = rest
        step = rows._replace(
            tokens=tokens,
            positions=_row(rows.positions, number),
            lengths=_row(rows.lengths, number),
            slots=tuple(_row(slots, number) for slots in rows.slots),
        )
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        logits, pairs = next_logits(step, pairs)
        chosen = F.argmax(logits, -1)  # the first of equal logits, or the first NaN
        best = F.cast(F.gather(logits, F.expand_dims(chosen, 1), 1), dtypes.f32)
        is_end = F.any(F.expand_dims(chosen, 1) == ends, 1)
        return [
            number + 1,
            chosen,
            F.logical_or(ended, is_end),
            _with_row(found, chosen, number),
            _with_row(largest, F.reshape(best, (texts,)), number),
            *(pool for pair in pairs for pool in pair),
        ]

    found = F.zeros((most, texts), dtypes.si64)
    largest = F.zeros((most, texts), dtypes.f32)
    first = F.zeros((), dtypes.si64)
    state = primitives.while_(goes_on, advance, first, rows.tokens, ended, found, largest, *flat)
    _, _, _, found, largest, *flat = state
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    return found, largest, pairs


def _row(table: Tensor, number: Tensor) -> Tensor:
    """Return row `number` of a table [K, N], [N]."""
    start = F.stack([number, number * 0])
    row = primitives.dynamic_slice(table, start, (1, table.shape[1]))
    return F.reshape(row, (table.shape[1],))


def _with_row(table: Tensor, row: Tensor, number: Tensor) -> Tensor:
    start = F.stack([number, number * 0])
    return primitives.dynamic_update_slice(table, F.expand_dims(row, 0), start)
