"""The converters, a module a family; importing this registers them."""

from gptrs_backend_jax.stablehlo.ops import (
    algebra,
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
    "algebra",
    "calls",
    "control_flow",
    "elementwise",
    "indexing",
    "layout",
    "reduction",
    "sizes",
    "sorting",
    "window",
]
