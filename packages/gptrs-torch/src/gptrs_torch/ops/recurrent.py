"""Recurrent layers: a cell for each layer and direction, run over the sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_torch.conversion import Node, converts, operator_name

Cell = Callable[..., Tensor | tuple[Tensor, ...]]
CELLS: Final[dict[str, Cell]] = {
    "lstm": F.lstm_cell,
    "gru": F.gru_cell,
    "rnn_tanh": F.rnn_cell,
    "rnn_relu": partial(F.rnn_cell, activation=F.relu),
}


@converts(*CELLS)
def recurrent(
    node: Node,
    x: Tensor,
    start: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Return the states of the last layer at each step, and the last ones of all layers.

    x is [T, B, E], or [B, T, E] if `batch_first`; without B for one sequence. `start` holds
    [layers * directions, B, hidden] for each state.
    """
    if train and dropout:
        node.refuse("drops random elements")
    name = operator_name(node.source).partition(".")[0]
    single, states = x.rank == 2, [start] if isinstance(start, Tensor) else list(start)
    if single:
        x, states = F.expand_dims(x, 1), [F.expand_dims(each, 1) for each in states]
    elif batch_first:
        x = F.swap_axes(x, 0, 1)
    directions = 2 if bidirectional else 1
    count = len(params) // (layers * directions)
    lasts: list[tuple[Tensor, ...]] = []
    for layer in range(layers):
        outputs: list[Tensor] = []
        for direction in range(directions):
            index = layer * directions + direction
            own = params[index * count : (index + 1) * count]
            before = [F.squeeze(F.slice_axis(state, 0, index, 1), 0) for state in states]
            step, rows = _step_and_rows(name, x, own, has_biases)
            made, last = F.rnn(step, rows, before, reverse=direction > 0)
            outputs.append(made)
            lasts.append(last)
        x = outputs[0] if directions == 1 else F.concat(outputs, -1)
    stacked = [F.stack(each, 0) for each in zip(*lasts, strict=True)]
    if single:
        return (F.squeeze(x, 1), *(F.squeeze(state, 1) for state in stacked))
    return (F.swap_axes(x, 0, 1) if batch_first else x, *stacked)


def _step_and_rows(
    name: str, x: Tensor, params: Sequence[Tensor], has_biases: bool
) -> tuple[Cell, Tensor]:
    """Return the step of a direction, and what its inputs add, from its parameters in a row."""
    inputs, own, *rest = params
    first, second = (rest.pop(0), rest.pop(0)) if has_biases else (None, None)
    if name != "gru" and first is not None and second is not None:
        first, second = first + second, None
    cell = partial(CELLS[name], projection=rest[0]) if rest else CELLS[name]

    def step(*row_and_states: Tensor) -> Tensor | tuple[Tensor, ...]:
        return cell(*row_and_states, own, second)

    return step, F.linear(x, inputs, first)
