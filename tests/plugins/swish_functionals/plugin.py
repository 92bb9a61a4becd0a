"""The descriptions: imported to list plugins, so they import no implementation."""

from gptrs.api import FunctionalPlugin

SILU = FunctionalPlugin(
    name="silu.tanh",
    functional="silu",
    summary="silu through one tanh",
    factory="swish_functionals.swish:silu",
    api="0.1",
)
GELU = FunctionalPlugin(
    name="gelu.swish",
    functional="gelu",
    summary="gelu as x * logistic(1.702 x), an approximation",
    factory="swish_functionals.swish:gelu",
    declines="swish_functionals.swish:why_not_gelu",
    api="0.1",
)
