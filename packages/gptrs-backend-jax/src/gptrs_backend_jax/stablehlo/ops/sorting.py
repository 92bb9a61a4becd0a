"""Sorting by lexicographic comparators of keys, and the k largest elements."""

from __future__ import annotations

import math
from typing import Final, cast

from msgspec import Struct

from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import DType, dtypes
from gptrs_backend_jax.stablehlo.conversion import Node, converts, filled
from gptrs_backend_jax.stablehlo.ops.control_flow import Expression, expressions
from gptrs_backend_jax.stablehlo.ops.elementwise import converted, total_order
from gptrs_backend_jax.stablehlo.ops.layout import static_shape


class SortKey(Struct, frozen=True):
    """An operand that decides the order; `by_bits`: by the total order of floats."""

    operand: int
    descending: bool
    by_bits: bool


@converts("sort")
def sort(
    node: Node, *operands: Tensor, dimension: int = 0, is_stable: bool = False
) -> list[Tensor]:
    """Sort lines by their keys; stable sorts run from the last key to the first."""
    axis = dimension + operands[0].rank if dimension < 0 else dimension
    (order,) = expressions(node.conversion.module, node.operation.regions[0])
    keys = None if order is None else sort_keys(order)
    if keys is None:
        node.refuse("orders by a region that is not a lexicographic comparison")
    values = list(operands)
    stable = is_stable or len(keys) > 1
    for key in reversed(keys):
        by = values[key.operand]
        if key.by_bits and by.dtype.is_float:
            made = primitives.sort([total_order(by), *values], axis, key.descending, stable)
            values = list(made[1:])
        else:
            others = [x for position, x in enumerate(values) if position != key.operand]
            first, *rest = primitives.sort([by, *others], axis, key.descending, stable)
            values = [*rest[: key.operand], first, *rest[key.operand :]]
    return values


def sort_keys(order: Expression) -> list[SortKey] | None:
    """Return the keys of a comparator, most important first; None for other regions.

    `or(l < r, and(l == r, rest))`, as JAX writes it for several keys.
    """
    if order[0] == "or" and len(order) == 3:
        parts = [cast("Expression", each) for each in order[1:]]
        tie = next((each for each in parts if each[0] == "and"), None)
        head = next((each for each in parts if each is not tie), None)
        if tie is None or head is None:
            return None
        key = _key(head)
        conditions = [cast("Expression", each) for each in tie[1:]]
        equal = next((x for x in conditions if str(x[0]).startswith("compare EQ")), None)
        rest = next((x for x in conditions if x is not equal), None)
        if key is None or equal is None or rest is None or equal[1:] != head[1:]:
            return None
        more = sort_keys(rest)
        return None if more is None else [key, *more]
    key = _key(order)
    return None if key is None else [key]


