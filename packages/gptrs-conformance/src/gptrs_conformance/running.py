"""Programs run on a backend for the checks of the kit, with results compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gptrs.backend.contract import Backend, Buffer, Executable, InputRole
from gptrs.capture.compilation import compile_program
from gptrs.errors import GptrsError
from gptrs.ir.parser import parse_program
from gptrs_conformance.check import CheckFailure


def compiled(backend: Backend, text: str, roles: Sequence[InputRole] | None = None) -> Executable:
    """Return an executable of a program in text, compiled as gptrs does."""
    return compile_program(parse_program(text), backend, roles)


def run_on(backend: Backend, executable: Executable, *inputs: np.ndarray) -> list[np.ndarray]:
    """Return the results for host arrays, as host arrays."""
    buffers: list[Buffer] = [backend.to_device(array) for array in inputs]
    return [backend.to_host(result) for result in executable.run(buffers)]


def normal(seed: int, *shape: int) -> np.ndarray:
    """Return normally distributed f32 numbers, the same for the same seed."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def require(condition: bool, problem: str) -> None:
    """Raise CheckFailure with `problem` unless `condition` holds."""
    if not condition:
        raise CheckFailure(problem)


def require_equal(
    found: Sequence[np.ndarray], expected: Sequence[np.ndarray], what: str, noun: str = "result"
) -> None:
    """Raise CheckFailure unless all arrays, each a `noun`, are as expected, bit for bit."""
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != np.asarray(b).tobytes():
            raise CheckFailure(f"{what}: {noun} {index} is {a!r}, expected {b!r}")


def require_error(
    act: Callable[[], object], kind: type[GptrsError], what: str, *parts: str
) -> None:
    """Raise CheckFailure unless `act` raises `kind` with all of `parts` in its text."""
    try:
        act()
    except kind as error:
        missing = [part for part in parts if part not in str(error)]
        if missing:
            raise CheckFailure(
                f"{what}: the {kind.__name__} must name {missing[0]!r}: {error}"
            ) from None
        return
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too
        name = type(error).__name__
        raise CheckFailure(f"{what}: raised {name} ({error}), expected {kind.__name__}") from None
    raise CheckFailure(f"{what}: raised nothing, expected {kind.__name__}")
