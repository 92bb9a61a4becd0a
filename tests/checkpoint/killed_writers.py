"""A killed writer may leave a temporary file, which the next writer removes."""

from __future__ import annotations

import os
from pathlib import Path

from gptrs.checkpoint.files.atomic_write import atomic_file


def require_swept(folder: Path, names: set[str]) -> None:
    """Nothing but one temporary file is beside these files, and nothing after the next write."""
    beside = set(os.listdir(folder)) - names
    assert len(beside) <= 1, beside
    assert all(name.startswith(".gptrs-") and name.endswith(".partial") for name in beside), beside
    with atomic_file(folder / "next") as file:
        file.write(b"next")
    (folder / "next").unlink()
    assert set(os.listdir(folder)) <= names
