"""Pictures in texts: tokens of their own, which say to a cache what was seen where.

A language model reads a picture as a row of vectors. In the tokens of a text each of these vectors
has a number beyond any vocabulary. It belongs to this picture alone, as long as the process lives:
texts find each other's keys and values by their tokens, and never those of another picture.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, SupportsIndex, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from gptrs.errors import UsageError
from gptrs.fork_safe_lock import ForkSafeLock
from gptrs.plugins.capabilities import ImageLM

FIRST_PICTURE: Final = 1 << 40
"""The smallest of these tokens: those of vocabularies are below."""
_MOST_VECTORS: Final = 1 << 16
"""How many token numbers are set aside for each picture."""
_KEPT: Final = 64
"""How many pictures keep their tokens after their text is gone: the next turn may have them."""


class Picture:
    """The levels of a picture, ui8 [H, W, C], and `values` that make of them what a model takes.

    `first` is the token of its first vector.
    """

    __slots__ = ("__weakref__", "_levels", "_values", "_vectors", "first")

    def __init__(
        self, first: int, levels: np.ndarray, values: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        self.first = first
        self._levels = levels
        self._values = values
        self._vectors: WeakKeyDictionary[object, np.ndarray] = WeakKeyDictionary()

    def vectors(self, lm: ImageLM) -> np.ndarray:
        """Return the vectors that a model reads for it, f32 [T, E]; computed once."""
        found = self._vectors.get(lm)
        if found is None:
            found = lm.image_vectors(self._values(self._levels)[np.newaxis])[0]
            self._vectors[lm] = found
        return found


_pictures: WeakValueDictionary[int, Picture] = WeakValueDictionary()
_known: WeakValueDictionary[bytes, Picture] = WeakValueDictionary()
_latest: deque[Picture] = deque(maxlen=_KEPT)
_numbers = itertools.count()
_lock = ForkSafeLock()


def picture_of(
    levels: np.ndarray, values: Callable[[np.ndarray], np.ndarray], identity: str
) -> Picture:
    """Return the picture of ui8 [H, W, C]; the same one again for the same bytes and `identity`.

    `identity` says what `values` does.
    """
    told = f"{identity} {levels.shape}".encode()
    digest = hashlib.blake2b(told + np.ascontiguousarray(levels).tobytes(), digest_size=32).digest()
    with _lock:
        found = _known.get(digest)
        if found is None:
            number = next(_numbers)
            found = Picture(FIRST_PICTURE + number * _MOST_VECTORS, levels, values)
            _known[digest] = _pictures[number] = found
        _latest.append(found)
    return found


class PicturedTokens(Sequence[int]):
    """The tokens of a prompt with pictures, which it keeps; `shown` has the model's own for them.

    It is immutable.
    """

    def __init__(self, tokens: Sequence[int], pictures: Sequence[Picture], count: int) -> None:
        """Put the `count` vectors of each picture in place of the tokens below 0, in their order.

        UsageError unless there are as many of them.
        """
        places = [place for place, token in enumerate(tokens) if token < 0]
        if len(places) != len(pictures) * count or count > _MOST_VECTORS:
            raise UsageError(
                f"{len(pictures)} pictures of {count} vectors need {len(pictures) * count} tokens,"
                f" the prompt has {len(places)}",
                hint="leave tokens that stand for images out of your texts",
            )
        self.pictures = tuple(pictures)
        self.shown = tuple(-1 - token if token < 0 else token for token in tokens)
        self._tokens = list(tokens)
        for index, place in enumerate(places):
            self._tokens[place] = pictures[index // count].first + index % count

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> int | list[int]:
        return self._tokens[index]


def shown_tokens(tokens: Sequence[int]) -> Sequence[int]:
    """Return the tokens of a prompt, with the model's own for pictures."""
    return tokens.shown if isinstance(tokens, PicturedTokens) else tokens


def has_pictures(tokens: np.ndarray) -> bool:
    """Return whether any of the tokens of a step, si64 [N], is that of a picture."""
    return bool(tokens.max() >= FIRST_PICTURE)


def seen(lm: ImageLM, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens of a step without those of pictures, si64 [N], vectors, and which rows.

    Vectors are f32 [N, E], and zeros where the third, i1 [N], is false.
    """
    given = tokens >= FIRST_PICTURE
    numbers, places = np.divmod(tokens[given] - FIRST_PICTURE, _MOST_VECTORS)
    found = {int(number): _pictures[int(number)].vectors(lm) for number in np.unique(numbers)}
    rows = np.stack([found[int(n)][int(p)] for n, p in zip(numbers, places, strict=True)])
    vectors = np.zeros((len(tokens), rows.shape[1]), np.float32)
    vectors[given] = rows
    return np.where(given, np.int64(lm.image_token), tokens), vectors, given
