"""Optional protocols of backends of several processes: who follows, and who leads."""

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


@runtime_checkable
class LeadingBackend(Protocol):
    """A backend of a `ProcessGroup` that is led, in the process that leads."""

    def lost(self) -> str | None:
        """Return which other process is gone, in words, so that no run can succeed any more.

        None while all are there. It is asked often, from any thread, and must not wait.
        """
        ...
