"""Positions of the tokens of a step in their texts, which may be padded at the left."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor, tensor
from gptrs.errors import UsageError


class CachePosition(NamedTuple):
    """Where the tokens [B, T] of a compiled step stand; a pytree for `jit`.

    `offset` (si64[]) is the index of the first of them: how many came before, padding included.
    Texts of unequal length are padded at the left, and `left_padding` (si64[B]) counts the padding
    of each row. None means no padding at all, and compiles to programs without a mask.
    """

    offset: Tensor
    left_padding: Tensor | None = None

    @classmethod
    def at(cls, offset: int, left_padding: np.ndarray | None = None) -> CachePosition:
        """Return the position of tokens that follow `offset` others.

        UsageError unless `left_padding` is as `checked_left_padding` requires.
        """
        padding = checked_left_padding(left_padding)
        return cls(tensor(np.int64(offset)), None if padding is None else tensor(padding))


def checked_left_padding(
    left_padding: np.ndarray | None, batch: int | None = None
) -> np.ndarray | None:
    """Return `left_padding` as si64 [B], None where no row has padding.

    UsageError unless it is a list of integers >= 0, one for each of `batch` rows where that is
    given.
    """
    if left_padding is None:
        return None
    given = np.asarray(left_padding)
    wanted = "[B]" if batch is None else f"[{batch}]"
    if given.dtype.kind not in "iu" or given.ndim != 1 or batch not in (None, given.size):
        raise UsageError(
            f"`left_padding` needs integers {wanted}, the padding of each row,"
            f" got {given.dtype}{list(given.shape)}"
        )
    if (given < 0).any():
        raise UsageError(f"`left_padding` counts padding, got {given.min()}")
    return given.astype(np.int64) if given.any() else None


def positions(position: CachePosition, count: int) -> Tensor:
    """Return the positions of `count` tokens: si64 [T], or [B, T] where rows are padded.

    The first token of each text is at 0, and so is the padding before it.
    """
    index = F.add(F.arange(count), position.offset)  # (T,)
    if position.left_padding is None:
        return index
    batch = position.left_padding.shape[0]
    return F.maximum(F.sub(index, F.reshape(position.left_padding, (batch, 1))), 0)  # (B, T)
