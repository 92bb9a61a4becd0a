"""Which operators of ATen are converted, and by which function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from torch._ops import OpOverload

Convert: TypeAlias = Callable[..., Any]
"""Takes the node and then the arguments of the operator; returns its result, or a tuple."""

CONVERTERS: dict[str, Convert] = {}
"""By the name of an overload, `aten.add.Tensor`, or of all overloads, `aten.add`."""


def converts(*names: str) -> Callable[[Convert], Convert]:
    """Register the decorated function `(node, *arguments) -> result` for operators of ATen.

    `add` stands for all overloads that no other function takes by name.
    """

    def register(convert: Convert) -> Convert:
        for name in names:
            assert f"aten.{name}" not in CONVERTERS, f"{name} is converted twice"
            CONVERTERS[f"aten.{name}"] = convert
        return convert

    return register


def converter_of(target: object) -> Convert | None:
    """Return what converts an operator, None for one that nobody converts."""
    if not isinstance(target, OpOverload):
        return None
    name = str(cast("object", target))
    if name.startswith("gptrs."):  # a layer of torch that is kept whole
        name = name.replace("gptrs.", "aten.", 1)
    return CONVERTERS.get(name) or CONVERTERS.get(name.rpartition(".")[0])
