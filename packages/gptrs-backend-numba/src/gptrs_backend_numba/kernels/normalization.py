"""Source of the kernel of `layer_norm`: the lines of a tensor along its axis."""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.deferred import register_jitable
from gptrs_backend_numba.codegen.registers import cast, cast_element, load, register, typed_pointer

_LAYER_NORM = """
# {dtype}, epsilon {epsilon!r}
def kernel(x, affine, out, geometry, task):
    G = pointer(geometry, np.int64)
    X, W, O = {X}, {W}, {O}
    lines, block, n, step, inner, rank = G[0], G[1], G[2], G[3], G[4], G[5]
    held = np.empty(n, {register})
    H = pointer(held.ctypes.data, {register})
    count = convert(n, {register})
    for line in range(task * block, min(lines, (task + 1) * block)):
        source = offset(G, 6, rank, line)
        outer = line // inner
        target = outer * n * inner + line - outer * inner
        if step == 1:
            for i in range(n):
                H[i] = {unit}
        else:
            for i in range(n):
                H[i] = {strided}
        first = H[0]  # taken off before anything is rounded: what does not vary gives exactly 0
        for i in range(n):
            H[i] = H[i] - first
        mean = divide(sum_of(H, n), count)
        for i in range(n):
            H[i] = H[i] - mean
        scale = divide({register}(1), square_root(divide(sum_of_squares(H, n), count) + EPSILON))
        if inner == 1:
            for i in range(n):
                O[target + i] = {value}
        else:
            for i in range(n):
                O[target + i * inner] = {value}
    held[0] = 0  # known to the loops by address only
    return 0
"""


def layer_norm_source(dtype: DType, epsilon: float) -> str:
    """Two passes over each line in f32 or f64; `affine` is the scale, then the bias.

    `EPSILON` is a global name, the register of `epsilon`. Geometry: number of lines, lines a task,
    length, stride; how many elements follow the axis in the result; number of axes of lines and
    (size, stride) of each.
    """
    wide = dtype.accumulator

    def loaded(element: str) -> str:
        return cast(load(dtype, element), dtype, wide)

    value = f"H[i] * scale * {loaded('W[i]')} + {loaded('W[n + i]')}"
    return _LAYER_NORM.format(
        dtype=dtype,
        epsilon=epsilon,
        register=register(wide),
        X=typed_pointer("x", dtype),
        W=typed_pointer("affine", dtype),
        O=typed_pointer("out", dtype),
        unit=loaded("X[source + i]"),
        strided=loaded("X[source + i * step]"),
        value=cast_element(value, wide, dtype),
    )


# In any order, so that they vectorize: the same one for the same length, however many threads.
@register_jitable(fastmath={"reassoc"})
def sum_of(elements, count):
    """The sum of the first `count` elements, at least 1."""
    total = elements[0]
    for i in range(1, count):
        total += elements[i]
    return total


@register_jitable(fastmath={"reassoc"})
def sum_of_squares(elements, count):
    """The sum of the squares of the first `count` elements, at least 1."""
    total = elements[0] * elements[0]
    for i in range(1, count):
        total += elements[i] * elements[i]
    return total


NORM_NAMES: dict[str, object] = {"sum_of": sum_of, "sum_of_squares": sum_of_squares}
"""Additional names of the source."""
