"""The image models that are a stem, blocks one after another, and a last layer of positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from typing_extensions import override

from gptrs.api.models import Tensor
from gptrs.nn import ConvNorm, ImageClassifierModule


class StemAndBlocks(ImageClassifierModule):
    """An image model whose states are those behind its stem and each of its blocks."""

    stem: ConvNorm
    blocks: Sequence[Callable[[Tensor], Tensor]]
    top: ConvNorm

    @override
    def states(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        x = self.stem(x)
        yield "embeddings", x
        for number, block in enumerate(self.blocks):
            x = block(x)
            yield f"layer.{number}", x

    @override
    def body(self, x: Tensor) -> Tensor:
        return self.top(x)
