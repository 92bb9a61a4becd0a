"""Which ONNX operators are converted, and by which function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gptrs_onnx.node import Node
from gptrs_onnx.sequences import Items
from gptrs_onnx.values import Value

Results: TypeAlias = "Value | Items | Sequence[Value | None] | None"
Convert: TypeAlias = Callable[..., Results]
"""Takes the node and its inputs in order, None for those left out; returns its outputs."""

ONNX_DOMAIN = ""
"""The domain of the standard's operators, also written `ai.onnx`."""


@dataclass(frozen=True)
class Converter:
    """How one operator becomes functionals.

    Inputs at the positions in `known` are given as NumPy arrays, all others as tensors, or, with
    `as_is`, as whatever they are.
    """

    convert: Convert
    known: tuple[int, ...]
    as_is: bool


CONVERTERS: dict[tuple[str, str], Converter] = {}
"""Converters by domain and operator; filled when `gptrs_onnx.ops` is imported."""


def converts(
    *names: str, known: Sequence[int] = (), as_is: bool = False, domain: str = ONNX_DOMAIN
) -> Callable[[Convert], Convert]:
    """Register the decorated function `(node, *inputs) -> outputs` for operators by name."""

    def register(convert: Convert) -> Convert:
        for name in names:
            assert (domain, name) not in CONVERTERS, f"{name} is converted twice"
            CONVERTERS[domain, name] = Converter(convert, tuple(known), as_is)
        return convert

    return register


def converter_of(node: Node) -> Converter | None:
    """Return what converts a node, None for an operator that nobody converts by itself."""
    return CONVERTERS.get((node.domain, node.op_type))
