"""Conversion to and from the accumulate type of sums and products."""

from __future__ import annotations

from jax import Array, lax

from gptrs.api.programs import DType
from gptrs_backend_jax.conversion import convert
from gptrs_backend_jax.element_types import computing, held, narrow, widen


def to_accumulator(x: Array, source: DType, accum: DType) -> Array:
    """Convert held elements to the computing type of `accum`; integers wrap, as sums in it do."""
    if accum.is_integer:
        return lax.convert_element_type(x, held(accum))
    if computing(source) == computing(accum) and accum.bits >= source.bits:
        return widen(source, x)
    return widen(accum, convert(x, source, accum))


def from_accumulator(x: Array, accum: DType, out: DType) -> Array:
    """Round a total in the computing type of `accum` to `accum`, and cast it to `out`."""
    return convert(narrow(accum, x), accum, out)
