"""An optional protocol of backends whose buffers are not in the memory of the host."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from gptrs.backend.protocol import Backend, Buffer


@runtime_checkable
class DeviceMemory(Protocol):
    """A backend with memory of its own: `to_host` copies, and is never called just to look.

    Derived weights stay where they were computed, and pages are given back only of host memory.
    """

    def host_view(self, buffer: Buffer) -> np.ndarray | None:
        """Return the memory of the host that `buffer` lies in, None for that of a device."""
        ...

    def copy(self, buffer: Buffer) -> Buffer:
        """Return another buffer with the same elements, without a way over the host."""
        ...


def has_own_memory(backend: Backend) -> bool:
    """Return whether the buffers of `backend` are in memory of its own."""
    return isinstance(backend, DeviceMemory)
