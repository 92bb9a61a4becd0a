"""A node of a graph of torch as its converter sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, cast

import torch
from torch import fx

from gptrs.api import UnsupportedError
from gptrs.api.programs import DType
from gptrs_torch.element_types import dtype_of


class NotConvertedError(UnsupportedError):
    """A node that is left to torch, and why."""

    def __init__(self, node: fx.Node, why: str) -> None:
        super().__init__(
            f"`{operator_name(node)}` {why}",
            hint="`gptrs_torch.supported_operators()` lists the operators that are converted",
        )
        self.node = node


def operator_name(node: fx.Node) -> str:
    """Return the operator of a node for messages: `aten.add.Tensor`."""
    target = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


@dataclass(frozen=True)
class Node:
    """One node, with what torch found of the types of its result and arguments."""

    source: fx.Node

    @property
    def result(self) -> torch.Tensor:
        """The only result, a tensor without elements; the first one where there are several."""
        found = cast("object", self.source.meta["val"])
        several = cast("list[object]", found) if isinstance(found, (tuple, list)) else [found]
        return cast("torch.Tensor", several[0])

    @property
    def dtype(self) -> DType:
        """The element type of the result."""
        return self.dtype_at(self.result.dtype)

    def dtype_at(self, torch_type: torch.dtype) -> DType:
        """Return the PTIR type of one that the node names; refuses one that PTIR lacks."""
        return dtype_of(torch_type, f"`{operator_name(self.source)}`")

    def argument(self, position: int) -> object:
        """Return what torch knows of an argument: a tensor without elements, or a number."""
        found = self.source.args[position]
        return found.meta["val"] if isinstance(found, fx.Node) else found

    def common_dtype(self, *positions: int) -> DType:
        """Return the type in which torch compares or computes these arguments."""
        promote = cast("Callable[..., torch.dtype]", torch.result_type)
        return self.dtype_at(promote(*(self.argument(position) for position in positions)))

    def refuse(self, why: str) -> NoReturn:
        """Raise NotConvertedError: the node is left to torch."""
        raise NotConvertedError(self.source, why)
