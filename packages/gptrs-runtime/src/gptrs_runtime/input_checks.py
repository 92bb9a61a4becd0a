"""Checks of a model's inputs: the form of images, tokens within the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.errors import UsageError


def require_images(array: np.ndarray, kind: str, channels: int) -> None:
    """Raise UsageError unless `array` holds images of floats with that many channels."""
    if array.ndim != 4 or array.dtype.kind != "f" or 0 in array.shape or array.shape[1] != channels:
        raise UsageError(
            f"a `{kind}` model takes images of floats [B, {channels}, H, W],"
            f" got {array.dtype}{list(array.shape)}"
        )


def require_known_tokens(tokens: np.ndarray | Sequence[int], vocab_size: int) -> None:
    """Raise UsageError for the first token outside [0, vocab_size)."""
    array = np.asarray(tokens)
    bad = array[(array < 0) | (array >= vocab_size)]
    if bad.size:
        raise UsageError(f"token {bad[0]} is not in the vocabulary of {vocab_size} tokens")
