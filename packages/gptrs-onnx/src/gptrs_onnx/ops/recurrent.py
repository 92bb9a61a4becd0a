"""Recurrent layers: a cell for each direction, run over the sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Node, converts
from gptrs_onnx.ops.activations import hard_sigmoid, leaky_relu, softsign, thresholded_relu
from gptrs_onnx.ops.quantized_layers import dynamic_quantize_matmul

Activation = Callable[[Tensor], Tensor]


def _affine(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return x * alpha + beta


def _scaled_tanh(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return alpha * F.tanh(x * beta)


_ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = {
    "relu": (F.relu, ()),
    "tanh": (F.tanh, ()),
    "sigmoid": (F.sigmoid, ()),
    "softsign": (softsign, ()),
    "softplus": (F.softplus, ()),
    "leakyrelu": (leaky_relu, (0.01,)),
    "thresholdedrelu": (thresholded_relu, (1.0,)),
    "elu": (F.elu, (1.0,)),
    "affine": (_affine, (1.0, 0.0)),
    "hardsigmoid": (hard_sigmoid, (0.2, 0.5)),
    "scaledtanh": (_scaled_tanh, (1.0, 1.0)),
}
"""Activations with the defaults of alpha and beta, where they have these."""
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _activations(node: Node, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
    """Return the activations of each direction; only those with settings read their lists."""
    settings = [iter(node.numbers(f"activation_{name}", [])) for name in ("alpha", "beta")]
    made: list[Activation] = []
    for name in node.texts("activations", list(defaults) * directions):
        if name.lower() not in _ACTIVATIONS:
            node.refuse(f"has the activation {name.lower()[:40]!a}")
        function, own = _ACTIVATIONS[name.lower()]
        # One list of alphas for all activations: those without settings take none, so the order
        # matters.
        given = [next(each, default) for each, default in zip(settings, own, strict=False)]
        made.append(_with(function, given))
    count = len(defaults)
    return [made[i * count : (i + 1) * count] for i in range(directions)]


def _with(function: Callable[..., Tensor], settings: Sequence[float]) -> Activation:
    names = ("alpha", "beta")
    return partial(function, **dict(zip(names, settings, strict=False)))


Cell: TypeAlias = Callable[..., tuple[Tensor, ...] | Tensor]
"""A cell of `functionals` as `_layer` calls it: rows, states, weight, bias, and what is set."""


Projection: TypeAlias = Callable[[Tensor, "Tensor | None"], Tensor]
"""Rows times a weight, plus a bias."""
Weight: TypeAlias = "Tensor | Sequence[Projection]"
"""Weights [directions, gates * hidden, width], or functions that multiply by them."""


def _layer(
    node: Node,
    cell: Callable[[list[Activation], int], Cell],
    defaults: Sequence[str],
    tensors: tuple[Tensor, Weight, Weight, Tensor | None, Tensor | None],
    starts: Sequence[Tensor | None],
    adds_biases: bool = True,
) -> tuple[Tensor, ...]:
    """Return outputs [T, directions, B, hidden] and last states [directions, B, hidden].

    With `layout` B comes first in all. `cell` takes the activations of a direction and its number.
    `adds_biases` tells whether the biases of input and state are one sum, which is cheaper.
    """
    x, weight, recurrence, bias, lengths = tensors
    direction = node.text("direction", "forward")
    if direction not in _DIRECTIONS:
        node.malformed(f"has the direction {direction[:40]!a}")
    reversals, batch_first = _DIRECTIONS[direction], node.flag("layout")
    if batch_first:
        x = F.swap_axes(x, 0, 1)
        starts = [None if each is None else F.swap_axes(each, 0, 1) for each in starts]
    functions = _activations(node, defaults, len(reversals))
    outputs: list[Tensor] = []
    lasts: list[Sequence[Tensor]] = []
    for i, reverse in enumerate(reversals):
        first, second = (None, None) if bias is None else F.split(_part(bias, i), 2, 0)
        if adds_biases and first is not None and second is not None:
            first, second = first + second, None
        step = _step(cell(functions[i], i), recurrence, i, second)
        nothing = F.zeros([x.shape[1], node.integer("hidden_size")], x.dtype)
        states = [nothing if each is None else _part(each, i) for each in starts]
        # The inputs of all steps are multiplied at once: one large product instead of T small ones
        # within the loop.
        rows = _projected(weight, i, x, first)
        made, last = F.rnn(step, rows, states, reverse, lengths)
        if lengths is not None:
            last = [_of_begun(lengths, each) for each in last]
        outputs.append(made)
        lasts.append(last)
    whole = F.stack(outputs, 1)
    stacked = [F.stack(each, 0) for each in zip(*lasts, strict=True)]
    if batch_first:
        whole = F.transpose(whole, [2, 0, 1, 3])
        stacked = [F.swap_axes(each, 0, 1) for each in stacked]
    return (whole, *stacked)


def _of_begun(lengths: Tensor, state: Tensor) -> Tensor:
    """Return states, zeros for empty sequences: as in ONNX Runtime, the standard is silent."""
    return F.where(F.expand_dims(lengths > 0, -1), state, F.zeros([], state.dtype))


def _part(x: Tensor, direction: int) -> Tensor:
    return F.squeeze(F.slice_axis(x, 0, direction, 1), 0)


def _projected(weight: Weight, direction: int, rows: Tensor, bias: Tensor | None) -> Tensor:
    if isinstance(weight, Tensor):
        return F.linear(rows, _part(weight, direction), bias)
    return weight[direction](rows, bias)


def _step(cell: Cell, weight: Weight, direction: int, bias: Tensor | None) -> Cell:
    own = _part(weight, direction) if isinstance(weight, Tensor) else None

    def step(row: Tensor, state: Tensor, *states: Tensor) -> tuple[Tensor, ...] | Tensor:
        if own is None:  # the cell gets the state's share of the gates with the row's
            row = row + _projected(weight, direction, state, bias)
            return cell(row, state, *states, None)
        return cell(row, state, *states, own, bias)

    return step


def _clip(node: Node) -> float | None:
    return node.number("clip", 0.0) or None


@converts("RNN")
def rnn(
    node: Node,
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    start: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the states of Elman's network at each step, and the last one."""

    def cell(functions: list[Activation], direction: int) -> Cell:
        del direction
        return partial(F.rnn_cell, activation=functions[0], clip=_clip(node))

    return _layer(node, cell, ["Tanh"], (x, weight, recurrence, bias, lengths), [start])