def _key(order: Expression) -> SortKey | None:
    words = str(order[0]).split()
    if words[0] != "compare" or words[1] not in ("LT", "GT") or len(order) != 3:
        return None
    is_total = len(words) == 3
    left, plain_left = _plain(cast("Expression", order[1]))
    right, plain_right = _plain(cast("Expression", order[2]))
    numbers = [_number(each) for each in (left, right)]
    if None in numbers or plain_left != plain_right:
        return None
    first, second = cast("list[int]", numbers)
    if first // 2 != second // 2 or first == second:
        return None
    # A comparator of the operands in the other order has the other direction.
    descending = (words[1] == "GT") != (first > second)
    return SortKey(first // 2, descending, is_total and not plain_left)


def _number(made: Expression) -> int | None:
    return int(str(made[1])) if made[0] == "param" else None


def _plain(made: Expression) -> tuple[Expression, bool]:
    """Return the source of a key, and whether zeros and NaN of both signs were made equal.

    JAX does so by `select(x == 0, 0, x)` and `select(x != x, NaN, x)`: the order of PTIR's sort.
    """
    tests: list[tuple[Expression, Expression]] = []
    inner = made
    while inner[0] == "select" and len(inner) == 4:
        test, chosen, rest = (cast("Expression", each) for each in inner[1:])
        tests.append((test, chosen))
        inner = rest
    zeros = nans = False
    for test, chosen in tests:
        is_zero = chosen[0] == "constant" and _is_zero(chosen)
        if is_zero and test == ("compare EQ", inner, chosen):
            zeros = True
        elif chosen[0] == "constant" and not is_zero and test == ("compare NE", inner, inner):
            nans = True
        else:
            return made, False
    return (inner, True) if zeros and nans else (made, False)


def _is_zero(constant: Expression) -> bool:
    return set(str(constant[1]).split()[1]) <= {"0"}


@converts("chlo.top_k")
def top_k(node: Node, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest elements of the last axis by the total order, and their indices."""
    index_type, axis = node.operation.types[1].dtype, x.rank - 1
    count = (node.type.shape or (None,))[-1]
    if count is None:
        node.refuse("returns a number of elements that depends on data")
    keys = total_order(x) if x.dtype.is_float else x
    wanted = dtypes.si64 if index_type is dtypes.si64 else dtypes.si32
    _, indices = primitives.top_k(keys, count, axis, True, wanted)
    found = primitives.gather(x, indices, axis)
    return found, indices if index_type is wanted else primitives.cast(indices, index_type)


def approximate_top_k(node: Node, x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest or smallest elements along an axis, exactly, and their `numbers`."""
    settings = node.operation.attributes.get("mhlo.backend_config")
    called = node.operation.attributes.get("called_computations")
    axis = settings.get("reduction_dim") if isinstance(settings, dict) else None
    count = (node.type.shape or ())[axis] if isinstance(axis, int) else None
    name = str(called[0]) if isinstance(called, list) and called else ""
    block = node.conversion.module.functions.get(name.removeprefix("@"))
    order = None if block is None else expressions(node.conversion.module, block)[0]
    keys = None if order is None else sort_keys(order)
    if not isinstance(axis, int) or count is None or keys is None or len(keys) != 1:
        node.refuse("of `ApproxTopK` does not say which elements it selects")
    is_greatest = keys[0].descending
    _, indices = primitives.top_k(x, count, axis, is_greatest, dtypes.si32)
    return primitives.gather(x, indices, axis), primitives.gather(numbers, indices, axis)


# Random bits by Philox, in XLA's order.


_ALGORITHMS: Final = ("DEFAULT", "PHILOX")
"""The supported algorithms: XLA's default is Philox on CPUs and GPUs."""
_ROUNDS: Final = 10
_FACTORS: Final = (0xD2511F53, 0xCD9E8D57)
_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_LOW: Final = 0xFFFFFFFF


@converts("rng_bit_generator")
def rng_bit_generator(node: Node, state: Tensor, *, rng_algorithm: str) -> list[Tensor]:
    """Return the next state and random bits: a key and a counter, ui64 [2] or [3]."""
    algorithm = rng_algorithm
    if algorithm not in _ALGORITHMS or state.dtype is not dtypes.ui64 or state.shape not in _STATES:
        node.refuse(f"by {algorithm} of a state `{state.type}`: it takes PHILOX of ui64[2]")
    dtype = node.operation.types[1].dtype
    if not dtype.is_integer or dtype.bits < 8:
        node.refuse(f"gives `{dtype}`")
    shape = tuple(dim or 0 for dim in node.operation.types[1].shape or ())
    static_shape(node)
    key, *counter = (_entry(state, index) for index in range(state.shape[0]))
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


def _entry(x: Tensor, index: int) -> Tensor:
    return primitives.reshape(primitives.slice(x, [index], [1]), ())


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the low and the high 32 bits, in 64-bit elements."""
    high = primitives.shift_right_logical(x, filled(32, x))
    return primitives.bit_and(x, filled(_LOW, x)), high


def _counted(low: Tensor, high: Tensor, count: int) -> list[Tensor]:
    """Return the counter and its successors, as four parts [count] of 32 bits."""
    numbers = primitives.iota((count,), 0, dtypes.ui64)
    first = primitives.broadcast_to(low, (count,))
    total = primitives.add(first, numbers)
    carry = primitives.cast(primitives.compare(total, first, "lt"), dtypes.ui64)
    return [*_halves(total), *_halves(primitives.add(filled(high, carry), carry))]


def _philox(x: list[Tensor], key: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Return Philox 4x32-10 of counters (Salmon et al. 2011, Parallel random numbers)."""
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
    """Return the first elements of the blocks of counters in order."""
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
