"""Converters of operators, a module a family; importing this package registers all of them."""

from gptrs_onnx.ops import (
    activations,
    arithmetic,
    control_flow,
    convolution,
    creation,
    indexing,
    layout,
    normalization,
    pooling,
    quantization,
    recurrent,
    resize,
    sequences,
)

__all__ = [
    "activations",
    "arithmetic",
    "control_flow",
    "convolution",
    "creation",
    "indexing",
    "layout",
    "normalization",
    "pooling",
    "quantization",
    "recurrent",
    "resize",
    "sequences",
]
