"""Build hook: a wheel with packs of compiled kernels is for the system that they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKS = "src/gptrs_backend_numba/pack/*.kernels"
_TAG = "py3-none-manylinux_2_17_x86_64"
"""Packs call the C library alone, by functions that it has had for longer than this version."""


class KernelPackHook(BuildHookInterface[Any]):
    """Tags wheels with packs, see `tools/kernel_pack.py`; others are for any system."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Set the tag of a wheel that is about to be built."""
        if version != "editable" and any(Path(self.root).glob(_PACKS)):
            build_data["pure_python"] = False
            build_data["tag"] = _TAG
