"""Trigonometric functions and the error function, of what PTIR has."""

from __future__ import annotations

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.registry import CONVERTERS, ELEMENTWISE, converts


@converts("tan", elementwise=True)
def tangent(node: Node, x: Tensor) -> Tensor:
    """Return the tangent."""
    return F.tan(_real(node, x))


@converts("atan2", elementwise=True)
def atan2(node: Node, y: Tensor, x: Tensor) -> Tensor:
    """Return the angle of the point (x, y), from -pi to pi."""
    return F.atan2(_real(node, y), _real(node, x))


def _real(node: Node, x: Tensor) -> Tensor:
    """Return x; UnsupportedError for complex numbers."""
    if not x.dtype.is_float:
        raise node.error(f"of `{x.type}` is not converted")
    return x


def erf(node: Node, x: Tensor) -> Tensor:
    """Return the error function, which JAX writes as `chlo.erf`."""
    del node
    return primitives.erf(x)


CONVERTERS["chlo.erf"] = erf
ELEMENTWISE.add("chlo.erf")
