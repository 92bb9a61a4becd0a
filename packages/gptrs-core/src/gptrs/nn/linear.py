"""The affine layer."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Literal

from gptrs import functionals as F
from gptrs.backend.sharding import Axis
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.params import Params
from gptrs.errors import ModelError
from gptrs.nn.module import Module


class Linear(Module):
    """`x W^T + b`, [..., inputs] -> [..., outputs].

    `layout` says how the checkpoint stores the weight: "out_in" [outputs, inputs] as torch does, or
    "in_out" [inputs, outputs]. `axes` names inputs and outputs, for devices that split them. The
    product of an adapter that is not merged with it is added; of several each row gets that of its
    own, see `adapter_rows`.
    """

    def __init__(
        self,
        params: Params,
        inputs: int,
        outputs: int,
        bias: bool = True,
        layout: Literal["out_in", "in_out"] = "out_in",
        axes: tuple[Axis | str, Axis | str] | None = None,
    ) -> None:
        shape = (outputs, inputs) if layout == "out_in" else (inputs, outputs)
        use = "linear" if layout == "out_in" else "turned"
        named = axes if axes is None or layout == "in_out" else axes[::-1]
        self.weight = params.tensor("weight", shape, use=use, axes=named)
        added = None if axes is None else axes[1:]
        self.bias = params.tensor("bias", (outputs,), axes=added) if bias else None
        self.low_rank = [[*(factors or ())] for factors in params.low_rank(inputs, outputs)]
        self.row_adapters: Tensor | None = None
        self._layout: Literal["out_in", "in_out"] = layout

    def __call__(self, x: Tensor) -> Tensor:
        """Map the last axis of `x`."""
        y = F.linear(x, self.weight, self.bias, self._layout)
        return y + self._added(x) if any(self.low_rank) else y

    def _added(self, x: Tensor) -> Tensor:
        """Return the product of the adapter of each row."""
        rows = self.row_adapters
        if rows is None or x.rank != _FLAT or x.shape[0] != rows.shape[0]:
            if len(self.low_rank) == 1:
                return _product(x, self.low_rank[0])
            raise ModelError(
                "a layer does not know which adapter each of its rows is for",
                hint="run the adapters in steps of their own",
            )
        added: Tensor | float = 0.0
        for number, factors in enumerate(self.low_rank, 1):
            if factors:
                own = F.equal(F.expand_dims(rows, 1), number)
                added = F.where(own, _product(x, factors), added)
        assert isinstance(added, Tensor), "there is a product at least"
        return added


_FLAT = 2
"""The rank of the rows of a ragged step."""


def _product(x: Tensor, factors: list[Tensor]) -> Tensor:
    a, b = factors
    return F.linear(F.linear(x, a), b)


@contextmanager
def adapter_rows(modules: Iterable[Module], rows: Tensor) -> Generator[None]:
    """Scope in which row n of the linear layers among `modules` is of adapter `rows[n]`, si32 [N].

    The first adapter is 1. A product is chosen even where there is one adapter: its sums are then
    rounded as those of a step of several.
    """
    layers = [each for each in modules if isinstance(each, Linear) and any(each.low_rank)]
    try:
        for layer in layers:
            layer.row_adapters = rows
        yield
    finally:
        for layer in layers:
            layer.row_adapters = None
