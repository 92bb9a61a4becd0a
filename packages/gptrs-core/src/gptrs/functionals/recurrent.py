"""Recurrent cells, and the loop that carries their states along a sequence.

Cells take the projected input, `linear(x, W, b)`, so that one product before the loop projects the
whole sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.arithmetic import clamp, where
from gptrs.functionals.creation import arange, linear, zeros
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.elementwise import sigmoid, tanh
from gptrs.functionals.layout import reshape, split
from gptrs.functionals.operands import (
    require_float,
    require_integer,
    require_one_of,
    require_shape,
)
from gptrs.ir import dtypes

Activation = Callable[[Tensor], Tensor]
"""A function of each element, such as `functionals.tanh`."""
Step = Callable[..., Tensor | Sequence[Tensor]]
"""Takes the row of a step and the states; returns one or several new states."""


@functional
def rnn_cell(
    inputs: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation = tanh,
    clip: float | None = None,
) -> Tensor:
    """`activation(inputs + state weight^T + bias)` (Elman 1990), the next state [B, H].

    `inputs` [B, H] is the projected input, `linear(x, W, b)`; `weight` is [H, H], `bias` [H].
    `clip` bounds the operand of the activation to [-clip, clip]. UsageError for shapes that do not
    fit.
    """
    width = state.shape[-1] if state.rank else 0
    _require_gates("rnn_cell", inputs, state, weight, 1, width)
    return activation(_clipped(inputs + linear(state, weight, bias), clip))


@functional
def gru_cell(
    inputs: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    order: Literal["rzn", "zrn"] = "rzn",
    reset_after: bool = True,
    activations: tuple[Activation, Activation] = (sigmoid, tanh),
    clip: float | None = None,
) -> Tensor:
    """The next state [B, H] of gated recurrent units: `(1 - z) * n + z * state`.

    f and g are the `activations`, i the thirds of the projected input, `inputs` [B, 3 H], and W and
    b those of `weight` [3 H, H] and `bias` [3 H]:

        r = f(i_r + state W_r^T + b_r)
        z = f(i_z + state W_z^T + b_z)
        n = g(i_n + r * (state W_n^T + b_n))        reset_after (Chung et al. 2014; torch, cuDNN)
        n = g(i_n + (r * state) W_n^T + b_n)        not reset_after (Cho et al. 2014)

    `reset_after` is `linear_before_reset` of ONNX. `order` lists the thirds: "rzn" as in torch,
    "zrn" as in ONNX and Keras. `clip` bounds the operands of f and g to [-clip, clip]. UsageError
    for shapes that do not fit and for another order.
    """
    require_one_of("gru_cell", "order", order, ("rzn", "zrn"))
    width = state.shape[-1] if state.rank else 0
    _require_gates("gru_cell", inputs, state, weight, 3, width)
    gate, new = activations
    parts = [2 * width, width]
    rows, candidate = split(inputs, parts)

    def gated(moved: Tensor) -> tuple[Tensor, Tensor]:
        first, second = split(gate(_clipped(rows + moved, clip)), 2)
        return (first, second) if order == "rzn" else (second, first)

    if reset_after:
        moved, change = split(linear(state, weight, bias), parts)
        reset, update = gated(moved)
        change = reset * change
    else:
        # The optimizer hoists these parts out of the loop, since no step changes them.
        weights = split(weight, parts, 0)
        biases = (None, None) if bias is None else split(bias, parts, 0)
        reset, update = gated(linear(state, weights[0], biases[0]))
        change = linear(reset * state, weights[1], biases[1])
    return (1.0 - update) * new(_clipped(candidate + change, clip)) + update * state


@functional
def lstm_cell(
    inputs: Tensor,
    state: Tensor,
    cell: Tensor,
    weight: Tensor | None,
    bias: Tensor | None = None,
    order: str = "ifgo",
    peepholes: Tensor | None = None,
    coupled: bool = False,
    activations: tuple[Activation, Activation, Activation] = (sigmoid, tanh, tanh),
    clip: float | None = None,
    projection: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The next state [B, H] and cell [B, H] of long short-term memory (Gers et al. 2000).

    s, t and u are the `activations`; i, f, g and o are the quarters of the sum of the projected
    input, `inputs` [B, 4 H], and `linear(state, weight, bias)`, `weight` [4 H, H]:

        cell' = s(f) * cell + s(i) * t(g)
        state' = s(o) * u(cell')

    `order` lists the quarters: "ifgo" as in torch and Keras, "iofg" as in ONNX. `peepholes` [3 H]
    for i, o and f, multiplied by the cell (o: by the new cell), are added to these gates (Gers,
    Schmidhuber 2000). `coupled` computes `1 - s(i)` for `s(f)` (Greff et al. 2015). `clip` bounds
    the operands of s and t to [-clip, clip]. `projection` [P, H] makes the state `state'
    projection^T` [B, P], and `weight` [4 H, P] (Sak et al. 2014). Without `weight`, `inputs` is the
    whole sum, for products other than `linear`.

    UsageError for shapes that do not fit and for an order that has other letters.
    """
    width = cell.shape[-1] if cell.rank else 0
    _require_gates("lstm_cell", inputs, state, weight, 4, width)
    _require_lstm(order, state, cell, width)
    gate, new, out = activations
    sums = inputs if weight is None else inputs + linear(state, weight, bias)
    gates = dict(zip(order, split(sums, 4), strict=True))
    seen: dict[str, Tensor] = {}
    if peepholes is not None:
        require_shape("lstm_cell", "peepholes", peepholes, (3 * width,))
        seen = dict(zip("iof", split(peepholes, 3), strict=True))

    def opened(letter: str, cell: Tensor) -> Tensor:
        x = gates[letter] + seen[letter] * cell if seen else gates[letter]
        return gate(_clipped(x, clip))

    into = opened("i", cell)
    kept = 1.0 - into if coupled else opened("f", cell)
    cell = kept * cell + into * new(_clipped(gates["g"], clip))
    state = opened("o", cell) * out(cell)
    return state if projection is None else linear(state, projection), cell


