"""ONNX models on any backend of gptrs: `gptrs_onnx.load("model.onnx")(x)["logits"]`; and back.

Its names are imported on first use, so that listing the plugin imports no ONNX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from gptrs.lazy_module import collector_paused

if TYPE_CHECKING:
    from gptrs_onnx.exporting import export, to_proto
    from gptrs_onnx.graph import supported_operators
    from gptrs_onnx.model import OnnxModel, from_proto, load

__all__ = ["OnnxModel", "export", "from_proto", "load", "supported_operators", "to_proto"]
_MODULES = {"export": "exporting", "supported_operators": "graph", "to_proto": "exporting"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module `gptrs_onnx` has no attribute {name!r}")
    module = _MODULES.get(name, "model")
    with collector_paused():
        return getattr(import_module(f"gptrs_onnx.{module}"), name)


def __dir__() -> list[str]:
    return list(__all__)
