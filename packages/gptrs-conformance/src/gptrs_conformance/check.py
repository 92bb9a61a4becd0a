"""A check of the kit: a name, the level it belongs to, and a function that may fail."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs_runtime.conformance import Level


class CheckFailure(Exception):  # noqa: N818 - what fails is the backend, not the kit
    """A backend violated PTIR or its contract; the text describes the actual behavior."""


class Check(Struct, frozen=True):
    """One property of a backend, above the level of single ops.

    `run` raises CheckFailure if the backend lacks the property, and lets UnsupportedError pass
    where the backend refuses what the check needs.
    """

    name: str
    level: Level
    run: Callable[[Backend], None]


def place_of(error: BaseException) -> str:
    """Return the file and line that raised `error`, ` (kernels.py:12)`; "" if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
