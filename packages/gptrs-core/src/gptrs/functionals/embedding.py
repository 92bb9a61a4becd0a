"""Lookup of rows by number."""

from __future__ import annotations

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import require_integer


@functional
def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """Row `indices[i..]` of `weight` at each position: int [i..], [V, C] -> [i.., C].

    An index outside [0, V) raises ExecutionError when it runs.
    """
    require_integer("embedding", indices=indices)
    if weight.rank != 2:
        raise UsageError(f"`embedding` needs a weight of rank 2, got `{weight.type}`")
    return primitives.take(weight, indices)
