"""An optional protocol of backends: a process that does what another one does."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class FollowingBackend(Protocol):
    """A backend of a `ProcessGroup` that is led, in a process that does not lead."""

    def follow(self) -> None:
        """Do what the first process does, and return when that ends.

        BackendError if it is lost. Nothing else of the backend may be used meanwhile.
        """
        ...
