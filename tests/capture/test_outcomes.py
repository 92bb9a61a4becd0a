"""Runs that are submitted: core waits for them when a value is read, and not before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.api import BackendError, ExecutionError
from gptrs.api.backends import BoundInputs, Buffer, InputRole
from gptrs.api.programs import Program
from gptrs.capture.outcome import MOST_UNCHECKED, Outcome, outcome_after
from gptrs_backend_ref.backend import RefBackend


class Run:
    """A run of the backend below."""

    def __init__(self, asked: list[Run], error: Exception | None) -> None:
        self._asked = asked
        self._error = error

    def check(self) -> None:
        self._asked.append(self)
        if self._error is not None:
            raise self._error


class LateBackend(RefBackend):
    """The reference, which tells of errors when it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Run] = []

    def compile(self, program: Program, roles: Sequence[InputRole]) -> Any:
        made: Any = super().compile(program, roles)
        types = [result.type for result in program.main.body.results]

        def submit(inputs: Sequence[Buffer], bound: BoundInputs | None) -> Any:
            buffers = list(inputs) if bound is None else [*inputs, *bound.buffers]
            try:
                return made.run(buffers), Run(self.asked, None)
            except ExecutionError as error:
                zeros = [np.zeros(each.shape, each.dtype.numpy) for each in types]
                return zeros, Run(self.asked, error)

        made.submit = submit
        return made


ROWS = np.arange(6, dtype=np.float32)


def _row(table: gptrs.Tensor, place: gptrs.Tensor) -> gptrs.Tensor:
    return F.embedding(place, table)


def test_nobody_waits_before_a_value_is_read() -> None:
    backend = LateBackend()
    with gptrs.use_backend(backend):
        step = gptrs.jit(_row)
        row = step(gptrs.tensor(ROWS[:, None]), gptrs.tensor(np.array([2])))
        then = gptrs.jit(lambda x: x * 2.0)(row)
        assert backend.asked == []
        assert then.tolist() == [[4.0]]
        assert len(backend.asked) == 2
        assert row.tolist() == [[2.0]]
        assert len(backend.asked) == 2, "what went well is not asked again"


def test_an_error_is_told_to_each_reader() -> None:
    backend = LateBackend()
    with gptrs.use_backend(backend):
        row = gptrs.jit(_row)(gptrs.tensor(ROWS[:, None]), gptrs.tensor(np.array([6])))
        lazily = row + 1.0
        then = gptrs.jit(lambda x: x * 2.0)(row)
        for each in (row, then, lazily, row):
            with pytest.raises(ExecutionError, match="index 6"):
                each.numpy()
        good = gptrs.jit(_row)(gptrs.tensor(ROWS[:, None]), gptrs.tensor(np.array([1])))
        assert good.item() == 1.0


def test_donated_values_are_waited_for() -> None:
    backend = LateBackend()
    with gptrs.use_backend(backend):
        bad = gptrs.jit(_row)(gptrs.tensor(ROWS[:, None]), gptrs.tensor(np.array([7])))
        total = gptrs.jit(lambda total, x: total + x, donate=[0])(bad, gptrs.tensor([[1.0]]))
        with pytest.raises(ExecutionError, match="index 7"):
            total.item()


def test_without_a_backend_of_its_own_a_value_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = LateBackend()
    monkeypatch.setattr("gptrs.capture.execute.chosen_backend", lambda: backend)
    bad = F.embedding(gptrs.tensor(np.array([9])), gptrs.tensor(ROWS[:, None]))
    with pytest.raises(ExecutionError, match="index 9"):
        bad.numpy()


def test_what_check_raises_names_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = LateBackend()
    with gptrs.use_backend(backend):
        row = gptrs.jit(_row)(gptrs.tensor(ROWS[:, None]), gptrs.tensor(np.array([2])))
        monkeypatch.setattr(Run, "check", lambda self: 1 / 0)
        with pytest.raises(BackendError, match="failed in `check`"):
            row.numpy()


def test_runs_that_nobody_reads_are_waited_for_in_the_end() -> None:
    asked: list[Run] = []
    last: Outcome | None = None
    for _ in range(3 * MOST_UNCHECKED):
        last = outcome_after(Run(asked, None), [last])
        assert last is not None
        assert last.length <= MOST_UNCHECKED
    assert len(asked) >= MOST_UNCHECKED
    assert len(set(asked)) == len(asked)
    assert outcome_after(None, [last, None]) is last
    assert last is not None
    last.require()
    assert last.good
    assert outcome_after(None, [last]) is None
