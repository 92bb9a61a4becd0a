"""The reference backend: finds every kernel, then runs one instruction after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend, Buffer, Executable, InputRole
from gptrs.backend.memory import dying_values
from gptrs.backend.op_table import OpTable, require_supported
from gptrs.backend.settings import Precision
from gptrs.errors import ExecutionError, ProgramError, UsageError
from gptrs.ir.op import Op
from gptrs.ir.program import Instruction, Program, Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.pass_base import Pass
from gptrs.optimizer.passes.arithmetic_folding import PRODUCT_ROUNDING
from gptrs_backend_ref.kernels import TABLE
from gptrs_backend_ref.table import Kernel


class PreparedInstruction(Struct, frozen=True, eq=False):
    """An instruction with its kernel, its regions and callees, and the values that die after it."""

    instruction: Instruction
    kernel: Kernel
    bodies: Mapping[str, tuple[RegionBody, ...]]
    """The argument `bodies` of its kernel, if it has any."""
    dying: tuple[Value, ...]


class RegionBody:
    """A region with its kernels, which runs one instruction after another."""

    def __init__(
        self, region: Region, functions: Mapping[str, RegionBody], table: OpTable[Kernel]
    ) -> None:
        self.signature = region.signature
        self._params = region.params
        self._results = region.results
        self._steps = [
            _step(instruction, functions, table, dying)
            for instruction, dying in zip(region.instructions, dying_values(region), strict=True)
        ]

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the results for these arguments; they may be views of one, or one array twice."""
        environment = dict(zip(self._params, arrays, strict=True))
        for step in self._steps:
            instruction = step.instruction
            operands = [environment[value] for value in instruction.operands]
            try:
                results = step.kernel(instruction.op, *operands, **step.bodies)
            except MemoryError:
                types = ", ".join(str(value.type) for value in instruction.results)
                raise ExecutionError(
                    f"no memory is left for `{instruction.op.name}`, which gives {types}"
                ) from None
            if not isinstance(results, tuple):
                results = (np.asarray(results),)
            environment.update(zip(instruction.results, results, strict=True))
            del operands, results
            for value in step.dying:
                del environment[value]
        return tuple(environment[value] for value in self._results)


