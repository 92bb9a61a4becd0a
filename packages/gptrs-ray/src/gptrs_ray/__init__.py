"""Models over many rows on a Ray cluster: `gptrs batch`, Ray Data and Ray Serve.

Its names are imported on first use, so that listing the plugin imports no Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gptrs_ray.batch import map_batches
    from gptrs_ray.serving.app import serve_app

__all__ = ["map_batches", "serve_app"]

_MODULES = {"map_batches": "gptrs_ray.batch", "serve_app": "gptrs_ray.serving.app"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module `gptrs_ray` has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
