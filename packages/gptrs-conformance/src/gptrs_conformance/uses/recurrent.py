"""Uses of recurrent cells and of the loop that runs them."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gptrs import functionals as F
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

Arrays = tuple[np.ndarray, ...]

STEPS, BATCH, WIDTH = 4, 3, 2
STATE, CELL = normal(1, BATCH, WIDTH), normal(2, BATCH, WIDTH)
LENGTHS = np.array([4, 1, 0])


def gates(count: int, *lead: int) -> Arrays:
    """Projected inputs of so many gates, the weight of the state, and its bias."""
    rows = normal(3 + count, *lead, BATCH, count * WIDTH)
    weight = normal(8 + count, count * WIDTH, WIDTH) / 2
    return rows, weight, normal(13 + count, count * WIDTH)


ROWS, WEIGHT, BIAS = gates(1)
SEQUENCE = gates(1, STEPS)[0]
GRU_ROWS, GRU_WEIGHT, GRU_BIAS = gates(3)
LSTM_ROWS, LSTM_WEIGHT, LSTM_BIAS = gates(4)
LSTM_SEQUENCE = gates(4, STEPS)[0]
PEEPHOLES, PROJECTION = normal(21, 3 * WIDTH), normal(22, 1, WIDTH)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """`1 / (1 + e^-x)`."""
    return 1 / (1 + np.exp(-x))


def gru(
    rows: np.ndarray,
    h: np.ndarray,
    w: np.ndarray,
    b: np.ndarray,
    order: str = "rzn",
    after: bool = True,
    clip: float = np.inf,
) -> np.ndarray:
    """The next state of gated recurrent units."""
    i, ws = (
        dict(zip(order, np.split(each, 3, axis), strict=True))
        for each, axis in ((rows, -1), (w, 0))
    )
    bs = dict(zip(order, np.split(b, 3), strict=True))
    r, z = (sigmoid(np.clip(i[x] + h @ ws[x].T + bs[x], -clip, clip)) for x in "rz")
    change = r * (h @ ws["n"].T + bs["n"]) if after else (r * h) @ ws["n"].T + bs["n"]
    return (1 - z) * np.tanh(np.clip(i["n"] + change, -clip, clip)) + z * h


def lstm(
    rows: np.ndarray, h: np.ndarray, c: np.ndarray, w: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The next state and cell of long short-term memory, gates in the order i, f, g, o."""
    i, f, g, o = np.split(rows + h @ w.T + b, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def peephole_lstm(
    rows: np.ndarray, h: np.ndarray, c: np.ndarray, w: np.ndarray, p: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The coupled kind, in the order i, o, f, g, whose gates see the cell and are clipped."""
    i, o, _, g = np.split(rows + h @ w.T, 4, -1)
    p_i, p_o, _ = np.split(p, 3)
    into = sigmoid(np.clip(i + p_i * c, -1, 1))
    c = (1 - into) * c + into * np.maximum(np.clip(g, -1, 1), 0)
    return sigmoid(np.clip(o + p_o * c, -1, 1)) * np.tanh(c), c


def looped(
    step: Callable[..., Arrays],
    rows: np.ndarray,
    *states: np.ndarray,
    lengths: np.ndarray | None = None,
    reverse: bool = False,
) -> Arrays:
    """The first state after each row, and the last states, one sequence after the other."""
    count, batch = rows.shape[:2]
    outputs = np.zeros((count, *states[0].shape))
    lasts = [np.array(each) for each in states]
    for one in range(batch):
        length = count if lengths is None else int(lengths[one])
        for at in reversed(range(length)) if reverse else range(length):
            made = step(rows[at, one], *(each[one] for each in lasts))
            for last, value in zip(lasts, made, strict=True):
                last[one] = value
            outputs[at, one] = made[0]
    return (outputs, *lasts)


def _several(found: tuple[Any, tuple[Any, ...]]) -> tuple[Any, ...]:
    outputs, lasts = found
    return (outputs, *lasts)


def _torch_cell(torch: Any, kind: str, *arrays: Any) -> Any:
    """A cell of torch whose weight of the input is the identity."""
    rows, states, (w, b) = arrays[0], arrays[1:-2], arrays[-2:]
    eye, zero = torch.eye(rows.shape[-1]), torch.zeros(rows.shape[-1])
    held = states[0] if len(states) == 1 else states
    return getattr(torch, kind)(rows, held, eye, w, zero, b)


USES = (
    Use("rnn_cell", (ROWS, STATE, WEIGHT, BIAS), F.rnn_cell,
        lambda x, h, w, b: np.tanh(x + h @ w.T + b),
        torch=lambda torch, *arrays: _torch_cell(torch, "rnn_tanh_cell", *arrays)),
    Use("rnn_cell", (ROWS, STATE, WEIGHT),
        lambda x, h, w: F.rnn_cell(x, h, w, activation=F.relu, clip=0.5),
        lambda x, h, w: np.clip(x + h @ w.T, 0, 0.5), "relu, clipped"),
    Use("gru_cell", (GRU_ROWS, STATE, GRU_WEIGHT, GRU_BIAS), F.gru_cell, gru,
        torch=lambda torch, *arrays: _torch_cell(torch, "gru_cell", *arrays)),
    Use("gru_cell", (GRU_ROWS, STATE, GRU_WEIGHT, GRU_BIAS),
        lambda *arrays: F.gru_cell(*arrays, reset_after=False),
        lambda *arrays: gru(*arrays, after=False), "the reset before the product"),
    Use("gru_cell", (GRU_ROWS, STATE, GRU_WEIGHT),
        lambda x, h, w: F.gru_cell(x, h, w, order="zrn", clip=1.0),
        lambda x, h, w: gru(x, h, w, np.zeros(3 * WIDTH), "zrn", clip=1.0),
        "update first, clipped, no bias"),
    Use("lstm_cell", (LSTM_ROWS, STATE, CELL, LSTM_WEIGHT, LSTM_BIAS), F.lstm_cell, lstm,
        torch=lambda torch, *arrays: _torch_cell(torch, "lstm_cell", *arrays)),
    Use("lstm_cell", (LSTM_ROWS, STATE, CELL, LSTM_WEIGHT, PEEPHOLES),
        lambda x, h, c, w, p: F.lstm_cell(
            x, h, c, w, order="iofg", peepholes=p, coupled=True, clip=1.0,
            activations=(F.sigmoid, F.relu, F.tanh)),
        peephole_lstm, "peepholes, coupled, clipped"),
    Use("lstm_cell", (LSTM_ROWS, STATE[:, :1], CELL, LSTM_WEIGHT[:, :1], LSTM_BIAS, PROJECTION),
        lambda x, h, c, w, b, p: F.lstm_cell(x, h, c, w, b, projection=p),
        lambda x, h, c, w, b, p: (lambda made: (made[0] @ p.T, made[1]))(lstm(x, h, c, w, b)),
        "projection"),
    Use("rnn", (SEQUENCE, STATE, WEIGHT),
        lambda x, h, w: _several(F.rnn(lambda row, h: F.rnn_cell(row, h, w), x, h)),
        lambda x, h, w: looped(lambda row, h: (np.tanh(row + h @ w.T),), x, h)),
    Use("rnn", (LSTM_SEQUENCE, STATE, CELL, LSTM_WEIGHT, LSTM_BIAS, LENGTHS),
        lambda x, h, c, w, b, n: _several(F.rnn(
            lambda row, h, c: F.lstm_cell(row, h, c, w, b), x, (h, c), lengths=n)),
        lambda x, h, c, w, b, n: looped(
            lambda row, h, c: lstm(row, h, c, w, b), x, h, c, lengths=n), "lengths"),
    Use("rnn", (SEQUENCE, STATE, WEIGHT, LENGTHS),
        lambda x, h, w, n: _several(
            F.rnn(lambda row, h: F.rnn_cell(row, h, w), x, h, reverse=True, lengths=n)),
        lambda x, h, w, n: looped(
            lambda row, h: (np.tanh(row + h @ w.T),), x, h, lengths=n, reverse=True),
        "reverse, lengths"),
)  # fmt: skip
