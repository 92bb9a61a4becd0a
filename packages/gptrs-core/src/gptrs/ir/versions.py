"""The versions of PTIR that are read, and how each is upgraded to the current one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct, field

from gptrs.ir.program import VERSION, VERSION_04
from gptrs.ir.v04.upgrade import DTYPE_NAMES_04, UNCHANGED, OpChange, change_since_v04


def _unchanged(name: str) -> OpChange:
    return UNCHANGED


class Version(Struct, frozen=True):
    """The changes since a version."""

    change: Callable[[str], OpChange] = _unchanged
    """Returns the change of the op with this name."""
    dtype_names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Current names of renamed dtypes."""


VERSIONS: Mapping[str, Version] = {
    VERSION: Version(),
    VERSION_04: Version(change_since_v04, DTYPE_NAMES_04),
}
"""By version line, the current one first."""
