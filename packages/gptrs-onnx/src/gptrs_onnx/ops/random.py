"""Dropout, which is nothing when a model is used; random numbers are refused by name."""

from __future__ import annotations

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts
from gptrs_onnx.values import Known


@converts("Dropout", known=[1, 2])
def dropout(
    node: Node, x: Tensor, ratio: Known | None = None, training: Known | None = None
) -> tuple[Tensor, Tensor]:
    """Return x, and that nothing was dropped; UnsupportedError in training mode."""
    dropped = 0.5 if ratio is None else float(ratio.item())
    if training is not None and bool(training.item()) and dropped:
        node.refuse("drops elements at random, which ONNX leaves to each runtime to choose")
    return x, F.ones(x.shape, dtypes.i1)


@converts(
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
)
def random(node: Node, *operands: Tensor) -> Tensor:
    """Refuse: which numbers come is left to each runtime, so that no two agree."""
    del operands
    node.refuse("makes random numbers, which ONNX leaves to each runtime to choose")
