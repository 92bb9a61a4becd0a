"""Sources of the kernels that read or write at positions given by a tensor of int64.

They move elements without looking at them, so there is one for each width in bytes.
"""

from __future__ import annotations

from gptrs_backend_numba.codegen.registers import element

_TAKE = """
def kernel(x, indices, out, geometry):
    G = pointer(geometry, np.int64)
    X, I, O = pointer(x, TYPE), pointer(indices, np.int64), pointer(out, TYPE)
    count, limit, row_stride, outer, rank, n, stride = G[0], G[1], G[2], G[3], G[4], G[5], G[6]
    for i in range(count):
        if I[i] < 0 or I[i] >= limit:
            return 1
    o = np.int64(0)
    for i in range(count):
        for r in range(outer):
            first = I[i] * row_stride + offset(G, 7, rank, r)
            if stride == 1:
                for j in range(n):
                    O[o + j] = X[first + j]
            else:
                for j in range(n):
                    O[o + j] = X[first + j * stride]
            o += n
    return 0
"""

_GATHER = """
def kernel(x, indices, out, geometry):
    G = pointer(geometry, np.int64)
    X, I, O = pointer(x, TYPE), pointer(indices, np.int64), pointer(out, TYPE)
    count, limit, axis_stride, rank = G[0], G[1], G[2], G[3]
    for i in range(count):
        if I[i] < 0 or I[i] >= limit:
            return 1
    for i in range(count):
        O[i] = X[offset(G, 4, rank, i) + I[i] * axis_stride]
    return 0
"""

_MOVE = """
# a block whose place in the {moving} is given at run time
def kernel(source, starts, target, geometry):
    G = pointer(geometry, np.int64)
    S, T, I = pointer(source, TYPE), pointer(target, TYPE), pointer(starts, np.int64)
    rank, outer, n = G[0], G[1], G[2]
    shift = np.int64(0)
    for axis in range(rank):
        shift += min(max(I[axis], 0), G[3 + 2 * axis]) * G[4 + 2 * axis]
    at = 3 + 2 * rank
    s_stride, t_stride = G[at], G[at + 1]
    at += 2
    for r in range(outer):
        s = {s_shift}offset(G, at, rank - 1, r)
        t = {t_shift}offset(G, at + 2 * (rank - 1), rank - 1, r)
        if s_stride == 1 and t_stride == 1:
            for j in range(n):
                T[t + j] = S[s + j]
        else:
            for j in range(n):
                T[t + j * t_stride] = S[s + j * s_stride]
    return 0
"""


def take_source(width: int) -> str:
    """Rows by number; returns 1, before it reads any, when an index is out of range.

    Geometry: number of indices, of rows of `x`, stride between rows; then what a row consists of:
    number of runs, of axes besides the run, length and stride of a run; (size, stride) of each of
    these axes.
    """
    return _typed(_TAKE, width)


def gather_source(width: int) -> str:
    """Elements by index along one axis; returns 1 like `take` when an index is out of range.

    Geometry: number of indices, size and stride of the axis, number of axes; (size, stride) of
    each axis, 0 as the stride of the one that the indices replace.
    """
    return _typed(_GATHER, width)


def move_source(width: int, *, into: bool) -> str:
    """Copy a block into (`into`) or out of a larger tensor at clamped starts, one an axis.

    Geometry: number of axes (at least 1), of runs, length of a run; (greatest start, stride) of
    each axis of the larger tensor; strides of the run in source and target; (size, stride) of each
    axis but the last in the source, then in the target.
    """
    return _typed(
        _MOVE.format(
            moving="target" if into else "source",
            s_shift="" if into else "shift + ",
            t_shift="shift + " if into else "",
        ),
        width,
    )


def _typed(source: str, width: int) -> str:
    return source.replace("TYPE", element(width))
