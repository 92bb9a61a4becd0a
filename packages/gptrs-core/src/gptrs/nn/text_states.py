"""States of texts beside their pages: for layers that read a text token by token, as Mamba does.

A page has the state after the last position that was written in it. So texts that begin with the
same whole pages begin with the state after them; within a page they cannot part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gptrs import functionals as F
from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.nn.page_buffers import LayerPools
from gptrs.nn.ragged_step import PAGE_SIZE, RaggedStep
from gptrs.nn.recent_rows import row_texts

Advance = Callable[..., tuple[Tensor, Tensor]]
"""`(state, *rows) -> (next state, vector)`, for one token."""


def kept_states(
    pools: LayerPools,
    advance: Advance,
    rows: Sequence[Tensor],
    shape: Sequence[int],
    step: RaggedStep[Tensor],
    group: int,
) -> tuple[Tensor, LayerPools]:
    """Return the vectors of all rows, and pools with the new states; see `LayerCache.recurrent`.

    The halves of a state lie in the two pools, [P, 1, 1, D / 2].
    """
    count = step.tokens.shape[0]
    texts = row_texts(step)
    is_first = F.equal(F.arange(count, dtype=dtypes.si32), F.take(step.row_starts, texts))
    begun = step.positions > 0
    last = F.where(begun, step.positions - 1, 0) // PAGE_SIZE
    table = F.take(step.page_tables[group], texts)  # (N, W)
    pages = F.squeeze(F.gather(table, F.expand_dims(F.cast(last, dtypes.si32), 1), axis=1), 1)

    def held(page: Tensor, is_begun: Tensor) -> Tensor:
        halves = [F.reshape(primitives.take(pool, page), (pool.shape[3],)) for pool in pools]
        whole = F.reshape(F.concat(halves, axis=0), tuple(shape))
        return F.where(is_begun, whole, 0.0)

    def body(
        state: Tensor, first: Tensor, is_begun: Tensor, page: Tensor, *row: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        after, told = advance(F.where(first, held(page, is_begun), state), *row)
        return after, told, F.reshape(after, (after.size,))

    nothing = F.zeros(tuple(shape), dtypes.f32)
    _, (found, states) = primitives.scan(body, [nothing], [is_first, begun, pages, *rows])
    places = step.slots[group] // PAGE_SIZE
    first, second = (
        F.update_pages(pool, F.expand_dims(half, 1), places)
        for pool, half in zip(pools, F.split(states, 2), strict=True)
    )
    return found, (first, second)


def whole_states(
    advance: Advance, rows: Sequence[Tensor], shape: Sequence[int], positions: Tensor
) -> Tensor:
    """Return the vectors of rows of whole texts, and keep nothing."""

    def body(state: Tensor, first: Tensor, *row: Tensor) -> tuple[Tensor, Tensor]:
        return advance(F.where(first, 0.0, state), *row)

    nothing = F.zeros(tuple(shape), dtypes.f32)
    _, (found,) = primitives.scan(body, [nothing], [F.equal(positions, 0), *rows])
    return found
