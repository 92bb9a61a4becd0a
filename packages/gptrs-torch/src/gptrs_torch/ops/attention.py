"""Attention, kept whole, since backends have kernels for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gptrs.api.importers import is_number
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.conversion import Node, converts
from gptrs_torch.program_check import converted


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Return the attention of [.., T, D] with any number of leading axes."""
    lead = query.shape[:-2]
    if query.rank > 4:
        query, key, value = (_in_one_batch(x, lead[:-1]) for x in (query, key, value))
        if mask is not None and mask.rank > 3:
            mask = _in_one_batch(mask, lead[:-1])
    if query.rank < 4:
        extra = [1] * (4 - query.rank)
        query, key, value = (F.reshape(x, [*extra, *x.shape]) for x in (query, key, value))
    if mask is not None and not mask.dtype.is_bool:
        mask = converted(mask, query.dtype)
    made = F.attention(query, key, value, mask, scale, causal, offset=0 if causal else None)
    return F.reshape(made, [*lead, *made.shape[-2:]])


def _in_one_batch(x: Tensor, lead: Sequence[int]) -> Tensor:
    """Return x, broadcast to the leading axes, with one in their place."""
    rest = x.shape[-3:]
    return F.reshape(F.broadcast_to(x, [*lead, *rest]), [math.prod(lead), *rest])


@converts("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    node: Node,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return attention, and zeros for the sums that only gradients read."""
    if dropout_p:
        node.refuse("drops elements at random")
    made = attended(query, key, value, attn_mask, is_causal, scale)
    return made, F.zeros(query.shape[:-1], dtypes.f32)


@converts("scaled_dot_product_attention")
def scaled_dot_product_attention(
    node: Node,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return attention; query heads share key heads with `enable_gqa`, or if there is only one."""
    if dropout_p:
        node.refuse("drops elements at random")
    alike = enable_gqa or query.shape[:-2] == key.shape[:-2] or _has_one_head(query, key, value)
    if not alike:
        node.refuse("has batches that are broadcast")
    return attended(query, key, value, attn_mask, is_causal, scale)


def _has_one_head(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether all heads of the queries read the same keys and values."""
    if not query.rank == key.rank == value.rank == 4:
        return False
    heads = key.shape[1], value.shape[1]
    batches = {query.shape[0], key.shape[0], value.shape[0]}
    return all(is_number(count, 1) for count in heads) and len(batches) == 1


# Bags of rows of a table, reduced to one vector each.


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

    The other results of torch are for gradients; a graph that reads them is refused.
    """
    del scale_grad_by_freq, sparse
    if any(user.args[1:] != (0,) and user.users for user in node.source.users):
        node.refuse("returns values that only gradients need")
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
    # Not a matrix product: 0 * NaN of a row in another bag would be NaN.
    chosen = F.where(F.expand_dims(member, 2), F.expand_dims(rows, 0), 0.0)
    found = F.sum(chosen, 1)
    if mode == _MEAN:
        found = found / F.maximum(F.sum(weights, 1, keepdims=True), 1.0)
    return found, indices, indices, indices


def _membership(indices: Tensor, offsets: Tensor, count: int) -> Tensor:
    """Return [bags, indices]: whether an index belongs to a bag."""
    shape = [offsets.shape[0], indices.shape[0]]
    numbers = primitives.iota(shape, 1, dtypes.si64)
    begun = numbers >= F.expand_dims(F.cast(offsets, dtypes.si64), 1)
    last = F.zeros([1, indices.shape[0]], dtypes.i1)
    ended = F.concat([F.slice_axis(begun, 0, 1, offsets.shape[0] - 1), last], 0)
    member = F.logical_and(begun, F.logical_not(ended))
    return F.slice_axis(member, 0, 0, count)


# Grouped matrix products: each group of rows, columns or terms has its own matrix (`_grouped_mm`).


@converts("_grouped_mm")
def grouped_product(
    node: Node,
    x: Tensor,
    y: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: object = None,
) -> Tensor:
    """Return products of groups; `offs` has the end of each group on the divided axis.

    Matrices x [G, M, K] and y [G, K, N] are multiplied pairwise. Otherwise groups divide the rows
    of x [M, K], the columns of y [K, N], or, for two matrices, the axis K.
    """
    del out_dtype
    if bias is not None:
        node.refuse("has a bias")
    if offs is None:
        return converted(F.matmul(x, y), node.dtype)
    ends = converted(offs, dtypes.si64)
    if x.rank == 2 and y.rank == 3:
        made = F.grouped_linear(x, F.transpose(y, (0, 2, 1)), _groups(node, ends, x.shape[0]))
    elif x.rank == 3:
        turned = F.transpose(y, (1, 0))
        made = F.grouped_linear(turned, x, _groups(node, ends, y.shape[1]))
        made = F.transpose(made, (1, 0))
    else:
        made = _sums(node, x, y, ends)
    return converted(made, node.dtype)


@converts("transformers.grouped_mm_fallback")
def expert_product(node: Node, x: Tensor, y: Tensor, offs: Tensor) -> Tensor:
    """Return products of groups of rows, as experts compute them; rows after the last are 0."""
    made = grouped_product(node, x, y, offs)
    within = F.less(F.arange(x.shape[0]), converted(offs, dtypes.si64)[offs.shape[0] - 1])
    return F.where(F.expand_dims(within, 1), made, F.zeros([], made.dtype))


def _groups(node: Node, ends: Tensor, count: int) -> Tensor:
    """Return the group of each of `count` indices: the number of groups that end at or before it.

    Indices after the last group belong to it: torch leaves their results undefined.
    """
    if not is_number(count):
        node.refuse("has a free count of rows")
    indices = F.expand_dims(F.arange(count), 1)
    groups = F.sum(F.cast(F.greater_equal(indices, ends), dtypes.si64), 1)
    return F.minimum(groups, ends.shape[0] - 1)


def _sums(node: Node, x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    """Return x [M, K] times y [K, N] for each group of terms, [G, M, N]."""
    groups = _groups(node, ends, x.shape[1])
    within = F.less(F.arange(x.shape[1]), ends[ends.shape[0] - 1])
    names = F.expand_dims(F.expand_dims(F.arange(ends.shape[0]), 1), 1)
    own = F.logical_and(F.equal(groups, names), within)
    return F.matmul(F.where(own, F.expand_dims(x, 0), F.zeros([], x.dtype)), y)
