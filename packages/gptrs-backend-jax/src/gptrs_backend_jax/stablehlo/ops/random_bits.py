"""Random bits by Philox, in the order in which XLA has them."""

from __future__ import annotations

import math
from typing import Final

from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import DType, dtypes
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.ops.conversion_of_types import converted
from gptrs_backend_jax.stablehlo.ops.layout import static_shape
from gptrs_backend_jax.stablehlo.registry import converts
from gptrs_backend_jax.stablehlo.values import filled

_ALGORITHMS: Final = ("DEFAULT", "PHILOX")
"""XLA's default is Philox on CPUs and GPUs."""
_ROUNDS: Final = 10
_FACTORS: Final = (0xD2511F53, 0xCD9E8D57)
_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_LOW: Final = 0xFFFFFFFF


@converts("rng_bit_generator")
def rng_bit_generator(node: Node, state: Tensor) -> list[Tensor]:
    """Return the next state and random bits: a key and a counter, ui64 [2] or [3]."""
    algorithm = node.attribute("rng_algorithm", str)
    if algorithm not in _ALGORITHMS or state.dtype is not dtypes.ui64 or state.shape not in _STATES:
        raise node.error(f"by {algorithm} of a state `{state.type}`: it takes PHILOX of ui64[2]")
    dtype = node.operation.types[1].dtype
    if not dtype.is_integer or dtype.bits < 8:
        raise node.error(f"gives `{dtype}`")
    shape = tuple(dim or 0 for dim in node.operation.types[1].shape or ())
    static_shape(node)
    key, *counter = (_entry(state, place) for place in range(state.shape[0]))
    # A state of two has the low half of the counter; the key is the high one.
    low, high = counter if len(counter) == 2 else (counter[0], key)
    words = 2 if dtype.bits == 64 else 1
    count = -(-math.prod(shape) * words // 4)
    bits = _philox(_counted(low, high, count), _halves(key))
    made = _arranged(bits, dtype, math.prod(shape))
    steps = primitives.add(low, filled(count, low))
    carry = primitives.cast(primitives.compare(steps, low, "lt"), dtypes.ui64)
    after = [key, steps, primitives.add(high, carry)][: state.shape[0]]
    following = primitives.concat([primitives.reshape(each, (1,)) for each in after], 0)
    return [following, primitives.reshape(made, shape)]


_STATES: Final = ((2,), (3,))


def _entry(x: Tensor, place: int) -> Tensor:
    return primitives.reshape(primitives.slice(x, [place], [1]), ())


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the low and the high 32 bits, in elements of 64."""
    high = primitives.shift_right_logical(x, filled(32, x))
    return primitives.bit_and(x, filled(_LOW, x)), high


def _counted(low: Tensor, high: Tensor, count: int) -> list[Tensor]:
    """Return the counter and those after it, as four parts [count] of 32 bits."""
    numbers = primitives.iota((count,), 0, dtypes.ui64)
    first = primitives.broadcast_to(low, (count,))
    total = primitives.add(first, numbers)
    carry = primitives.cast(primitives.compare(total, first, "lt"), dtypes.ui64)
    return [*_halves(total), *_halves(primitives.add(filled(high, carry), carry))]


def _philox(x: list[Tensor], key: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Return Philox 4x32-10 of counters, by Salmon et al., Parallel random numbers (2011)."""
    keys = list(key)
    for number in range(_ROUNDS):
        if number:
            keys = [
                primitives.bit_and(primitives.add(each, filled(step, each)), filled(_LOW, each))
                for each, step in zip(keys, _STEPS, strict=True)
            ]
        (low0, high0), (low1, high1) = (
            _halves(primitives.mul(each, filled(factor, each)))
            for each, factor in zip((x[0], x[2]), _FACTORS, strict=True)
        )
        x = [
            primitives.bit_xor(primitives.bit_xor(high1, x[1]), filled(keys[0], x[1])),
            low1,
            primitives.bit_xor(primitives.bit_xor(high0, x[3]), filled(keys[1], x[3])),
            low0,
        ]
    return x


def _arranged(bits: list[Tensor], dtype: DType, size: int) -> Tensor:
    """Return the first elements of what counters give, one counter after another."""
    words = bits
    if dtype.bits == 64:
        words = [
            primitives.bit_or(low, primitives.shift_left(high, filled(32, high)))
            for low, high in ((bits[0], bits[1]), (bits[2], bits[3]))
        ]
    columns = [primitives.reshape(each, (*each.shape, 1)) for each in words]
    joined = primitives.concat(columns, 1)
    flat = primitives.reshape(joined, (math.prod(joined.shape),))
    return converted(primitives.slice(flat, [0], [size]), dtype)
