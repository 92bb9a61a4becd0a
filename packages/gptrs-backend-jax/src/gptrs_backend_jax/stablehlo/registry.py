"""Which converter takes which operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from gptrs_backend_jax.stablehlo.values import Known, Value

if TYPE_CHECKING:
    pass

Converter: TypeAlias = Callable[..., Value | Sequence[Value]]
"""`(node, *operands) -> result`, or a sequence of results."""
Folder: TypeAlias = Callable[..., Known | None]
"""The same on known values alone; None where the result is not known."""

CONVERTERS: dict[str, Converter] = {}
KNOWING: set[str] = set()
"""Names whose converters take known values as they are; all others take tensors."""
FOLDERS: dict[str, Folder] = {}
ELEMENTWISE: set[str] = set()
"""Names that compute each element by itself, so that regions of them apply to whole tensors."""


def converts(*names: str, knows: bool = False, elementwise: bool = False) -> Callable[[Any], Any]:
    """Register a converter; `knows` if it takes known values, too."""

    def register(converter: Any) -> Any:
        for name in names:
            CONVERTERS[f"stablehlo.{name}"] = converter
            if knows:
                KNOWING.add(f"stablehlo.{name}")
            if elementwise:
                ELEMENTWISE.add(f"stablehlo.{name}")
        return converter

    return register


def folds(name: str) -> Callable[[Folder], Folder]:
    """Register what computes an operation on known values."""

    def register(folder: Folder) -> Folder:
        FOLDERS[f"stablehlo.{name}"] = folder
        return folder

    return register
