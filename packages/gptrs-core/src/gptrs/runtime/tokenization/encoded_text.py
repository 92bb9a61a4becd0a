"""A text or a pair of texts as tokens, with what classifiers need to know of each."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True)
class EncodedText:
    """Tokens, of each its segment (1 for the second text of a pair), place and whether special.

    `offsets` are the characters of the text that each token is of, from and to; `is_cut` says that
    some tokens were left out.
    """

    tokens: tuple[int, ...]
    segments: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    special: tuple[bool, ...]
    is_cut: bool = False


def cut_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """Return how much of one text, or of each of two, is kept in `room` tokens.

    The longer of two gives way first, as with transformers' `longest_first`.
    """
    if sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    short = min(lengths)
    kept = max(short, room - short)
    if short + kept > room:
        short, kept = room // 2, room - room // 2
    return [short, kept] if lengths[0] <= lengths[1] else [kept, short]
