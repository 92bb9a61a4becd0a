"""Sources of the kernels of `reduce`, `argmax` and `argmin` over strided operands."""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.keys import key, key_pointer
from gptrs_backend_numba.codegen.registers import (
    cast_element,
    load,
    rounded,
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
            key = {next}
            if key {sign} best:
                best = key
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
        return rounded(accumulator, combined(kind, accumulator, "total", value))

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
        value=cast_element("total", accumulator, result),
    )


def combined(kind: str, dtype: DType, total: str, value: str) -> str:
    """Source of what a reduction of `kind` makes of two register values, before rounding."""
    if kind in ("and", "or"):
        return f"bit_{kind}({total}, {value})"
    if kind in ("max", "min"):
        return f"{'float' if dtype.is_float else 'integer'}_{kind}imum({total}, {value})"
    if dtype.is_integer:
        return f"wrap_add({total}, {value})" if kind == "sum" else f"wrap_mul({total}, {value})"
    return f"{total} + {value}" if kind == "sum" else f"{total} * {value}"


def extreme_source(largest: bool, operand: DType, result: DType) -> str:
    """The kernel of `argmax` or `argmin`: the first of equals, the first NaN before all else.

    Geometry: number of results, of kept axes, length and stride of the axis; then (size, stride)
    of each kept axis.
    """

    def element(index: str) -> str:
        return key(operand, f"X[{index}]", nan_is_least=not largest)

    return _EXTREME.format(
        better="largest" if largest else "least",
        operand=operand,
        result=result,
        X=key_pointer("x", operand),
        O=typed_pointer("out", result),
        first=element("base"),
        next=element("base + i * stride"),
        sign=">" if largest else "<",
    )
