"""Converters of ATen operators, a module a family; importing this package registers all of them."""

from gptrs_torch.ops import (
    activations,
    arithmetic,
    attention,
    comparison,
    contraction,
    convolution,
    creation,
    embedding_bag,
    indexing,
    layout,
    normalization,
    padding,
    pooling,
    reduction,
    sorting,
    trigonometry,
)

__all__ = [
    "activations",
    "arithmetic",
    "attention",
    "comparison",
    "contraction",
    "convolution",
    "creation",
    "embedding_bag",
    "indexing",
    "layout",
    "normalization",
    "padding",
    "pooling",
    "reduction",
    "sorting",
    "trigonometry",
]
