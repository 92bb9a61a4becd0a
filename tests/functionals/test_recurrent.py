"""Recurrent cells and their loop refuse what does not fit, and take out what each step repeats."""

from __future__ import annotations

import pytest

import gptrs
from functionals.calls import ops_of, zeros
from gptrs import functionals as F
from gptrs.errors import UsageError
from gptrs.optimizer.pipeline import optimize

ROWS, STATE, WEIGHT = zeros(5, 3, 2), zeros(3, 2), zeros(6, 2)

REFUSALS = [
    (
        lambda: F.rnn_cell(zeros(3, 4), STATE, zeros(2, 2)),
        "`rnn_cell` needs `inputs` of shape [3, 2], got `f32[3, 4]`",
    ),
    (
        lambda: F.gru_cell(zeros(3, 6), STATE, zeros(4, 2)),
        "`gru_cell` of 3 gates of 2 needs a `weight` of 6 rows, got `f32[4, 2]`",
    ),
    (
        lambda: F.gru_cell(zeros(3, 6), STATE, WEIGHT, order="nrz"),
        '`gru_cell` takes order="rzn" or "zrn", got \'nrz\'',
    ),
    (
        lambda: F.lstm_cell(zeros(3, 8), STATE, STATE, zeros(8, 2), order="ifco"),
        "`lstm_cell` needs the letters of \"ifgo\" as `order`, got 'ifco'",
    ),
    (
        lambda: F.lstm_cell(zeros(3, 8), STATE, STATE, zeros(8, 2), peepholes=zeros(2)),
        "`lstm_cell` needs `peepholes` of shape [6], got `f32[2]`",
    ),
    (
        lambda: F.lstm_cell(zeros(3, 8), STATE, zeros(1, 2), zeros(8, 2)),
        "`lstm_cell` needs `cell` of shape [3, 2], got `f32[1, 2]`",
    ),
    (
        lambda: F.rnn_cell(zeros(3, 2, dtype="i4"), STATE, zeros(2, 2)),
        "`rnn_cell` needs a floating-point `inputs`, got `si32[3, 2]`",
    ),
    (
        lambda: F.rnn(lambda row, h: row[:1], ROWS, STATE),
        "`rnn` needs a step that returns states of `f32[3, 2]`, got `f32[1, 2]`",
    ),
    (
        lambda: F.rnn(lambda row: row, ROWS, ()),
        "`rnn` needs rows and states, got `f32[5, 3, 2]` and 0 states",
    ),
    (
        lambda: F.rnn(lambda row, h: h, ROWS, STATE, lengths=zeros(3)),
        "`rnn` needs an integer `lengths`, got `f32[3]`",
    ),
    (
        lambda: F.rnn(lambda row, h: h, ROWS, STATE, lengths=zeros(5, dtype="i8")),
        "`rnn` needs `lengths` of shape [3], got `si64[5]`",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusal(call, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        call()
    assert refused.value.message == message


def test_what_no_step_changes_is_computed_once() -> None:
    def layer(rows: gptrs.Tensor, state: gptrs.Tensor, weight: gptrs.Tensor) -> gptrs.Tensor:
        def step(row: gptrs.Tensor, state: gptrs.Tensor) -> gptrs.Tensor:
            return F.gru_cell(row, state, weight, reset_after=False)

        return F.rnn(step, rows, state)[0]

    program = optimize(gptrs.jit(layer).lower(zeros(5, 3, 6), STATE, WEIGHT))
    scan = next(each for each in program.main.body.instructions if each.op.name == "scan")
    weights = [x for x in scan.regions[0].walk() if x.op.name == "dot_general"]
    sliced = {each.results[0] for each in scan.regions[0].walk() if each.op.name == "slice"}
    assert len(weights) == 2
    assert not sliced & {each.operands[1] for each in weights}


def test_a_cell_alone_takes_any_leading_axes() -> None:
    assert F.rnn_cell(zeros(4, 3, 2), zeros(4, 3, 2), zeros(2, 2)).shape == (4, 3, 2)
    assert "scan" not in ops_of(F.gru_cell, zeros(3, 6), STATE, WEIGHT)
