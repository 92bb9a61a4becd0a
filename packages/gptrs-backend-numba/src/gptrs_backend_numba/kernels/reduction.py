"""Sources of the kernels of `reduce`, `argmax` and `argmin` over strided operands."""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.kernels.registers import (
    cast,
    load,
    rounded,
    store,
    to_accumulator,
    typed_pointer,
)

_REDUCE = """
# {kind} of {operand} kept in {accumulator} from {identity!r}, returned as {result}
def kernel(x, out, geometry):
    G = pointer(geometry, np.int64)
    X, O = {X}, {O}
    count, kept, outer, reduced, n, stride = G[0], G[1], G[2], G[3], G[4], G[5]
    for o in range(count):
        base = offset(G, 6, kept, o)
        total = IDENTITY
        for r in range(outer):
            first = base + offset(G, 6 + 2 * kept, reduced, r)
            if stride == 1:
                for i in range(n):
                    total = {unit}
            else:
                for i in range(n):
                    total = {strided}
        O[o] = {value}
    return 0
"""

_EXTREME = """
# index of the {better} of {operand} as {result}
def kernel(x, out, geometry):
    G = pointer(geometry, np.int64)
    X, O = {X}, {O}
    count, kept, n, stride = G[0], G[1], G[2], G[3]
    for o in range(count):
        base = offset(G, 4, kept, o)
        best = {first}
        at = np.int64(0)
        for i in range(np.int64(1), n):
            x = {next}
            if {condition}:
                best = x
                at = i
        O[o] = at
    return 0
"""


def reduce_source(
    kind: str, identity: float, operand: DType, accumulator: DType, result: DType
) -> str:
    """The kernel of one kind; its global name `IDENTITY` is to be the register of `identity`.

    Geometry: number of results, of kept axes, of rows of reduced elements, of reduced axes besides
    the row; row length and stride; then (size, stride) of each kept and each reduced axis.
    """

    def step(element: str) -> str:
        value = to_accumulator(load(operand, element), operand, accumulator)
        return rounded(accumulator, _combined(kind, accumulator).format(value))

    return _REDUCE.format(
        kind=kind,
        identity=identity,
        operand=operand,
        accumulator=accumulator,
        result=result,
        X=typed_pointer("x", operand),
        O=typed_pointer("out", result),
        unit=step("X[first + i]"),
        strided=step("X[first + i * stride]"),
        value=store(result, cast("total", accumulator, result)),
    )


def _combined(kind: str, dtype: DType) -> str:
    if kind in ("and", "or"):
        return f"bit_{kind}(total, {{}})"
    if kind in ("max", "min"):
        return f"{'float' if dtype.is_float else 'integer'}_{kind}imum(total, {{}})"
    if dtype.is_float:
        return "total + {}" if kind == "sum" else "total * {}"
    return "wrap_add(total, {})" if kind == "sum" else "wrap_mul(total, {})"


def extreme_source(largest: bool, operand: DType, result: DType) -> str:
    """The kernel of `argmax` or `argmin`: the first of equals, the first NaN before all else.

    Geometry: number of results, of kept axes, length and stride of the axis; then (size, stride)
    of each kept axis.
    """

    def element(index: str) -> str:
        value = load(operand, f"X[{index}]")
        return f"convert({value}, np.uint8)" if operand.is_bool else value

    sign = ">" if largest else "<"
    condition = f"x {sign} best"
    if operand.is_float:
        condition += " or (x != x and best == best)"
    return _EXTREME.format(
        better="largest" if largest else "least",
        operand=operand,
        result=result,
        X=typed_pointer("x", operand),
        O=typed_pointer("out", result),
        first=element("base"),
        next=element("base + i * stride"),
        condition=condition,
    )
