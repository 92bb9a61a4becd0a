"""An optional method of executables: weights are bound once, not in every run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from gptrs.backend.protocol import Buffer


class BoundInputs:
    """Trailing inputs (weights) of a program. As long as the same object is passed, the buffers
    are unchanged; it keeps them alive.
    """

    __slots__ = ("__weakref__", "buffers", "identities")

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self.buffers = tuple(buffers)
        self.identities = frozenset(map(id, self.buffers))


class BindingExecutable(Protocol):
    """An executable that checks and unpacks weights once, and then only what changes between runs.

    Executables with a method `run_bound` are of this kind.
    """

    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        """Return what `run` does for `inputs` followed by those of `bound`, bit for bit.

        Each run may pass another `bound`, and need not pass any.
        """
        ...