class RefExecutable(Executable):
    """A program with its kernels; keeps nothing between runs, so threads may share it."""

    def __init__(self, program: Program, table: OpTable[Kernel]) -> None:
        self._params = program.main.body.params
        # Callees precede their callers.
        functions: dict[str, RegionBody] = {}
        for function in program.reachable():
            functions[function.name] = RegionBody(function.body, functions, table)
        self._body = functions["main"]

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Return results as arrays that share memory neither with an input nor with each other.

        UsageError if the inputs do not match the parameters, ExecutionError for errors that depend
        on values. Donated inputs are treated as any other.
        """
        arrays = self._checked(inputs)
        # PTIR defines the results of overflow and invalid operations, so NumPy need not warn.
        with np.errstate(all="ignore"):
            results = self._body(*arrays)
        return _owned(list(results), arrays)

    def _checked(self, inputs: Sequence[Buffer]) -> list[np.ndarray]:
        if len(inputs) != len(self._params):
            raise UsageError(f"the program takes {len(self._params)} inputs, got {len(inputs)}")
        return [
            _checked_input(position, param, buffer)
            for position, (param, buffer) in enumerate(zip(self._params, inputs, strict=True))
        ]


class RefBackend(Backend):
    """Runs every op on every element type that PTIR allows, one NumPy function an op."""

    name = "ref"
    ieee_floats = True
    precisions: Sequence[Precision] = ("f32", "bf16")

    def __init__(self, table: OpTable[Kernel] = TABLE, precision: Precision = "f32") -> None:
        self._table = table
        self.precision: Precision = precision
        self._others: dict[Precision, RefBackend] = {precision: self}

    def __repr__(self) -> str:
        return "<RefBackend>"

    def in_precision(self, precision: Precision) -> RefBackend:
        """Return the backend of another precision: one object for each."""
        if precision not in self._others:
            other = RefBackend(self._table, precision)
            other._others = self._others
            self._others[precision] = other
        return self._others[precision]

    def legalize(self) -> Sequence[Pass]:
        """Return the rounding of products, for `bf16`: what that precision means."""
        return (PRODUCT_ROUNDING,) if self.precision == "bf16" else ()

    def compile_settings(self) -> Precision:
        """Return the settings that affect the computation besides the program."""
        return self.precision

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        """Return why there is no kernel for `op` on these types, None if there is one."""
        return self._table.refusal(op, operands, results)

    def reads_quantized(self, codes: TensorType, bits: int, group_size: int) -> bool:
        """Return True: all quantized weights are computed of their parts, in each run."""
        return True

    def compile(self, program: Program, roles: Sequence[InputRole]) -> RefExecutable:
        """Find the kernel of each instruction; the roles of inputs make no difference here.

        UnsupportedError lists every op without a kernel; UsageError for a missing role.
        """
        require_supported(self, program)
        expected = len(program.main.body.params)
        if len(roles) != expected:
            raise UsageError(
                f"a program of {expected} inputs needs {expected} roles, got {len(roles)}"
            )
        return RefExecutable(program, self._table)

    def to_device(self, array: np.ndarray) -> np.ndarray:
        """Return `array` itself, converted if it has a foreign byte order."""
        return array.astype(TensorType.of(array).dtype.numpy, copy=False)

    def to_host(self, buffer: Buffer) -> np.ndarray:
        """Return `buffer` itself, which is an array."""
        return _require_array(buffer, "`to_host`")


def create(threads: int | None = None) -> RefBackend:
    """Return the reference backend; ignores `threads`, as NumPy chooses those of its BLAS.

    Set `OMP_NUM_THREADS` or `OPENBLAS_NUM_THREADS` before Python starts to change that.
    """
    del threads
    return RefBackend()


def _step(
    instruction: Instruction,
    functions: Mapping[str, RegionBody],
    table: OpTable[Kernel],
    dying: tuple[Value, ...],
) -> PreparedInstruction:
    operands = [value.type for value in instruction.operands]
    results = [value.type for value in instruction.results]
    kernel = table.find(instruction.op, operands, results)
    assert kernel is not None, "`require_supported` has found one"
    regions = (RegionBody(region, functions, table) for region in instruction.regions)
    callees = (functions[name] for name in instruction.op.callees())
    bodies = (*regions, *callees)
    return PreparedInstruction(instruction, kernel, {"bodies": bodies} if bodies else {}, dying)


def _checked_input(position: int, param: Value, buffer: Buffer) -> np.ndarray:
    name = f" (`%{param.name}`)" if param.name else ""
    what = f"input {position}{name}"
    array = _require_array(buffer, what)
    if array.dtype != param.type.dtype.numpy or array.shape != param.type.shape:
        raise UsageError(f"{what} must be `{param.type}`, got `{_described(array)}`")
    return array


def _require_array(buffer: Buffer, what: str) -> np.ndarray:
    if not isinstance(buffer, np.ndarray):
        kind = type(buffer).__name__
        raise UsageError(f"{what} must be a NumPy array, got `{kind}`", hint="use `to_device`")
    return cast("np.ndarray", buffer)


def _described(array: np.ndarray) -> str:
    """Return the PTIR type of an array; NumPy's notation if it has none or foreign byte order."""
    try:
        type_ = TensorType.of(array)
    except ProgramError:
        return f"{array.dtype.str}{list(array.shape)}"
    return str(type_) if array.dtype.isnative else f"{array.dtype.str}{list(array.shape)}"


def _owned(results: list[np.ndarray], inputs: list[np.ndarray]) -> list[Buffer]:
    """Copy results whose memory may belong to an input, a constant or another result."""
    taken = {id(array) for array in inputs}
    owned: list[Buffer] = []
    for result in results:
        # Only views share an array that owns its memory, and they are copied themselves.
        if not result.flags.owndata or id(result) in taken:
            result = np.array(result, order="C", copy=True)
        taken.add(id(result))
        owned.append(result)
    return owned
