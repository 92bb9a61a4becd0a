"""The converters, a module a family; importing this registers them."""

from gptrs_backend_jax.stablehlo.ops import (
    calls,
    contraction,
    control_flow,
    conversion_of_types,
    convolution,
    elementwise,
    gathering,
    indexing,
    layout,
    reduction,
    scattering,
    sizes,
    sorting,
    trigonometry,
    window,
)

__all__ = [
    "calls",
    "contraction",
    "control_flow",
    "conversion_of_types",
    "convolution",
    "elementwise",
    "gathering",
    "indexing",
    "layout",
    "reduction",
    "scattering",
    "sizes",
    "sorting",
    "trigonometry",
    "window",
]
