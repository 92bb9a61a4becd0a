"""Runs single ops on a backend, and judges the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.backend.contract import Backend, InputRole
from gptrs.backend.op_table import refusals_of
from gptrs.capture.fallback.partition import Partition, partition
from gptrs.capture.fallback.parts_executable import compiled_in_parts, fallback_of
from gptrs.errors import ExecutionError, GptrsError, UnsupportedError
from gptrs.ir.builder import Builder, copy_region
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs_conformance.check import CheckFailure
from gptrs_conformance.flushing import judged
from gptrs_conformance.op_case import OpCase
from gptrs_runtime.conformance import Status


class Outcome(Struct, frozen=True):
    """The verdict on a case or check, with the reason where it did not pass."""

    status: Status
    reason: str = ""


def run_case(backend: Backend, case: OpCase) -> Outcome:
    """Run one case; returns an Outcome whatever the backend raises.

    Refused means that `refusal` says so and `compile` raises UnsupportedError that names the op. If
    the backend falls back to another one, the case runs there, and is judged like any other.
    Anything except the expected result, with equal types, in separate memory and with unmodified
    operands, or the expected ExecutionError, is a failure.
    """
    try:
        return _judge(backend, case)
    except CheckFailure as failure:
        return Outcome("fail", str(failure))
    except GptrsError as error:
        return Outcome("fail", f"raised {type(error).__name__}: {error}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a backend under test may raise anything, SystemExit, too
        return Outcome("fail", f"raised {type(error).__name__}, which is not a GptrsError: {error}")


def failures(backend: Backend, cases: Iterable[OpCase]) -> list[str]:
    """Run `cases`; return for each failure its label, op, operands, and finding."""
    found: list[str] = []
    for case in cases:
        outcome = run_case(backend, case)
        if outcome.status == "fail":
            operands = ", ".join(
                f"{TensorType.of(array)} {np.array2string(array, threshold=16)}"
                for array in case.inputs
            )
            found.append(f"{case.label}: {case.op} of {operands}: {outcome.reason}")
    return found


def program_of(case: OpCase) -> Program:
    """Return the program of one instruction that the case stands for."""
    builder = Builder(case.functions)
    operands = [builder.param(TensorType.of(array)) for array in case.inputs]
    regions = [copy_region(region) for region in case.regions]
    return builder.program(*builder.emit_many(case.op, operands, regions).results)


def prepared(program: Program) -> Program:
    """Inline the calls and composites of `program`, as gptrs does."""
    return Inlining().apply(program)


def require_refusal(backend: Backend, program: Program, roles: Sequence[InputRole]) -> None:
    """Raise CheckFailure unless `compile` raises an UnsupportedError that names an op."""
    try:
        backend.compile(program, roles)
    except UnsupportedError as error:
        names = {step.op.name for step in program.main.body.walk()}
        if not any(f"`{name}`" in str(error) for name in names):
            raise CheckFailure(
                f"the UnsupportedError of `compile` must name the op: {error}"
            ) from None
        return
    raise CheckFailure("`refusal` refuses the op, but `compile` raised no UnsupportedError")


def cut_of(backend: Backend, program: Program) -> Partition | None:
    """Return how `backend` and the one that it falls back to share a program that it refuses.

    None if it falls back to none, or if neither runs some of it. `@main` must call no function.
    """
    fallback = fallback_of(backend)
    if fallback is None:
        return None
    try:
        roles = [InputRole.ARGUMENT] * len(program.main.body.params)
        return partition(program, roles, backend, fallback, {})
    except UnsupportedError:
        return None


def _judge(backend: Backend, case: OpCase) -> Outcome:
    program = prepared(program_of(case))
    roles = [InputRole.ARGUMENT] * len(case.inputs)
    passed, flushed = Outcome("pass"), backend.flushes_subnormals
    refused = refusals_of(backend, program)
    if refused:
        require_refusal(backend, program, roles)
        cut, fallback = cut_of(backend, program), fallback_of(backend)
        if cut is None or fallback is None:
            return Outcome("refused", refused[0])
        passed = Outcome("fallback", refused[0])
        is_shared = any(home is not False for home in cut.home)
        flushed = fallback.flushes_subnormals or (flushed and is_shared)
    # A backend that overwrites operands, which is wrong, shall not spoil the case.
    case = replace(case, inputs=tuple(array.copy(order="K") for array in case.inputs))
    # As bytes: comparing values would miss a change of NaN's bits or of a zero's sign.
    before = [array.tobytes() for array in case.inputs]
    compile_ = partial(compiled_in_parts, backend) if refused else backend.compile
    executable = compile_(program, roles)
    buffers = [backend.to_device(array) for array in case.inputs]
    try:
        outputs = executable.run(buffers)
    except ExecutionError as error:
        if case.error is None or case.error not in str(error):
            wanted = f", expected one that names {case.error!r}" if case.error else ""
            raise CheckFailure(f"raised ExecutionError: {error}{wanted}") from None
        return passed
    if case.error is not None:
        raise CheckFailure(f"gave a result, expected an ExecutionError that names {case.error!r}")
    if not isinstance(cast("object", outputs), list):
        raise CheckFailure(f"`run` gave a `{type(outputs).__name__}`, expected a list")
    if len(outputs) != len(program.main.body.results):
        count = len(program.main.body.results)
        raise CheckFailure(f"gave {len(outputs)} results, expected {count}")
    found = [backend.to_host(output) for output in outputs]
    _check_results(case, program, found, flushed)
    for position, (array, bytes_) in enumerate(zip(case.inputs, before, strict=True)):
        if array.tobytes() != bytes_:
            raise CheckFailure(f"overwrote operand {position}, which was not donated")
    return passed


def _check_results(
    case: OpCase, program: Program, found: Sequence[np.ndarray], flushed: bool
) -> None:
    types = [value.type for value in program.main.body.results]
    for index, (array, type_) in enumerate(zip(found, types, strict=True)):
        what = f"result {index}" if len(types) > 1 else "the result"
        if TensorType.of(array) != type_ or not array.dtype.isnative:
            raise CheckFailure(f"{what} is {array.dtype}{list(array.shape)}, expected `{type_}`")
        if any(np.shares_memory(array, other) for other in case.inputs):
            raise CheckFailure(f"{what} shares memory with an operand")
        # Processors and compilers may flush subnormal numbers to zero; a backend that states it is
        # judged with that.
        expected = judged(case, array, index, type_.dtype) if flushed else case.expected[index]
        problem = case.tolerance.mismatch(array, expected, type_.dtype)
        if problem:
            raise CheckFailure(f"{what} {problem}")
