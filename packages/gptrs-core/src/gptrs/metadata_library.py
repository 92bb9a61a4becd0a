"""The library `importlib.metadata`, imported without `email` and `zipfile`.

Importing these takes two thirds of its time, 20 ms of processor time, in every process. Only the
metadata of a broken distribution, or one in a zip file, is read by them.
"""

from __future__ import annotations

from gptrs.lazy_module import imported_when_used

with imported_when_used("importlib.metadata._adapters", "zipfile"):
    import importlib.metadata as metadata

__all__ = ["metadata"]
