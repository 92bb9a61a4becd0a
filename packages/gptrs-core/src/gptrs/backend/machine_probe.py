"""An optional protocol of backends: the peak speed of this machine."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class MachineProbe(Protocol):
    """A backend that can measure the machine with the threads that it computes with."""

    @property
    def threads(self) -> int:
        """Threads used."""
        ...

    def read_bytes_per_s(self) -> float:
        """Bytes a second that arrive from memory while large arrays are read in order."""
        ...

    def flop_per_s(self) -> float:
        """Operations of f32 a second on values in registers; a fused multiply-add is two."""
        ...