@converts("GRU")
def gru(
    node: Node,
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    start: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the states of gated recurrent units at each step, and the last one."""

    def cell(functions: list[Activation], direction: int) -> Cell:
        del direction
        f, g = functions
        return partial(
            F.gru_cell,
            order="zrn",
            reset_after=node.flag("linear_before_reset"),
            activations=(f, g),
            clip=_clip(node),
        )

    tensors = (x, weight, recurrence, bias, lengths)
    return _layer(node, cell, ["Sigmoid", "Tanh"], tensors, [start], adds_biases=False)


@converts("LSTM")
def lstm(
    node: Node,
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    start: Tensor | None = None,
    start_cell: Tensor | None = None,
    peepholes: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the states of long short-term memory at each step, and the last state and cell."""

    return _lstm(node, (x, weight, recurrence, bias, lengths), [start, start_cell], peepholes)


def _lstm(
    node: Node,
    tensors: tuple[Tensor, Weight, Weight, Tensor | None, Tensor | None],
    starts: Sequence[Tensor | None],
    peepholes: Tensor | None,
) -> tuple[Tensor, ...]:
    def cell(functions: list[Activation], direction: int) -> Cell:
        f, g, h = functions
        return partial(
            F.lstm_cell,
            order="iofg",
            peepholes=None if peepholes is None else _part(peepholes, direction),
            coupled=node.flag("input_forget"),
            activations=(f, g, h),
            clip=_clip(node),
        )

    return _layer(node, cell, ["Sigmoid", "Tanh", "Tanh"], tensors, starts)


@converts("com.microsoft.DynamicQuantizeLSTM")
def dynamic_quantize_lstm(
    node: Node,
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None,
    lengths: Tensor | None,
    start: Tensor | None,
    start_cell: Tensor | None,
    peepholes: Tensor | None,
    weight_scale: Tensor,
    weight_zero: Tensor,
    recurrence_scale: Tensor,
    recurrence_zero: Tensor,
) -> tuple[Tensor, ...]:
    """Return what `LSTM` does for weights of 8 bits [directions, width, 4 * hidden].

    The sequence is quantized by its own range, and so are the states before each step, of all rows
    together: states of rows that have ended count as they are.
    """
    if lengths is not None:  # rows after the longest sequence must not widen the range
        inside = F.arange(x.shape[0]) < F.max(F.cast(lengths, dtypes.si64))
        x = F.where(F.reshape(inside, [-1, 1, 1]), x, F.zeros([], x.dtype))
    products = [
        [
            partial(_quantized_product, *(_part(each, i) for each in parts))
            for i in range(weight.shape[0])
        ]
        for parts in (
            (weight, weight_scale, weight_zero),
            (recurrence, recurrence_scale, recurrence_zero),
        )
    ]
    tensors = (x, products[0], products[1], bias, lengths)
    return _lstm(node, tensors, [start, start_cell], peepholes)


def _quantized_product(
    weight: Tensor, scale: Tensor, zero: Tensor, rows: Tensor, bias: Tensor | None
) -> Tensor:
    return dynamic_quantize_matmul(rows, weight, scale, zero, bias)
