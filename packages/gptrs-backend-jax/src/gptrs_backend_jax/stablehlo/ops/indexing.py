"""Blocks that are read or written at a place that is computed."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import dtypes
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.registry import converts


@converts("dynamic_slice")
def dynamic_slice(node: Node, x: Tensor, *starts: Tensor) -> Tensor:
    """Return a block, moved inside where it would leave the tensor."""
    return primitives.dynamic_slice(x, _vector(starts), node.integers("slice_sizes"))


@converts("dynamic_update_slice")
def dynamic_update_slice(node: Node, x: Tensor, update: Tensor, *starts: Tensor) -> Tensor:
    """Return `x` with a block replaced."""
    del node
    return primitives.dynamic_update_slice(x, update, _vector(starts))


def _vector(starts: Sequence[Tensor]) -> Tensor:
    if not starts:
        return primitives.broadcast_to(primitives.constant(0, dtypes.si32), (0,))
    types = {each.dtype for each in starts}
    same = starts if len(types) == 1 else [primitives.cast(each, dtypes.si64) for each in starts]
    return primitives.concat([primitives.reshape(each, (1,)) for each in same], 0)
