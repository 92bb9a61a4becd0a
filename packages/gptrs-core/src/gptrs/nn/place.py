"""Where the tokens of a step stand in their texts, which may begin at different places."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor, tensor
from gptrs.errors import UsageError


class Place(NamedTuple):
    """What a compiled step is told about its tokens [B, T]; a tree that `jit` takes.

    `position` (si64[]) is the index of the first of them: how many came before, padding included.
    Texts of unequal length are padded at the left, and `starts` (si64[B]) counts the padding in
    each row; None stands for no padding in any, and has programs of its own, without a mask.
    """

    position: Tensor
    starts: Tensor | None = None

    @classmethod
    def at(cls, position: int, starts: np.ndarray | None = None) -> Place:
        """The place of tokens that follow `position` others; `starts` as `checked_starts` has it.

        UsageError for `starts` of another kind.
        """
        padding = checked_starts(starts)
        return cls(tensor(np.int64(position)), None if padding is None else tensor(padding))


def checked_starts(starts: np.ndarray | None, batch: int | None = None) -> np.ndarray | None:
    """`starts` as si64 [B], None where no row has padding.

    UsageError unless it is a list of integers >= 0, one for each of `batch` rows where that is
    given.
    """
    if starts is None:
        return None
    given = np.asarray(starts)
    wanted = "[B]" if batch is None else f"[{batch}]"
    if given.dtype.kind not in "iu" or given.ndim != 1 or batch not in (None, given.size):
        raise UsageError(
            f"`starts` needs integers {wanted}, the padding of each row,"
            f" got {given.dtype}{list(given.shape)}"
        )
    if (given < 0).any():
        raise UsageError(f"`starts` counts padding, got {given.min()}")
    return given.astype(np.int64) if given.any() else None


def positions(place: Place, count: int) -> Tensor:
    """The positions of `count` tokens in their texts: si64 [T], or [B, T] where rows are padded.

    The first token of each text is at 0, and so is the padding before it.
    """
    index = F.add(F.arange(count), place.position)
    if place.starts is None:
        return index
    batch = place.starts.shape[0]
    return F.maximum(F.sub(index, F.reshape(place.starts, (batch, 1))), 0)
