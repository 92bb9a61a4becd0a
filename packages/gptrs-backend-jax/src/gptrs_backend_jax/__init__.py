"""The JAX backend: a program becomes one function that XLA compiles for CPUs, GPUs and TPUs.

Conversely, `from_jax(function, *examples)` and `load("model.stablehlo")` run functions and modules
of JAX on any backend. Names are imported on first use, so that listing the plugin imports no JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gptrs_backend_jax.stablehlo.functions import JaxFunction, from_jax
    from gptrs_backend_jax.stablehlo.model import StableHloModel, load, supported_operations

__all__ = ["JaxFunction", "StableHloModel", "from_jax", "load", "supported_operations"]
_PLACES = {
    "JaxFunction": "functions",
    "StableHloModel": "model",
    "from_jax": "functions",
    "load": "model",
    "supported_operations": "model",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module `gptrs_backend_jax` has no attribute {name!r}")
    return getattr(import_module(f"gptrs_backend_jax.stablehlo.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
