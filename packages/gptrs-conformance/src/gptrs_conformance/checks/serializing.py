"""Rules for backends that write compiled programs down, and read them again."""

from __future__ import annotations

import numpy as np

from gptrs.api.backends import InputRole
from gptrs.api.programs import parse_program
from gptrs.backend.contract import Backend
from gptrs.errors import ExecutionError
from gptrs_conformance.check import Check
from gptrs_conformance.checks.contract import MIXED
from gptrs_conformance.checks.errors import TAKE
from gptrs_conformance.running import normal, require, require_equal, require_error, run_on


def programs_are_read_as_written(backend: Backend) -> None:
    """A deserialized program gives the same results; damaged or foreign bytes give None."""
    mixed, roles = parse_program(MIXED), [InputRole.ARGUMENT] * 2
    executable = backend.compile(mixed, roles)
    data = backend.serialize(executable)
    if data is None:
        return
    read = backend.deserialize(data, mixed, roles)
    if read is None:
        require(False, "`deserialize` does not read what `serialize` wrote")
        return
    inputs = normal(1, 3, 4), normal(2, 3, 4)
    expected = run_on(backend, executable, *inputs)
    require_equal(run_on(backend, read, *inputs), expected, "a program that was read")
    other_roles = [InputRole.DONATED, InputRole.ARGUMENT]
    found = {
        "another program": backend.deserialize(data, parse_program(TAKE), roles),
        "other roles": backend.deserialize(data, mixed, other_roles),
        "no bytes": backend.deserialize(b"", mixed, roles),
        "bytes that were cut": backend.deserialize(data[:-1], mixed, roles),
        "a changed byte": backend.deserialize(data[:-1] + bytes([data[-1] ^ 1]), mixed, roles),
    }
    for what, made in found.items():
        require(made is None, f"`deserialize` takes {what} for the program")


def errors_are_read_as_written(backend: Backend) -> None:
    """A program that was read fails as it did before."""
    take, roles = parse_program(TAKE), [InputRole.ARGUMENT] * 2
    data = backend.serialize(backend.compile(take, roles))
    read = None if data is None else backend.deserialize(data, take, roles)
    if read is not None:
        inputs = normal(1, 5), np.array([0, 5])
        require_error(
            lambda: run_on(backend, read, *inputs), ExecutionError, "index 5", "index 5", "axis 0"
        )


CHECKS = [
    Check("programs are read as written", "core", programs_are_read_as_written),
    Check("errors of programs are read as written", "core", errors_are_read_as_written),
]
