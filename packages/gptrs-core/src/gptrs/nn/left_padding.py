"""Check of `left_padding`, the number of padding tokens before each text of a batch."""

from __future__ import annotations

import numpy as np

from gptrs.errors import UsageError


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
