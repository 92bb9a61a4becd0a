"""The converters, a module a family; importing this registers them."""

from gptrs_backend_jax.stablehlo.ops import (
    calls,
    control_flow,
    elementwise,
    indexing,
    layout,
    reduction,
    sizes,
    sorting,
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
    "random_bits",
    "reduction",
    "scattering",
    "selecting",
    "sizes",
    "sorting",
    "trigonometry",
    "window",
]
