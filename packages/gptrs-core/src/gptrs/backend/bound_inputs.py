"""What an executable may offer besides `Executable`: weights are bound once, not in every run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from gptrs.backend.protocol import Buffer


class BoundInputs:
    """The last inputs of a program, for many runs: it is they that are the same while it is.

    They are weights, whose contents never change. It keeps them alive.
    """

    __slots__ = ("__weakref__", "buffers", "identities")

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self.buffers = tuple(buffers)
        self.identities = frozenset(map(id, self.buffers))


class BindingExecutable(Protocol):
    """An executable that looks at weights once, and then only at what changes from run to run.

    What has `run_bound` is one.
    """

    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        """Like `run` on `inputs` and then those of `bound`, to the last bit.

        It may be given other `bound` inputs in each run, and need not be given any.
        """
        ...
