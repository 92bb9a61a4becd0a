"""Panels of products that are decoded from quantized weights where they are multiplied.

A task decodes a block of a panel into memory of its own, which stays in the L1 or L2 cache while
all its tiles pass by. The weight (rows, columns) is read in place; groups lie along columns. Its
rows are the columns of the product, or are summed over: the product with its transpose.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import load_of, memory_of
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import keep_alive, pointer
from gptrs_backend_numba.codegen.tasks import share_tasks
from gptrs_backend_numba.kernels.matmul.bf16_ir import STEP
from gptrs_backend_numba.kernels.matmul.decoding_ir import decode_pairs, decode_rounded, decode_run
from gptrs_backend_numba.kernels.matmul.gemm import BIAS, LENGTH, RESIDUAL, SUMS
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, transpose

# The numbers that follow those of a product without batch axes: addresses, filled in by the call;
# bytes of the codes of a row; groups of a row, columns of a group; scales of groups of a row, and
# groups that share one; the zero of codes; and the values of a table, which codes are indices into.


(
    CODES, SCALE, SUPER_SCALE, OFFSET, SUPER_OFFSET,
    ROW_BYTES, GROUPS, GROUP, SUPER_GROUPS, SUPER_GROUP, ZERO, TABLE,
) = range(LENGTH, LENGTH + 12)  # fmt: skip


@kernel
def run_decoded(
    state, function, count, threads, left, codes, scale, super_scale, offset, super_offset, bias,
    residual, sums, out, geometry,
):  # fmt: skip
    """Run the tasks of a product; absent operands may be any address."""
    G = pointer(geometry, np.int64)
    G[BIAS], G[RESIDUAL], G[SUMS] = bias, residual, sums
    G[CODES], G[SCALE], G[SUPER_SCALE] = codes, scale, super_scale
    G[OFFSET], G[SUPER_OFFSET] = offset, super_offset
    share_tasks(state, function, count, threads, left, codes, out, geometry)
    return 0


@kernel_part
def plain_parameter(address, above, at, at_above, *, MEMORY, load):
    """Return the scale or offset of a group."""
    P = pointer(address, MEMORY)
    value = np.float32(load(P[at]))
    return value


@kernel_part
def scaled_parameter(address, above, at, at_above, *, MEMORY, load, MEMORY_ABOVE, load_above):
    """Return the scale or offset of a group, times that of several groups."""
    P, A = pointer(address, MEMORY), pointer(above, MEMORY_ABOVE)
    value = np.float32(load(P[at])) * np.float32(load_above(A[at_above]))
    return value


@kernel_part
def no_parameter(address, above, at, at_above):
    """Return 0."""
    value = np.float32(0)
    return value


@kernel_part
def fixed_zero(G, at):
    """Return the zero of all codes."""
    zero = G[ZERO]
    return zero


@kernel_part
def zero_of_group(G, at):
    """Return the zero point of a group."""
    Z = pointer(G[OFFSET], np.int32)
    zero = np.int64(Z[at])
    return zero


@kernel_part
def codes_in_place(G, row, column, memory, *, BITS):
    """Return the address of the codes of a run, of 4 or 8 bits."""
    address = G[CODES] + row * G[ROW_BYTES] + column * BITS // 8
    return address


@kernel_part
def unpacked_codes(G, row, column, memory, *, BITS, RUN, LOOKED_UP):
    """Return the address of the codes of a run, or of values of the table, a byte each."""
    C, B = pointer(G[CODES] + row * G[ROW_BYTES], np.uint8), pointer(memory, np.uint8)
    for i in range(RUN):
        bit = (column + i) * BITS
        code = np.int64(C[bit // 8]) >> (bit % 8)
        if bit % 8 + BITS > 8:
            code |= np.int64(C[bit // 8 + 1]) << (8 - bit % 8)
        code &= (1 << BITS) - 1
        if LOOKED_UP:
            code = G[TABLE + code] & 255
        B[i] = code
    return memory


@kernel_part
def facts_of_run(G, row, group, above, *, zero_of, scale_of, offset_of):
    """Return the zero, the scale and the offset of a run."""
    at, at_above = row * G[GROUPS] + group, row * G[SUPER_GROUPS] + above
    zero = zero_of(G, at)
    scale = scale_of(G[SCALE], G[SUPER_SCALE], at, at_above)
    offset = offset_of(G[OFFSET], G[SUPER_OFFSET], at, at_above)
    return zero, scale, offset


@kernel
def decode_along_k(
    source, target, width, length, rn, rk, geometry, panel, begin,
    *, RUN, SIZE, facts_of_run, codes_of_run, decode, transpose,
):  # fmt: skip
    """Decode `length` values of k from `begin` on of a panel, whose columns are rows of the weight.

    Values have `SIZE` bytes. Those of bf16 are pairs of values of k, padded to whole steps.
    """
    G = pointer(geometry, np.int64)
    held = np.zeros(PANEL * STEP + 16, np.float32)
    memory = np.int64(held.ctypes.data)
    room, row_bytes = memory + 4 * PANEL * STEP, SIZE * STEP
    for near in range(0, length, STEP):
        some = min(STEP, length - near)
        if some < STEP:
            for i in range(PANEL * STEP):
                held[i] = 0
        for run in range(0, some, RUN):
            column = begin + near + run
            group = column // G[GROUP]
            above = group // G[SUPER_GROUP]
            for j in range(width):
                row = panel * PANEL + j
                zero, scale, offset = facts_of_run(G, row, group, above)
                codes = codes_of_run(G, row, column, room)
                decode(codes, zero, scale, offset, memory + row_bytes * j + SIZE * run)
        words = STEP // 2 if SIZE == 2 else some
        block = target + SIZE * PANEL * near
        for j in range(0, PANEL, 4):
            for i in range(0, words, 4):
                transpose(memory + row_bytes * j + 4 * i, row_bytes,
                          block + 4 * (PANEL * i + j), 4 * PANEL)  # fmt: skip
    keep_alive(held)
    return 0


@kernel
def decode_along_n(
    source, target, width, length, rn, rk, geometry, panel, begin,
    *, RUN, facts_of_run, codes_of_run, decode,
):  # fmt: skip
    """Decode `length` values of k from `begin` on of a panel, whose columns are the weight's."""
    G = pointer(geometry, np.int64)
    held = np.zeros(RUN, np.uint8)
    room = np.int64(held.ctypes.data)
    T = pointer(target, np.float32)
    if width < PANEL:
        for i in range(length * PANEL):
            T[i] = 0
    for run in range(0, width, RUN):
        column = panel * PANEL + run
        group = column // G[GROUP]
        above = group // G[SUPER_GROUP]
        for i in range(length):
            zero, scale, offset = facts_of_run(G, begin + i, group, above)
            codes = codes_of_run(G, begin + i, column, room)
            decode(codes, zero, scale, offset, target + 4 * (PANEL * i + run))
    keep_alive(held)
    return 0


