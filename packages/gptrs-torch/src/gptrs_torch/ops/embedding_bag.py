"""Rows of a table, reduced bag by bag."""

from __future__ import annotations

import math

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.node import Node
from gptrs_torch.registry import converts

_SUM, _MEAN = 0, 1


@converts("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    node: Node,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, ...]:
    """Return sums, means or maxima [bags, width] of rows of the weight; an empty bag gives zeros.

    What torch returns beside them is for gradients, and refused where anything reads it.
    """
    del scale_grad_by_freq, sparse
    if any(user.args[1:] != (0,) and user.users for user in node.source.users):
        node.refuse("gives what only gradients need")
    count = offsets.shape[0] - (1 if include_last_offset else 0)
    member = _membership(indices, offsets, count)
    if padding_idx >= 0:
        kept = F.logical_not(F.equal(indices, padding_idx))
        member = F.logical_and(member, F.expand_dims(kept, 0))
    rows = F.take(weight, indices, 0)
    if mode not in (_SUM, _MEAN):
        whole = F.where(F.expand_dims(member, 2), F.expand_dims(rows, 0), -math.inf)
        empty = F.logical_not(F.any(member, [1], keepdims=True))
        found = F.where(empty, 0.0, F.max(whole, 1))
        return found, indices, indices, indices
    if per_sample_weights is not None:
        rows = rows * F.expand_dims(per_sample_weights, 1)
    weights = F.cast(member, weight.dtype)
    # Not by a product: 0 * NaN of a row that is in another bag would be NaN.
    chosen = F.where(F.expand_dims(member, 2), F.expand_dims(rows, 0), 0.0)
    found = F.sum(chosen, 1)
    if mode == _MEAN:
        found = found / F.maximum(F.sum(weights, 1, keepdims=True), 1.0)
    return found, indices, indices, indices


def _membership(indices: Tensor, offsets: Tensor, count: int) -> Tensor:
    """Return [bags, indices]: whether an index belongs to the bag that starts at an offset."""
    shape = [offsets.shape[0], indices.shape[0]]
    places = primitives.iota(shape, 1, dtypes.si64)
    begun = places >= F.expand_dims(F.cast(offsets, dtypes.si64), 1)
    last = F.zeros([1, indices.shape[0]], dtypes.i1)
    ended = F.concat([F.slice_axis(begun, 0, 1, offsets.shape[0] - 1), last], 0)
    member = F.logical_and(begun, F.logical_not(ended))
    return F.slice_axis(member, 0, 0, count)
