"""Optional protocol of backends: several steps of a generation as one program."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gptrs.backend.protocol import Backend
from gptrs.errors import PluginError


@runtime_checkable
class LoopingBackend(Protocol):
    """A backend for which a loop in a program costs less than a run for each of its turns.

    Texts that grow by their likeliest token take several steps in one run then: a `while` around
    the model, with the choice of each token inside.
    """

    @property
    def steps_at_once(self) -> int:
        """How many steps one run has at most: 1 for none, 4 to 16 hide what a run costs.

        Nobody sees a token before all of them have been chosen. It never changes.
        """
        ...


def steps_at_once(backend: Backend) -> int:
    """Return how many steps `backend` wants in one run, 1 where it does not say.

    PluginError for less.
    """
    if not isinstance(backend, LoopingBackend):
        return 1
    wanted = backend.steps_at_once
    if wanted < 1:
        raise PluginError(f"`steps_at_once` of backend `{backend.name}` is {wanted}")
    return wanted
