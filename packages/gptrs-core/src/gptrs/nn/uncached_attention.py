"""Whole texts of one length as a step without a cache: what other formats get of a language model.

A step over pages has tables that only gptrs fills; without them, attention is that of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.nn.attention import LayerCache, attention_with_sinks
from gptrs.nn.cache_spec import CacheSpec
from gptrs.nn.ragged_step import RaggedStep
from gptrs.nn.text_states import Advance, whole_states


def whole_texts(
    tokens: Tensor, specs: Sequence[CacheSpec]
) -> tuple[RaggedStep[Tensor], list[LayerCache]]:
    """Return the step that reads texts si64 [B, T] from their start, and what attends in it."""
    batch, length = tokens.shape
    rows = batch * length
    positions = F.broadcast_to(F.reshape(F.arange(length), (1, length)), (batch, length))
    step = RaggedStep(
        tokens=F.reshape(tokens, (rows,)),
        positions=F.reshape(positions, (rows,)),
        row_starts=F.cast(F.arange(batch + 1) * F.sum(F.ones((length,), dtypes.si64)), dtypes.si32),
        lengths=F.cast(F.sum(F.ones((batch, length), dtypes.si64), 1), dtypes.si32),
        page_tables=(),
        slots=(),
    )
    return step, [_WholeTexts(step, spec.window, batch, length) for spec in specs]


class _WholeTexts(LayerCache):
    """Attention of a batch of texts to themselves; nothing is kept."""

    def __init__(
        self, step: RaggedStep[Tensor], window: int | None, batch: int, length: int
    ) -> None:
        self._step = step
        self._window = window
        self._sizes = batch, length

    @override
    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend to the tokens before each one in its text, [N, H, D] -> the same."""
        rows = [
            F.transpose(F.reshape(x, (*self._sizes, *x.shape[1:])), (0, 2, 1, 3))
            for x in (query, key, value)
        ]
        window = self._window
        if sinks is None:
            mixed = F.attention(*rows, scale=scale, causal=True, window=window, softcap=softcap)
        else:
            mixed = attention_with_sinks(
                rows, sinks, _causal(self._sizes[1], window), scale=scale, softcap=softcap
            )
        heads_last = F.transpose(mixed, (0, 2, 1, 3))
        return F.reshape(heads_last, (query.shape[0], query.shape[1], mixed.shape[3]))

    @override
    def recent(self, x: Tensor, count: int) -> Tensor:
        """Return the last `count` states of each text up to each token, [N, C] -> [N, count, C]."""
        batch, length = self._sizes
        width = x.shape[1]
        texts = F.pad(F.reshape(x, (batch, length, width)), [(0, 0), (count - 1, 0), (0, 0)])
        places = F.reshape(F.arange(length), (length, 1)) + F.reshape(F.arange(count), (1, count))
        found = F.take(texts, F.reshape(places, (length * count,)), axis=1)
        return F.reshape(found, (batch * length, count, width))

    @override
    def recurrent(self, advance: Advance, rows: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """Return the vector of each token; the state of each text starts at 0."""
        return whole_states(advance, rows, shape, self._step.positions)


def _causal(length: int, window: int | None) -> Tensor:
    """Return which of T keys each of T queries sees, i1 [T, T]."""
    to = F.arange(length)
    of = F.reshape(to, (length, 1))
    visible = to <= of
    return visible if window is None else F.logical_and(visible, to > of - window)
