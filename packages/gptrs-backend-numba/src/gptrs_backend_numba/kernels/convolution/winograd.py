"""Sources of the kernels of Winograd's algorithms: images into tiles, sums of tiles into results.

Between the two, 16 or 36 independent products are computed by the tiles of `kernels.convolution`.
What lies outside of an image is read from a line of zeros, and results outside are written to a
line that nobody reads.
"""

from __future__ import annotations

from gptrs_backend_numba.kernels.convolution.direct import COMMON, placed

FIELDS = (
    *COMMON,
    "H", "W", "C", "TOP", "LEFT",  # the image and the padding before it
    "OH", "OW",
    "DOWN", "ACROSS",  # tiles of an image
    "FIRST", "COUNT", "COUNT_A_TASK",  # tiles of this call
)  # fmt: skip

_BEFORE = placed(
    """
def kernel(x, nothing, out, geometry, task):
    G = pointer(geometry, np.int64)
    line, count = 4 * G[C], G[COUNT]
    table = np.empty(SEEN * SEEN, np.int64)
    for tile in range(task * G[COUNT_A_TASK], min((task + 1) * G[COUNT_A_TASK], count)):
        row = (G[FIRST] + tile) // G[ACROSS]
        image = row // G[DOWN]
        top = SIDE * (row - image * G[DOWN]) - G[TOP]
        left = SIDE * (G[FIRST] + tile - row * G[ACROSS]) - G[LEFT]
        for i in range(SEEN):
            for j in range(SEEN):
                at = G[EXTRA]
                if 0 <= top + i < G[H] and 0 <= left + j < G[W]:
                    at = x + ((image * G[H] + top + i) * G[W] + left + j) * line
                table[SEEN * i + j] = at
        winograd_before_SIDE(table.ctypes.data, out + tile * line, count * line, G[C])
    table[0] = 0  # known to the transform by address only
    return 0
""",
    FIELDS,
)


_AFTER = placed(
    """
def kernel(sums, nothing, out, geometry, task):
    G = pointer(geometry, np.int64)
    line, count = 4 * G[C], G[COUNT]
    table = np.empty(2 * SIDE * SIDE, np.int64)
    unread = np.zeros(G[C], np.float32)
    nowhere = unread.ctypes.data
    for tile in range(task * G[COUNT_A_TASK], min((task + 1) * G[COUNT_A_TASK], count)):
        row = (G[FIRST] + tile) // G[ACROSS]
        image = row // G[DOWN]
        top = SIDE * (row - image * G[DOWN])
        left = SIDE * (G[FIRST] + tile - row * G[ACROSS])
        for i in range(SIDE):
            for j in range(SIDE):
                at, residual = nowhere, nowhere
                if top + i < G[OH] and left + j < G[OW]:
                    place = ((image * G[OH] + top + i) * G[OW] + left + j) * line
                    at, residual = out + place, G[RESIDUAL] + place
                position = SIDE * i + j
                table[position], table[SIDE * SIDE + position] = at, residual
        addresses = table.ctypes.data
        residuals = addresses + 8 * SIDE * SIDE if G[RESIDUAL] else 0
        winograd_after_SIDE(sums + tile * line, count * line, G[C], G[SCALE], G[SHIFT], residuals,
                       G[BOUNDS], addresses)
    table[0], unread[0] = 0, 0  # known to the transform by address only
    return 0
""",
    FIELDS,
)


def before_source(side: int) -> str:
    """Some tiles of images, for `side` x `side` results each, into matrices (tile, channel)."""
    return _sized(_BEFORE, side)


def after_source(side: int) -> str:
    """Matrices of sums (tile, channel) into results."""
    return _sized(_AFTER, side)


def _sized(source: str, side: int) -> str:
    return source.replace("SIDE", str(side)).replace("SEEN", str(side + 2))
