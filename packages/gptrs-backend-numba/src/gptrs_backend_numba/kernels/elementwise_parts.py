"""Elementwise kernels in parts: compiled loops of one op each over blocks that stay in the cache.

A chain of ops has a kernel of its own, which takes LLVM a tenth of a second and more to compile.
Until that is there, one compiled task runs any chain: it brings a block of each operand into a
dense piece of memory, has the kernel of each op compute a dense block from others, and takes the
last one to where the result lies. Kernels of ops are those of `elementwise.whole_kernel` for dense
operands of one axis. Each op is rounded as in the fused kernel, so results have the same bits.
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.elements import bits_of_width
from gptrs_backend_numba.codegen.interpreter import invoke
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import keep_alive, offset, pointer
from gptrs_backend_numba.codegen.tasks import share_tasks
from gptrs_backend_numba.kernels.elementwise_tasks import OTHERS

BLOCK = 1024
"""Elements of a block. To call a kernel takes about 10 ns, as 200 sums do; 8 blocks of f32 fill the
L1 cache."""
FAILED, SIZE, TASK, RANK, INPUTS, STEPS, REGISTERS, ROOM = range(OTHERS, OTHERS + 8)
"""Words of a geometry, after room for addresses: whether an op failed, elements in all and a task,
axes, operands, ops, registers, bytes of all pieces of memory."""
HEAD = OTHERS + 8
"""Words before the tensors: operands, then the result."""
TENSOR = 4
"""Words of a tensor before (size, stride) of each axis: how it is read, bytes of an element, its
piece of memory, and the kernel that moves its elements."""
STEP = 7
"""Words of an op: its kernel, how many operands, their registers (3), that of the result, and its
piece of memory, -1 for that of the last op."""
DENSE, STRIDED, ONE = range(3)
"""How a tensor is read: where it lies, moved block by block, or as one element, moved once."""
_LINE = 64


@kernel
def gather_block(x, out, axes, rank, first, count, *, BITS):
    """Move elements `first` and on of a strided tensor to dense memory; axes are (size, stride)."""
    A, X, O = pointer(axes, np.int64), pointer(x, BITS), pointer(out, BITS)
    n, step = A[2 * rank - 2], A[2 * rank - 1]
    row = first // n
    column = first - row * n
    done = np.int64(0)
    while done < count:
        base = offset(A, 0, rank - 1, row) + column * step
        width = min(n - column, count - done)
        if step == 1:
            for i in range(width):
                O[done + i] = X[base + i]
        elif step == 0:
            value = X[base]
            for i in range(width):
                O[done + i] = value
        else:
            for i in range(width):
                O[done + i] = X[base + i * step]
        done += width
        row += 1
        column = np.int64(0)
    return 0


@kernel
def scatter_block(x, out, axes, rank, first, count, *, BITS):
    """Move dense elements to a strided tensor, from index `first` on, see `gather_block`."""
    A, X, O = pointer(axes, np.int64), pointer(x, BITS), pointer(out, BITS)
    n, step = A[2 * rank - 2], A[2 * rank - 1]
    row = first // n
    column = first - row * n
    done = np.int64(0)
    while done < count:
        base = offset(A, 0, rank - 1, row) + column * step
        width = min(n - column, count - done)
        if step == 1:
            for i in range(width):
                O[base + i] = X[done + i]
        else:
            for i in range(width):
                O[base + i * step] = X[done + i]
        done += width
        row += 1
        column = np.int64(0)
    return 0


@kernel_part
def place_pieces(G, R, A, arguments, geometry, first, a, b, begin, end):
    """Give each register its piece of memory, and fill those of operands that are one element."""
    rank, inputs = G[RANK], G[INPUTS]
    words = TENSOR + 2 * rank
    for t in range(inputs):
        at = HEAD + t * words
        R[t] = first + G[at + 2]
        if G[at] == ONE:
            A[0] = a if t == 0 else (b if t == 1 else G[t - 2])
            A[1], A[2], A[3], A[4] = R[t], geometry + 8 * (at + TENSOR), rank, begin
            A[5] = min(end - begin, np.int64(BLOCK))
            invoke(G[at + 3], arguments, 6)
    result = HEAD + inputs * words
    for s in range(G[STEPS]):
        at = result + words + s * STEP
        R[G[at + 5]] = first + G[at + 6]
    R[G[REGISTERS] - 1] = first + G[result + 2]


@kernel_part
def read_block(G, R, A, arguments, geometry, a, b, position, count):
    """Have the registers of all operands hold or point to a block."""
    rank, inputs = G[RANK], G[INPUTS]
    for t in range(inputs):
        at = HEAD + t * (TENSOR + 2 * rank)
        source = a if t == 0 else (b if t == 1 else G[t - 2])
        if G[at] == DENSE:
            R[t] = source + G[at + 1] * position
        elif G[at] == STRIDED:
            # Where nothing is computed, elements go straight to the result.
            A[0], A[1] = source, R[t] if G[STEPS] > 0 else R[G[REGISTERS] - 1]
            A[2], A[3], A[4], A[5] = geometry + 8 * (at + TENSOR), rank, position, count
            invoke(G[at + 3], arguments, 6)


@kernel
def parts_task(a, b, out, geometry, task):
    """Compute the elements of a task, block by block."""
    G = pointer(geometry, np.int64)
    rank, steps, last = G[RANK], G[STEPS], G[REGISTERS] - 1
    pieces = np.empty(G[ROOM] + _LINE, np.uint8)
    first = (np.int64(pieces.ctypes.data) + _LINE - 1) // _LINE * _LINE
    held = np.empty(last + 9, np.int64)
    start = np.int64(held.ctypes.data)
    arguments = start + 8 * (last + 1)
    R, A = pointer(start, np.int64), pointer(arguments, np.int64)
    result = HEAD + G[INPUTS] * (TENSOR + 2 * rank)
    begin, end = task * G[TASK], min(G[SIZE], (task + 1) * G[TASK])
    place_pieces(G, R, A, arguments, geometry, first, a, b, begin, end)
    failed = np.int64(0)
    for position in range(begin, end, BLOCK):
        count = min(end - position, np.int64(BLOCK))
        if G[result] == DENSE:
            R[last] = out + G[result + 1] * position
        read_block(G, R, A, arguments, geometry, a, b, position, count)
        for s in range(steps):
            at = result + TENSOR + 2 * rank + s * STEP
            operands = G[at + 1]
            for i in range(operands):
                A[i] = R[G[at + 2 + i]]
            A[operands], A[operands + 1] = R[G[at + 5]], arguments + 56
            A[7] = count
            failed |= invoke(G[at], arguments, operands + 2)
        if G[result] != DENSE:
            A[0], A[1] = R[0] if steps == 0 and G[HEAD] == DENSE else R[last], out
            A[2], A[3] = geometry + 8 * (result + TENSOR), rank
            A[4], A[5] = position, count
            invoke(G[result + 3], arguments, 6)
    if failed != 0:
        G[FAILED] = 1
    keep_alive(pieces)
    keep_alive(held)
    return 0


@kernel
def run_parts(
    state, function, count, threads, a, b, c, d, e, f, g, h, i, j, out, geometry
):  # fmt: skip
    """Run the tasks of a chain; return 1 if an op failed. Operands it does not have are any."""
    G = pointer(geometry, np.int64)
    G[0], G[1], G[2], G[3], G[4], G[5], G[6], G[7] = c, d, e, f, g, h, i, j
    G[FAILED] = 0
    share_tasks(state, function, count, threads, a, b, out, geometry)
    return G[FAILED]


def gather(width: int) -> SpecializedKernel:
    """Return the kernel that reads elements of `width` bytes."""
    return gather_block.specialize(BITS=bits_of_width(width))


def scatter(width: int) -> SpecializedKernel:
    """Return the kernel that writes elements of `width` bytes."""
    return scatter_block.specialize(BITS=bits_of_width(width))
