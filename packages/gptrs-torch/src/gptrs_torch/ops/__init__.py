"""Converters of ATen operators, a module a family; importing this package registers all of them."""

from gptrs_torch.ops import (
    activations,
    arithmetic,
    attention,
    complex_numbers,
    indexing,
    layout,
    matrices,
    normalization,
    recurrent,
    reduction,
    resizing,
)

__all__ = [
    "activations",
    "arithmetic",
    "attention",
    "complex_numbers",
    "indexing",
    "layout",
    "matrices",
    "normalization",
    "recurrent",
    "reduction",
    "resizing",
]
