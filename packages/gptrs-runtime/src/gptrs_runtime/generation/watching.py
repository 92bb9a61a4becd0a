"""Values inside a model that are read, or changed, while it generates texts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

import numpy as np


class Watch(Protocol):
    """The scope of a model's runs in which values are read or changed.

    Texts may share steps if their watches have equal keys: the changes affect all rows.
    """

    @property
    def key(self) -> Hashable:
        """Tells apart watches that read or change other things."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> object: ...

    def values(self) -> Mapping[str, np.ndarray]:
        """Return the values read in the last run."""
        ...


class RowReader(Protocol):
    """Takes the rows that belong to the texts of one request."""

    @property
    def first(self) -> int:
        """The first position whose rows are wanted: tokens before it may come from the cache."""
        ...

    def take(self, text: Hashable, start: int, rows: Mapping[str, np.ndarray]) -> None:
        """Take the rows of a step for the tokens of `text` from `start` on, each [N, ...].

        Values that do not have a row for each token of the step are left out. A text that was
        preempted is read again, so positions can repeat. The arrays are valid until the next step.
        An error ends the text.
        """
        ...
