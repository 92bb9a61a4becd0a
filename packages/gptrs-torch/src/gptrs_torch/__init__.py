"""Models of torch on any backend of gptrs: `torch.compile(model, backend="gptrs")`.

`gptrs_torch.load("model.pt2")` reads a program of `torch.export`. The names are imported on first
use, so that listing the plugin imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gptrs_torch.model import TorchModel, load, supported_operators

__all__ = ["TorchModel", "load", "supported_operators"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module `gptrs_torch` has no attribute {name!r}")
    return getattr(import_module("gptrs_torch.model"), name)


def __dir__() -> list[str]:
    return list(__all__)
