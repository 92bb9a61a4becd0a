"""The checks of runs that are submitted fail on backends that break their rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gptrs.api import ExecutionError
from gptrs.api.backends import BoundInputs, Buffer, Executable, InputRole
from gptrs.api.programs import Program
from gptrs_backend_ref.backend import RefBackend
from gptrs_conformance.kit import checks_of, run_check

CHECKS = {check.name: check for check in checks_of("core") if check.name.startswith("submitted")}


class Late:
    """A run whose error is kept until somebody asks."""

    def __init__(self, error: ExecutionError | None) -> None:
        self.error = error

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class Submitted(Executable):
    """An executable of ref that keeps its errors for later."""

    def __init__(self, made: Any, program: Program) -> None:
        self._made = made
        self._types = [result.type for result in program.main.body.results]

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        return self._made.run(inputs)

    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        return self.run([*inputs, *bound.buffers])

    def submit(
        self, inputs: Sequence[Buffer], bound: BoundInputs | None
    ) -> tuple[list[Buffer], Late | None]:
        buffers = list(inputs) if bound is None else [*inputs, *bound.buffers]
        try:
            return self.run(buffers), Late(None)
        except ExecutionError as error:
            return [np.zeros(each.shape, each.dtype.numpy) for each in self._types], Late(error)


class Submitting(RefBackend):
    """The reference, whose runs fail when they are checked."""

    def compile(self, program: Program, roles: Sequence[InputRole]) -> Any:
        return Submitted(super().compile(program, roles), program)


def _without_weights(self: Submitted, inputs: Any, bound: BoundInputs | None) -> Any:
    return self.run([*inputs, *([inputs[-1].astype("f4")] if bound else [])]), Late(None)


def _without_errors(self: Submitted, inputs: Any, bound: BoundInputs | None) -> Any:
    (found, _) = _SUBMIT(self, inputs, bound)
    return found, None


def _of_others(self: Submitted, inputs: Any, bound: BoundInputs | None) -> Any:
    (found, run) = _SUBMIT(self, inputs, bound)
    return [each + 1 for each in found], run


_SUBMIT = Submitted.submit


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_who_keeps_the_rules_passes(name: str) -> None:
    outcome = run_check(Submitting(), CHECKS[name])
    assert outcome.status == "pass", outcome.reason


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("submitted runs are runs", _of_others),
        ("submitted runs fail when checked", _without_errors),
        ("submitted runs take bound weights", _without_weights),
    ],
)
def test_who_breaks_them_fails(name: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Submitted, "submit", broken)
    assert run_check(Submitting(), CHECKS[name]).status == "fail"
