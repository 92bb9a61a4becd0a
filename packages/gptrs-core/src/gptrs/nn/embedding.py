"""The embedding layer."""

from __future__ import annotations

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.params import Params
from gptrs.nn.module import Module


class Embedding(Module):
    """A table of `count` vectors of size `width`, looked up by number.

    `axis` names the numbers, for devices that split them: `vocab`.
    """

    def __init__(self, params: Params, count: int, width: int, axis: str | None = None) -> None:
        axes = None if axis is None else (axis, "embed")
        self.weight = params.tensor("weight", (count, width), use="table", axes=axes)

    def __call__(self, indices: Tensor) -> Tensor:
        """Int [i..] -> [i.., width]."""
        return F.embedding(indices, self.weight)

    def unembed(self, x: Tensor) -> Tensor:
        """Scores of every entry, [..., width] -> [..., count]: the tied output layer."""
        return F.linear(x, self.weight)
