"""The second tier of elementwise kernels: parts that are compiled stand in for a fused kernel.

A chain whose fused kernel no store has runs on parts at once, if these are compiled: those of all
ops and types are in the packs that wheels have. A program that runs again has the fused kernel
compiled beside it, and goes over to it when it is there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from gptrs.disk_cache import CachePart, Entries
from gptrs.errors import ProgramError, UsageError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import OPS, Op
from gptrs.ir.ops import elementwise as ops
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted
from gptrs_backend_numba.codegen.compiled import WantedKernel, known, stored
from gptrs_backend_numba.codegen.elements import Unary
from gptrs_backend_numba.codegen.kernel import KernelFunction, SpecializedKernel
from gptrs_backend_numba.codegen.kernel_pack import kernel_pack
from gptrs_backend_numba.codegen.machine_code import Kernel
from gptrs_backend_numba.compiling.workers import compiles_beside
from gptrs_backend_numba.kernels import elementwise, elementwise_tasks
from gptrs_backend_numba.kernels import elementwise_parts as kernels
from gptrs_backend_numba.kernels.elementwise import Access, Operation
from gptrs_backend_numba.passes.elementwise_groups import ELEMENTWISE

VARIABLE = "GPTRS_NUMBA_PARTS"
"""Whether chains run on parts: `0` never, `only` always; by default until they are compiled."""
ELEMENTS_A_TASK = 16_384
"""As of fused kernels."""
_LINE = 64
_MOST_OPERANDS = 3

Axes = Sequence[tuple[int, Sequence[int]]]
"""Sizes, outermost first, each with the stride of each operand and of the result."""
Use = Literal["never", "meanwhile", "only"]
_ALLOWED: ContextVar[bool] = ContextVar("gptrs_numba_parts_allowed", default=True)


@contextmanager
def whole_kernels() -> Generator[None]:
    """Scope in which each chain is lowered to its own kernel: a library cannot go over to it."""
    token = _ALLOWED.set(False)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def use_of_parts() -> Use:
    """Return what `GPTRS_NUMBA_PARTS` says; UsageError if it is none of its values."""
    given = os.environ.get(VARIABLE, "")
    found: dict[str, Use] = {"": "meanwhile", "0": "never", "only": "only"}
    if given not in found:
        raise UsageError(
            f"`{VARIABLE}` must be 0 or only, got {quoted(given)}",
            hint="unset it to use parts until a kernel is compiled",
        )
    return found[given]


def parts_report() -> list[CachePart]:
    """Return how many parts the pack has, for `gptrs cache`; nothing without a pack."""
    pack = kernel_pack()
    count = 0 if pack is None else sum(pack.has(each.key) for each in all_parts())
    if not count:
        return []
    if use_of_parts() == "never" or not compiles_beside():
        reason = f"`{VARIABLE}=0`" if use_of_parts() == "never" else "nothing is compiled beside"
        return [CachePart(f"parts of chains are not used: {reason}", False, Entries(count))]
    return [CachePart("chains until their own kernel is compiled", True, Entries(count))]


class StandIn(Struct, frozen=True):
    """A call that computes what a fused kernel does, on the same tensors, until that is there."""

    kernel: Kernel
    leading: tuple[int, ...]
    """Arguments before the addresses: the task function, the number of tasks, and threads."""
    geometry: tuple[int, ...]
    wanted: WantedKernel
    """The fused kernel."""


def stand_in(
    axes: Axes,
    accesses: Sequence[Access],
    operations: Sequence[Operation],
    wanted: WantedKernel,
    threads: int,
) -> StandIn | None:
    """Return the call for a chain of ops; None where it has to be compiled.

    `accesses` are those of the operands, then that of the result; the last op computes it.
    """
    use = use_of_parts() if _ALLOWED.get() else "never"
    if len(accesses) - 1 > elementwise_tasks.MOST_INPUTS or use == "never":
        return None
    if use == "meanwhile" and not compiles_beside():
        return None
    try:
        chain = _Chain(axes, accesses, operations, compile_parts=use == "only")
        run, task = (chain.found(each) for each in (kernels.run_parts, kernels.parts_task))
        geometry = chain.geometry()
    except _NoPartError:
        return None
    count = -(-chain.size // ELEMENTS_A_TASK)
    return StandIn(run, (task.address, count, threads), tuple(geometry), wanted)


def part_of(operation: Operation) -> WantedKernel | None:
    """Return the kernel of an op on dense blocks; None for most with a function of their own."""
    function = operation.function
    if function not in (None, elementwise.GELU) or len(operation.operands) > _MOST_OPERANDS:
        return None
    operands = tuple(dtype for _, dtype in operation.operands)
    return _part(operation.op, operands, operation.result, operation.power, function)


@lru_cache(maxsize=1024)
def _part(
    op: Op,
    operands: tuple[DType, ...],
    result: DType,
    power: int | None,
    function: Unary | None,
) -> WantedKernel:
    inputs = tuple(Access(dtype, 1) for dtype in operands)
    alone = Operation(op, tuple(enumerate(operands)), result, power, function)
    return WantedKernel(elementwise.whole_kernel(1, inputs, Access(result, 1), (alone,)))


def all_parts() -> Iterator[WantedKernel]:
    """Yield the kernels that any chain can be put together from; packs have them."""
    for op_class in OPS.values():
        if issubclass(op_class, ELEMENTWISE):
            for dtype in dtypes.ALL:
                if elementwise.computes(op_class, dtype):
                    yield from _parts(op_class, dtype)
    given = ((0, dtypes.f32),)
    gelu = part_of(Operation(ops.Mul(), given, dtypes.f32, function=elementwise.GELU))
    assert gelu is not None
    yield gelu
    for width in sorted({dtype.itemsize for dtype in dtypes.ALL}):
        yield WantedKernel(kernels.gather(width))
        yield WantedKernel(kernels.scatter(width))
    for each in (kernels.run_parts, kernels.parts_task):
        yield WantedKernel(each.specialize())


def _parts(op_class: type[Op], dtype: DType) -> Iterator[WantedKernel]:
    type_ = TensorType(dtype, ())
    for op in _settings(op_class):
        operands = [type_] * (2 if isinstance(op, ops.Binary | ops.Compare) else 1)
        if isinstance(op, ops.Select | ops.Clamp):
            first = TensorType(dtypes.i1, ()) if isinstance(op, ops.Select) else type_
            operands = [first, type_, type_]
        try:
            (result,) = op.result_types(operands)
        except ProgramError:  # of this type, it has no such setting
            continue
        powers = elementwise.SMALL_POWERS if isinstance(op, ops.Pow) else ()
        for power in (None, *powers):
            given = tuple((at, each.dtype) for at, each in enumerate(operands))
            part = part_of(Operation(op, given, result.dtype, power))
            assert part is not None
            yield part


def _settings(op_class: type[Op]) -> Iterator[Op]:
    if issubclass(op_class, ops.Cast):
        yield from map(op_class, dtypes.ALL)
    elif issubclass(op_class, ops.Compare):
        yield from map(op_class, elementwise.DIRECTIONS)
    else:
        yield op_class()


class _NoPartError(Exception):
    """A kernel lacks that a chain needs."""


class _Chain:
    """The words that `parts_task` reads, of one chain."""

    def __init__(
        self,
        axes: Axes,
        accesses: Sequence[Access],
        operations: Sequence[Operation],
        *,
        compile_parts: bool,
    ) -> None:
        self.size = math.prod(size for size, _ in axes)
        self._axes = axes
        self._inputs, self._output = accesses[:-1], accesses[-1]
        self._compile = compile_parts
        # A copy from or to a strided tensor is a move and no op.
        moves = _is_copy(operations) and not (self._is_dense(0) and self._is_dense(1))
        self._operations = () if moves else tuple(operations)
        widths = [access.dtype.itemsize for access in accesses]
        widths += [operation.result.itemsize for operation in operations]
        self._piece = kernels.BLOCK * max(widths)
        self._pieces = 0
        """Pieces of memory, a block each."""
        self._free: list[int] = []

    def found(self, kernel: KernelFunction | SpecializedKernel | WantedKernel) -> Kernel:
        """Return a kernel that a store has, or that may be compiled."""
        if isinstance(kernel, KernelFunction):
            kernel = kernel.specialize()
        wanted = kernel if isinstance(kernel, WantedKernel) else WantedKernel(kernel)
        found = known(wanted) if self._compile else stored(wanted)
        if found is None:
            raise _NoPartError
        return found

    def geometry(self) -> list[int]:
        """Return the words; _NoPartError if a kernel lacks."""
        tensors = [word for index in range(len(self._inputs)) for word in self._tensor(index)]
        result = self._tensor(len(self._inputs))
        steps = self._steps()
        head = [0] * kernels.HEAD
        head[kernels.SIZE], head[kernels.TASK] = self.size, ELEMENTS_A_TASK
        head[kernels.RANK], head[kernels.INPUTS] = len(self._axes), len(self._inputs)
        head[kernels.STEPS] = len(self._operations)
        head[kernels.REGISTERS] = len(self._inputs) + max(1, len(self._operations))
        head[kernels.ROOM] = self._pieces * self._piece
        return [*head, *tensors, *result, *steps]

    def _is_dense(self, index: int) -> bool:
        after = 1
        for size, strides in reversed(self._axes):
            if strides[index] != after:
                return False
            after = after * size
        return True

    def _tensor(self, index: int) -> list[int]:
        is_result = index == len(self._inputs)
        access = self._output if is_result else self._inputs[index]
        width = access.dtype.itemsize
        axes = [word for size, strides in self._axes for word in (size, strides[index])]
        if self._is_dense(index):
            return [kernels.DENSE, width, 0, 0, *axes]
        mover = (kernels.scatter if is_result else kernels.gather)(width)
        kind = kernels.ONE if access.fixed and self._operations else kernels.STRIDED
        return [kind, width, self._new_piece() * self._piece, self.found(mover).address, *axes]

    def _new_piece(self) -> int:
        if self._free:
            return self._free.pop()
        self._pieces += 1
        return self._pieces - 1

    def _steps(self) -> list[int]:
        """Return the words of all ops; pieces are used again when their values were read last."""
        inputs, last = len(self._inputs), len(self._operations) - 1
        last_use = {
            number: at
            for at, operation in enumerate(self._operations)
            for number, _ in operation.operands
        }
        pieces: dict[int, int] = {}
        words: list[int] = []
        for at, operation in enumerate(self._operations):
            part = part_of(operation)
            if part is None:
                raise _NoPartError
            registers = [number for number, _ in operation.operands]
            count = len(registers)
            registers += [0] * (_MOST_OPERANDS - count)
            piece = -1
            if at < last:
                # Not that of an operand: loops over memory that overlaps are not vectorized.
                piece = pieces[inputs + at] = self._new_piece()
            offset = max(0, piece) * self._piece
            words += [self.found(part).address, count, *registers, inputs + at, offset]
            for number, _ in operation.operands:
                if last_use[number] == at and number in pieces:
                    self._free.append(pieces.pop(number))
        return words


def _is_copy(operations: Sequence[Operation]) -> bool:
    if len(operations) != 1 or not isinstance(operations[0].op, ops.Cast):
        return False
    ((_, source),) = operations[0].operands
    return source is operations[0].result and operations[0].function is None
