"""What becomes of a program text: refused with one clear error, or sound in all that follows."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np

from gptrs.backend.contract import Backend, InputRole
from gptrs.errors import GptrsError, ParseError, UnsupportedError
from gptrs.ir import parse_json, parse_program, print_json, print_program, verify
from gptrs.ir.ops.control_flow import Scan
from gptrs.ir.program import Program, Region
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer import optimize
from gptrs_conformance.program_generator import random_inputs
from gptrs_observe.programs.report import ProgramWork, report_program

Form = Literal["text", "json"]
Outcome = Literal["refused", "unsupported", "large", "failed", "timeout", "ran"]
"""`refused` by parser or verifier, `unsupported` by the backend before it ran, `large`: sound, but
not run, `failed` as it ran, `timeout`: stopped in a `while`, `ran` to its end."""

MAX_LIVE_BYTES = 64 * 2**20
MAX_WORK = 5 * 10**5
MAX_STEPS = 100_000
RUN_SECONDS = 5
READ_SECONDS = 10
WAITS = 30
"""How many times as long something may take where other work keeps the machine busy."""
LONGEST_MESSAGE = 4000


class Flaw(Exception):  # noqa: N818 - what is found, not what went wrong
    """A program was not handled as it must be."""


class TimeIsUp(BaseException):
    """Past every `except Exception`."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """TimeIsUp in the main thread after so many seconds of computing, or `WAITS` times as many.

    A busy machine makes nothing wrong; what waits for something that never comes is found, too.
    """

    def stop(number: int, frame: object) -> None:
        raise TimeIsUp

    clocks = {signal.SIGPROF: (signal.ITIMER_PROF, seconds),
              signal.SIGALRM: (signal.ITIMER_REAL, WAITS * seconds)}  # fmt: skip
    before = {number: signal.signal(number, stop) for number in clocks}
    for clock, limit in clocks.values():
        signal.setitimer(clock, limit)
    try:
        yield
    finally:
        for number, (clock, _) in clocks.items():
            signal.setitimer(clock, 0)
            signal.signal(number, before[number])


def judge(text: str, form: Form, backend: Backend, seed: int = 0) -> Outcome:
    """What becomes of `text`; Flaw for an answer that no text may get.

    Those are any exception but a GptrsError, an error without a sane place, a program that changes
    when it is printed and read, that the optimizer breaks, or whose results are not those declared,
    and anything that takes too long.
    """
    try:
        with time_limit(READ_SECONDS):
            program = _read(text, form)
            if program is None:
                return "refused"
            _require_round_trips(program)
            optimized = optimize(program, verify=True)
            work = report_program(program).work
    except TimeIsUp:
        raise Flaw(f"reading took more than {READ_SECONDS} s") from None
    if work is not None and not _is_small(program, work):
        return "large"
    return _run_both(program, optimized, backend, seed)


def _read(text: str, form: Form) -> Program | None:
    try:
        program = parse_program(text) if form == "text" else parse_json(text)
    except GptrsError as error:
        _require_sane(error, text, form)
        return None
    verify(program)
    return program


def _require_sane(error: GptrsError, text: str, form: Form) -> None:
    if len(str(error)) > LONGEST_MESSAGE:
        raise Flaw(f"a message of {len(str(error))} characters")
    if form == "json":
        return
    if not isinstance(error, ParseError):
        raise Flaw(f"{type(error).__name__} without a place: {error}")
    lines = text.split("\n")
    if not 1 <= error.line <= len(lines):
        raise Flaw(f"line {error.line} of {len(lines)}: {error}")
    if not 1 <= error.column <= len(lines[error.line - 1]) + 1:
        raise Flaw(f"column {error.column} of line {error.line}: {error}")


def _require_round_trips(program: Program) -> None:
    text = print_program(program)
    again = parse_program(text)
    verify(again)
    if print_program(again) != text:
        raise Flaw("the text form changes when it is read and printed")
    if print_program(parse_json(print_json(program))) != text:
        raise Flaw("the JSON form stands for another program")


def _is_small(program: Program, work: ProgramWork) -> bool:
    done = work.arithmetic + 10 * work.transcendental + work.bytes_moved
    return work.peak_bytes <= MAX_LIVE_BYTES and done <= MAX_WORK and _steps(program) <= MAX_STEPS


def _steps(program: Program) -> int:
    """How many instructions run, those of a `while` once."""
    functions: dict[str, int] = {}

    def count(region: Region) -> int:
        total = 0
        for instruction in region.instructions:
            op = instruction.op
            inner = sum(count(body) for body in instruction.regions)
            inner += sum(functions[name] for name in op.callees())
            if isinstance(op, Scan):
                inner *= op.steps([operand.type for operand in instruction.operands])
            total += 1 + inner
        return total

    for function in program.functions:
        functions[function.name] = count(function.body)
    return functions["main"]


def _run_both(program: Program, optimized: Program, backend: Backend, seed: int) -> Outcome:
    roles = [InputRole.ARGUMENT] * len(program.main.body.params)
    try:
        executables = [backend.compile(one, roles) for one in (program, optimized)]
    except UnsupportedError:
        return "unsupported"
    inputs = list(random_inputs(program, seed).values())
    started = time.monotonic()
    try:
        with time_limit(RUN_SECONDS):
            plain = executables[0].run(inputs)
    except GptrsError:
        return "failed"
    except TimeIsUp:
        return _after_timeout(program)
    _require_declared(program, plain)
    try:
        with time_limit(2 * RUN_SECONDS + time.monotonic() - started):
            better = executables[1].run(inputs)
    except TimeIsUp:
        return _after_timeout(program)
    for position, (a, b) in enumerate(zip(plain, better, strict=True)):
        if not _same(np.asarray(a), np.asarray(b)):
            raise Flaw(f"result {position} is another one after optimization")
    return "ran"


def _after_timeout(program: Program) -> Outcome:
    names = Counter(
        step.op.name for function in program.reachable() for step in function.body.walk()
    )
    if "while" not in names:
        raise Flaw(f"running took more than {RUN_SECONDS} s without a `while`")
    return "timeout"


def _require_declared(program: Program, results: Sequence[object]) -> None:
    for position, (value, found) in enumerate(zip(program.main.body.results, results, strict=True)):
        if not isinstance(found, np.ndarray) or TensorType.of(found) != value.type:
            raise Flaw(f"result {position} is declared as `{value.type}`, got {found!r:.80}")


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether all bits are equal but those of NaN."""
    if a.tobytes() == b.tobytes():
        return True
    if TensorType.of(a).dtype.is_complex:
        return _same(a.real, b.real) and _same(a.imag, b.imag)
    if not TensorType.of(a).dtype.is_float:
        return False
    with np.errstate(invalid="ignore"):
        x, y = (array.astype(np.float64) for array in (a, b))
    equal = (x == y) & (np.signbit(x) == np.signbit(y))
    return bool(np.all(equal | (np.isnan(x) & np.isnan(y))))
