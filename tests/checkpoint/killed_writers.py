"""What a writer that was killed may leave behind: nothing, once its guard has looked around."""

from __future__ import annotations

import os
import time
from pathlib import Path

PATIENCE = 20
"""Seconds that a guard may take on a busy machine; it needs a few milliseconds."""


def require_no_litter(folder: Path, names: set[str]) -> None:
    """Nothing is in `folder` but files of these names, soon."""
    deadline = time.monotonic() + PATIENCE
    while set(os.listdir(folder)) - names:
        assert time.monotonic() < deadline, sorted(os.listdir(folder))
        time.sleep(0.005)
