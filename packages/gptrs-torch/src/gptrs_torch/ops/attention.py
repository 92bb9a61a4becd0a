"""Attention, kept whole: backends have kernels for it."""

from __future__ import annotations

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.node import Node
from gptrs_torch.registry import converts
from gptrs_torch.values import converted, is_number


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Return attention of [.., T, D] with any number of axes in front."""
    lead = query.shape[:-2]
    if query.rank < 4:
        extra = [1] * (4 - query.rank)
        query, key, value = (F.reshape(x, [*extra, *x.shape]) for x in (query, key, value))
    if mask is not None and not mask.dtype.is_bool:
        mask = converted(mask, query.dtype)
    made = F.attention(query, key, value, mask, scale, causal, offset=0 if causal else None)
    return F.reshape(made, [*lead, *made.shape[-2:]])


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
    """Return attention, and zeros for the sums that only a gradient reads."""
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
    """Return attention; with `enable_gqa`, or if there is but one, query heads share a key head."""
    if dropout_p:
        node.refuse("drops elements at random")
    alike = enable_gqa or query.shape[:-2] == key.shape[:-2] or _has_one_head(query, key, value)
    if query.rank > 4 or not alike:
        node.refuse("has batches that are broadcast, or of more than two axes")
    return attended(query, key, value, attn_mask, is_causal, scale)


def _has_one_head(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether all heads of the queries read the same keys and values."""
    if not query.rank == key.rank == value.rank == 4:
        return False
    heads = key.shape[1], value.shape[1]
    batches = {query.shape[0], key.shape[0], value.shape[0]}
    return all(is_number(count, 1) for count in heads) and len(batches) == 1
