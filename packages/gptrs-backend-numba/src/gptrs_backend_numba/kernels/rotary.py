"""Source of the kernel of `rotary`: each row of x turned by its rows of cosines and sines."""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.registers import cast, cast_element, load, rounded, typed_pointer

FLOATS: tuple[DType, ...] = (dtypes.f32, dtypes.bf16, dtypes.f16, dtypes.f64)
"""The element types of rows; their tables have the same, or f32."""

# The places along the axes are counted up: to divide for each row would take as long as the row.
_ROTARY = """
# rotary of {dtype} by tables of {table}
def kernel(x, cosines, out, geometry, task):
    G = pointer(geometry, np.int64)
    X, C, S, O = {X}, {C}, {S}, {O}
    height, width = G[4], G[5]
    block, half, kept = G[15], G[16], G[17]
    n = 2 * half + kept
    first = task * block
    i = quotient(first, height * width)
    j = quotient(first, width) - i * height
    k = first - (i * height + j) * width
    for row in range(first, min(G[3] * height * width, first + block)):
        x0 = i * G[6] + j * G[7] + k * G[8]
        c0 = i * G[9] + j * G[10] + k * G[11]
        s0 = i * G[12] + j * G[13] + k * G[14]
        o0 = row * n
{turn}
        for r in range(2 * half, n):
            O[o0 + r] = X[x0 + r]
        k += 1
        if k == width:
            k = 0
            j += 1
            if j == height:
                j = 0
                i += 1
    return 0
"""

# A loop for each half, since one of two results must first find out whether they overlap.
_HALVES = """
        x1, o1 = x0 + half, o0 + half
        for r in range(half):
            a, b, c, s = {a}, {b}, {c}, {s}
            O[o0 + r] = {first}
        for r in range(half):
            a, b, c, s = {a}, {b}, {c}, {s}
            O[o1 + r] = {second}
"""
_NEIGHBOURS = """
        for r in range(half):
            a, b, c, s = {a}, {b}, {c}, {s}
            O[o0 + 2 * r] = {first}
            O[o0 + 2 * r + 1] = {second}
"""


def rotary_source(dtype: DType, table: DType, *, interleaved: bool) -> str:
    """Rows of `dtype` turned in the type of the tables, with each step rounded to it.

    Geometry: the address of the sines, and of nothing twice; the sizes of the three axes of rows;
    the steps of x along them in elements, of the cosines, of the sines; rows a task, pairs,
    components that are kept. The result is contiguous.
    """

    def component(place: str) -> str:
        return cast(load(dtype, f"X[{place}]"), dtype, table)

    def combined(left: str, sign: str, right: str) -> str:
        products = f"{rounded(table, left)} {sign} {rounded(table, right)}"
        if dtype is table:
            return cast_element(products, table, dtype)  # which rounds it
        return cast_element(rounded(table, products), table, dtype)

    places = ("x0 + 2 * r", "x0 + 2 * r + 1") if interleaved else ("x0 + r", "x1 + r")
    turn = (_NEIGHBOURS if interleaved else _HALVES).format(
        a=component(places[0]),
        b=component(places[1]),
        c=load(table, "C[c0 + r]"),
        s=load(table, "S[s0 + r]"),
        first=combined("a * c", "-", "b * s"),
        second=combined("b * c", "+", "a * s"),
    )
    return _ROTARY.format(
        dtype=dtype,
        table=table,
        X=typed_pointer("x", dtype),
        C=typed_pointer("cosines", table),
        S=typed_pointer("G[0]", table),
        O=typed_pointer("out", dtype),
        turn=turn,
    )