@functional
def rnn(
    step: Step,
    inputs: Tensor,
    states: Tensor | Sequence[Tensor],
    reverse: bool = False,
    lengths: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The first state after each row of a sequence, [T, ...], and all states after the last one.

    `step(row, *states)`, such as a cell, returns the next states for each row of `inputs` [T, B,
    ...]; `reverse` goes from the last row to the first one. `lengths` [B], integers, end sequences
    early: later rows leave the states unchanged and give 0, as with ONNX's `sequence_lens` and
    torch's packed sequences. A bidirectional layer is two calls, whose outputs torch concatenates
    along the last axis and ONNX stacks.

        gates = F.linear(x, w_ih, b_ih)
        outputs, (h, c) = F.rnn(lambda row, h, c: F.lstm_cell(row, h, c, w_hh, b_hh), gates, (h, c))

    UsageError for inputs without rows, for no states, and for a step that returns other types.
    """
    olds = (states,) if isinstance(states, Tensor) else tuple(states)
    if inputs.rank < 1 or not olds:
        raise UsageError(f"`rnn` needs rows and states, got `{inputs.type}` and {len(olds)} states")
    scanned = [inputs]
    if lengths is not None:
        require_integer("rnn", lengths=lengths)
        require_shape("rnn", "lengths", lengths, inputs.shape[1:2])
        lengths = lengths if lengths.dtype is dtypes.si64 else primitives.cast(lengths, dtypes.si64)
        scanned.append(arange(inputs.shape[0]))

    def body(*values: Tensor) -> tuple[Tensor, ...]:
        old, row = values[: len(olds)], values[len(olds)]
        new = _several(step(row, *old))
        if [each.type for each in new] != [each.type for each in old]:
            taken, made = (", ".join(f"`{each.type}`" for each in group) for group in (old, new))
            raise UsageError(f"`rnn` needs a step that returns states of {taken}, got {made}")
        if lengths is None:
            return (*new, new[0])
        inside = values[-1] < lengths
        kept = (_where_inside(inside, n, o) for n, o in zip(new, old, strict=True))
        return (*kept, _where_inside(inside, new[0], zeros([], new[0].dtype)))

    last, (outputs,) = primitives.scan(body, olds, scanned, reverse=reverse)
    return outputs, last


def _where_inside(inside: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return where(reshape(inside, [-1, *[1] * (new.rank - 1)]), new, old)


def _several(states: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (states,) if isinstance(states, Tensor) else tuple(states)


def _require_lstm(order: str, state: Tensor, cell: Tensor, width: int) -> None:
    require_shape("lstm_cell", "cell", cell, (*state.shape[:-1], width))
    if sorted(order) != sorted("ifgo"):
        raise UsageError(f'`lstm_cell` needs the letters of "ifgo" as `order`, got {order!r}')


def _clipped(x: Tensor, clip: float | None) -> Tensor:
    return x if clip is None else clamp(x, -clip, clip)


def _require_gates(
    name: str, inputs: Tensor, state: Tensor, weight: Tensor | None, gates: int, width: int
) -> None:
    """UsageError unless inputs and weight have `gates` gates of one width; `linear` checks the
    rest."""
    require_float(name, inputs=inputs, state=state)
    wanted = (*state.shape[:-1], gates * width)
    require_shape(name, "inputs", inputs, wanted)
    if weight is not None and (weight.rank != 2 or weight.shape[0] != gates * width):
        raise UsageError(
            f"`{name}` of {gates} gates of {width} needs a `weight` of {gates * width} rows, got"
            f" `{weight.type}`"
        )
