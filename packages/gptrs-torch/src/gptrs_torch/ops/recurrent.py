"""Recurrent layers: a product for the inputs of all steps, and then a scan over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs_torch.conversion import Node, converts, operator_name

States = tuple[Tensor, ...]
RecurrentStep = Callable[[Tensor, States], States]
"""Takes the inputs' part of a step [B, gates] and the states [B, hidden]; returns new states."""


@dataclass(frozen=True)
class Direction:
    """The parameters of one direction of one layer, as torch stores them."""

    inputs: Tensor
    own: Tensor
    input_bias: Tensor | None = None
    own_bias: Tensor | None = None
    projection: Tensor | None = None

    @property
    def bias(self) -> Tensor | None:
        """The sum of both biases."""
        first, second = self.input_bias, self.own_bias
        return None if first is None or second is None else first + second


Cell = Callable[[Direction], tuple[RecurrentStep, Tensor | None]]
"""Returns the step of a direction, and the bias of the product with the inputs."""


def lstm_cell(weights: Direction) -> tuple[RecurrentStep, Tensor | None]:
    """Return a step of long short-term memory; the gates are input, forget, new, output."""

    def step(row: Tensor, states: States) -> States:
        hidden, cell = states
        gates = row + F.linear(hidden, weights.own)
        into, forget, new, out = F.split(gates, 4, -1)
        cell = F.sigmoid(forget) * cell + F.sigmoid(into) * F.tanh(new)
        hidden = F.sigmoid(out) * F.tanh(cell)
        if weights.projection is not None:
            hidden = F.linear(hidden, weights.projection)
        return hidden, cell

    return step, weights.bias


def gru_cell(weights: Direction) -> tuple[RecurrentStep, Tensor | None]:
    """Return a step of gated recurrent units; the gates are reset, update, new."""

    def step(row: Tensor, states: States) -> States:
        (hidden,) = states
        moved = F.linear(hidden, weights.own, weights.own_bias)
        (reset, update, new), own = F.split(row, 3, -1), F.split(moved, 3, -1)
        reset, update = F.sigmoid(reset + own[0]), F.sigmoid(update + own[1])
        new = F.tanh(new + reset * own[2])
        return ((hidden - new) * update + new,)

    return step, weights.input_bias


def plain_cell(activation: Callable[[Tensor], Tensor]) -> Cell:
    """Return the cell whose state is one activation of what it gets."""

    def cell(weights: Direction) -> tuple[RecurrentStep, Tensor | None]:
        def step(row: Tensor, states: States) -> States:
            return (activation(row + F.linear(states[0], weights.own)),)

        return step, weights.bias

    return cell


CELLS: dict[str, Cell] = {
    "lstm": lstm_cell,
    "gru": gru_cell,
    "rnn_tanh": plain_cell(F.tanh),
    "rnn_relu": plain_cell(F.relu),
}


@converts("lstm", "gru", "rnn_tanh", "rnn_relu")
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
    cell = CELLS[operator_name(node.source).partition(".")[0]]
    single, states = x.rank == 2, [start] if isinstance(start, Tensor) else list(start)
    if single:
        x, states = F.expand_dims(x, 1), [F.expand_dims(each, 1) for each in states]
    elif batch_first:
        x = F.swap_axes(x, 0, 1)
    directions = 2 if bidirectional else 1
    each = _directions(params, has_biases, layers * directions)
    firsts = [_rows(state) for state in states]
    lasts: list[States] = []
    for layer in range(layers):
        places = range(layer * directions, (layer + 1) * directions)
        outputs: list[Tensor] = []
        for place in places:
            before = tuple(first[place] for first in firsts)
            made, last = _scanned(cell, each[place], x, before, backwards=place % directions > 0)
            outputs.append(made)
            lasts.append(last)
        x = outputs[0] if directions == 1 else F.concat(outputs, -1)
    stacked = [F.stack([last[i] for last in lasts], 0) for i in range(len(states))]
    if single:
        return (F.squeeze(x, 1), *(F.squeeze(state, 1) for state in stacked))
    return (F.swap_axes(x, 0, 1) if batch_first else x, *stacked)


def _scanned(
    cell: Cell, weights: Direction, x: Tensor, before: States, *, backwards: bool
) -> tuple[Tensor, States]:
    """Return the first state at each step [T, B, hidden], and the last states."""
    step, bias = cell(weights)
    rows = F.linear(x, weights.inputs, bias)

    def body(*values: Tensor) -> tuple[Tensor, ...]:
        made = step(values[-1], values[:-1])
        return (*made, made[0])

    last, (outputs,) = primitives.scan(body, list(before), [rows], reverse=backwards)
    return outputs, last


def _directions(params: Sequence[Tensor], has_biases: bool, count: int) -> list[Direction]:
    """Return the parameters of each direction of each layer, which torch stores in a row."""
    size, more = divmod(len(params), count)
    assert not more
    made: list[Direction] = []
    for place in range(count):
        inputs, own, *rest = params[place * size : (place + 1) * size]
        biases = [rest.pop(0), rest.pop(0)] if has_biases else [None, None]
        made.append(Direction(inputs, own, *biases, *rest))
    return made


def _rows(x: Tensor) -> list[Tensor]:
    """Return the parts of x along its first axis."""
    return [F.squeeze(F.slice_axis(x, 0, i, 1), 0) for i in range(x.shape[0])]
