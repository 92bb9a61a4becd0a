"""The checks of programs as bytes fail on backends that break their rules."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from gptrs.api import ExecutionError
from gptrs.api.backends import Executable, InputRole
from gptrs.api.programs import Program, print_program
from gptrs_backend_ref.backend import RefBackend
from gptrs_conformance.kit import checks_of, run_check

NAMES = ("programs are read as written", "errors of programs are read as written")
CHECKS = {check.name: check for check in checks_of("core") if check.name in NAMES}


class Writing(RefBackend):
    """The reference, which writes what it was given and reads it if that is asked for again."""

    def compile(self, program: Program, roles: Sequence[InputRole]) -> Any:
        made: Any = super().compile(program, roles)
        made.written = hashlib.sha256(f"{print_program(program)} {roles}".encode()).digest()
        return made

    def serialize(self, executable: Executable) -> bytes | None:
        return executable.written  # pyright: ignore[reportAttributeAccessIssue]

    def deserialize(
        self, data: bytes, program: Program, roles: Sequence[InputRole]
    ) -> Executable | None:
        made = self.compile(program, roles)
        return made if made.written == data else None


def _of_anything(self: Writing, data: bytes, program: Program, roles: Any) -> Executable:
    return self.compile(program, roles)


def _of_nothing(self: Writing, data: bytes, program: Program, roles: Any) -> None:
    return None


def _without_errors(self: Writing, data: bytes, program: Program, roles: Any) -> Executable:
    made: Any = self.compile(program, roles)
    run = made.run

    def silent(inputs: Any) -> Any:
        try:
            return run(inputs)
        except ExecutionError:
            return run([inputs[0], inputs[1] * 0])

    made.run = silent
    return made


@pytest.mark.parametrize("name", NAMES)
def test_who_keeps_the_rules_passes(name: str) -> None:
    assert run_check(Writing(), CHECKS[name]).status == "pass"


@pytest.mark.parametrize(
    ("name", "broken"),
    [(NAMES[0], _of_anything), (NAMES[0], _of_nothing), (NAMES[1], _without_errors)],
)
def test_who_breaks_them_fails(name: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Writing, "deserialize", broken)
    assert run_check(Writing(), CHECKS[name]).status == "fail"