@kernel
def decode_pairs_along_n(
    source, target, width, length, rn, rk, geometry, panel, begin,
    *, RUN, facts_of_run, codes_of_run, decode,
):  # fmt: skip
    """The same in bf16, in pairs of values of k, padded with zeros to whole steps."""
    G = pointer(geometry, np.int64)
    held = np.zeros(2 * RUN, np.uint8)
    room = np.int64(held.ctypes.data)
    T = pointer(target, np.float32)
    if width < PANEL or length % STEP:
        for i in range((length + STEP - 1) // STEP * STEP // 2 * PANEL):
            T[i] = 0
    for run in range(0, width, RUN):
        column = panel * PANEL + run
        group = column // G[GROUP]
        above = group // G[SUPER_GROUP]
        for i in range(0, length, 2):
            row = begin + i
            zero, scale, offset = facts_of_run(G, row, group, above)
            codes = codes_of_run(G, row, column, room)
            other = row + 1 if i + 1 < length else row
            zero_2, scale_2, offset_2 = facts_of_run(G, other, group, above)
            codes_2 = codes_of_run(G, other, column, room + RUN)
            if other == row:
                scale_2, offset_2 = np.float32(0), np.float32(0)
            decode(codes, zero, scale, offset, codes_2, zero_2, scale_2, offset_2,
                   target + 4 * (PANEL * i // 2 + run))  # fmt: skip
    keep_alive(held)
    return 0


class DecodedForm(Struct, frozen=True):
    """How a weight is quantized: the bits of codes, and the types of its parameters.

    `run` values of a row have the same parameters. `offset` is added, or, of type si32, it is the
    zero of the codes of a group.
    """

    bits: int
    signed: bool
    looked_up: bool
    run: int
    scale: DType
    super_scale: DType | None = None
    offset: DType | None = None
    super_offset: DType | None = None

    @property
    def _has_zeros(self) -> bool:
        return self.offset is dtypes.si32

    def decoding(self, *, along_k: bool, rounded: bool) -> SpecializedKernel:
        """Return the packing of a block of a panel, for the field `PACK`: f32, or bf16 in pairs."""
        run = self.run if along_k else min(self.run, PANEL)
        in_place = self.bits in (4, 8) and not self.looked_up
        signed = self.signed or self.looked_up
        biased = self.offset is not None and not self._has_zeros
        form = run, self.bits if in_place else 8, signed, biased
        shared = {
            "RUN": run,
            "facts_of_run": self._facts(),
            "codes_of_run": codes_in_place.specialize(BITS=self.bits)
            if in_place
            else unpacked_codes.specialize(BITS=self.bits, RUN=run, LOOKED_UP=self.looked_up),
        }
        if along_k:
            decode = decode_rounded(*form) if rounded else decode_run(*form)
            size = 2 if rounded else 4
            return decode_along_k.specialize(
                **shared, SIZE=size, decode=decode, transpose=transpose(4)
            )
        if rounded:
            return decode_pairs_along_n.specialize(**shared, decode=decode_pairs(*form))
        return decode_along_n.specialize(**shared, decode=decode_run(*form))

    def _facts(self) -> SpecializedKernel:
        offset = no_parameter.specialize()
        if self.offset is not None and not self._has_zeros:
            offset = _parameter(self.offset, self.super_offset)
        return facts_of_run.specialize(
            zero_of=(zero_of_group if self._has_zeros else fixed_zero).specialize(),
            scale_of=_parameter(self.scale, self.super_scale),
            offset_of=offset,
        )


def _parameter(dtype: DType, above: DType | None) -> SpecializedKernel:
    bindings = {"MEMORY": memory_of(dtype), "load": load_of(dtype)}
    if above is None:
        return plain_parameter.specialize(**bindings)
    return scaled_parameter.specialize(
        **bindings, MEMORY_ABOVE=memory_of(above), load_above=load_of(above)
    )
