"""The table of writers: what turns an instruction into nodes, by the class of its op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from gptrs.api.programs import Op
from gptrs_onnx.writing.graph_writer import Ref

Writer: TypeAlias = Callable[..., Ref | list[Ref]]
"""Called with the `GraphWriter`, the op and its operands; returns the results."""
WRITERS: Final[dict[type[Op], Writer]] = {}


def writes(*op_classes: type[Op]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function writes these ops."""

    def register(writer: Callable[..., Any]) -> Callable[..., Any]:
        for op_class in op_classes:
            WRITERS[op_class] = writer
        return writer

    return register
