"""Recurrent layers: a scan over time for each direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.conversion import converts
from gptrs_onnx.node import Node

Activation = Callable[[Tensor], Tensor]
RecurrentStep = Callable[..., tuple[Tensor, ...]]
_PLAIN: dict[str, Activation] = {
    "relu": F.relu,
    "tanh": F.tanh,
    "sigmoid": F.sigmoid,
    "softsign": lambda x: x / (1.0 + F.abs(x)),
    "softplus": F.softplus,
}
_WITH_ALPHA: dict[str, tuple[float, Callable[[Tensor, float], Tensor]]] = {
    "leakyrelu": (0.01, lambda x, alpha: F.leaky_relu(x, alpha)),
    "thresholdedrelu": (1.0, lambda x, alpha: F.where(x > alpha, x, 0.0)),
    "elu": (1.0, lambda x, alpha: F.elu(x, alpha)),
}
_WITH_BOTH: dict[str, tuple[float, float, Callable[[Tensor, float, float], Tensor]]] = {
    "affine": (1.0, 0.0, lambda x, alpha, beta: x * alpha + beta),
    "hardsigmoid": (0.2, 0.5, lambda x, alpha, beta: F.clamp(x * alpha + beta, 0.0, 1.0)),
    "scaledtanh": (1.0, 1.0, lambda x, alpha, beta: alpha * F.tanh(x * beta)),
}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _activations(node: Node, defaults: Sequence[str]) -> list[list[Activation]]:
    """Return the activations of each direction."""
    directions = len(_reversals(node))
    names = [each.lower() for each in node.texts("activations", list(defaults) * directions)]
    alphas = iter(node.numbers("activation_alpha", []))
    betas = iter(node.numbers("activation_beta", []))
    made: list[Activation] = []
    for name in names:
        if name in _PLAIN:
            made.append(_PLAIN[name])
        elif name in _WITH_ALPHA:
            default, function = _WITH_ALPHA[name]
            made.append(_with(function, next(alphas, default)))
        elif name in _WITH_BOTH:
            first, second, both = _WITH_BOTH[name]
            made.append(_with(both, next(alphas, first), next(betas, second)))
        else:
            node.refuse(f"has the activation {name[:40]!a}")
    count = len(defaults)
    return [made[i * count : (i + 1) * count] for i in range(directions)]


def _with(function: Callable[..., Tensor], *settings: float) -> Activation:
    return lambda x: function(x, *settings)


def _reversals(node: Node) -> tuple[bool, ...]:
    direction = node.text("direction", "forward")
    if direction not in _DIRECTIONS:
        node.malformed(f"has the direction {direction[:40]!a}")
    return _DIRECTIONS[direction]


class _Layer:
    """The inputs that all recurrent layers share, time first, and how results are put together."""

    def __init__(self, node: Node, x: Tensor, weight: Tensor, lengths: Tensor | None) -> None:
        self.node = node
        self.batch_first = node.flag("layout")
        self.x = F.swap_axes(x, 0, 1) if self.batch_first else x
        self.time, self.batch = self.x.shape[:2]
        self.hidden = node.integer("hidden_size")
        self.weight = weight
        self.lengths = None if lengths is None else F.cast(lengths, dtypes.si64)

    def start(self, given: Tensor | None, direction: int) -> Tensor:
        """Return the state before the first step [B, hidden]."""
        if given is None:
            return F.zeros([self.batch, self.hidden], self.x.dtype)
        state = F.swap_axes(given, 0, 1) if self.batch_first else given
        return F.squeeze(F.slice_axis(state, 0, direction, 1), 0)

    def run(
        self,
        step: RecurrentStep,
        states: Sequence[Tensor],
        projected: Tensor,
        backwards: bool,
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the last states and all first ones [T, B, hidden], padding left out."""
        numbers = F.arange(self.time)
        lengths = self.lengths

        def body(*values: Tensor) -> tuple[Tensor, ...]:
            old, (row, number) = values[: len(states)], values[len(states) :]
            new = step(row, *old)
            if lengths is None:
                return (*new, new[0])
            inside = F.expand_dims(number < lengths, 1)
            kept = [F.where(inside, n, o) for n, o in zip(new, old, strict=True)]
            return (*kept, F.where(inside, new[0], F.zeros([], new[0].dtype)))

        last, (outputs,) = primitives.scan(
            body, list(states), [projected, numbers], reverse=backwards
        )
        return last, outputs

    def over_directions(
        self,
        recurrence: Tensor,
        bias: Tensor | None,
        defaults: Sequence[str],
        made: Callable[[_Direction], tuple[RecurrentStep, Sequence[Tensor], Tensor]],
    ) -> tuple[Tensor, ...]:
        """Return the outputs and last states; `made` gives the step, first states and inputs."""
        outputs: list[Tensor] = []
        lasts: list[tuple[Tensor, ...]] = []
        functions = _activations(self.node, defaults)
        for place, backwards in enumerate(_reversals(self.node)):
            matrix, own = _part(self.weight, place), _part(recurrence, place)
            assert matrix is not None
            assert own is not None
            one = _Direction(place, matrix, own, _biases(bias, place), functions[place])
            step, states, projected = made(one)
            last, whole = self.run(step, states, projected, backwards)
            outputs.append(whole)
            lasts.append(last)
        return self.joined(outputs, lasts)

    def joined(
        self, outputs: Sequence[Tensor], lasts: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, ...]:
        """Return outputs [T, directions, B, hidden] and last states [directions, B, hidden]."""
        whole = F.stack(list(outputs), 1)
        states = [F.stack([each[i] for each in lasts], 0) for i in range(len(lasts[0]))]
        if self.batch_first:
            whole = F.transpose(whole, [2, 0, 1, 3])
            states = [F.swap_axes(state, 0, 1) for state in states]
        return (whole, *states)


def _part(x: Tensor | None, direction: int) -> Tensor | None:
    return None if x is None else F.squeeze(F.slice_axis(x, 0, direction, 1), 0)


def _biases(bias: Tensor | None, direction: int) -> tuple[Tensor | None, Tensor | None]:
    part = _part(bias, direction)
    if part is None:
        return None, None
    first, second = F.split(part, 2, 0)
    return first, second


def _clipped(node: Node, x: Tensor) -> Tensor:
    bound = node.number("clip", 0.0)
    return F.clamp(x, -bound, bound) if bound else x


@dataclass(frozen=True)
class _Direction:
    """The weights, biases of input and state, and activations of one direction."""

    place: int
    matrix: Tensor
    own: Tensor
    biases: tuple[Tensor | None, Tensor | None]
    functions: list[Activation]

    @property
    def bias(self) -> Tensor | None:
        """The sum of both biases."""
        first, second = self.biases
        return None if first is None or second is None else first + second


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
    """Return `h = f(x W^T + h R^T + b)` at each step, and the last h."""
    layer = _Layer(node, x, weight, lengths)

    def made(one: _Direction) -> tuple[RecurrentStep, Sequence[Tensor], Tensor]:
        (function,) = one.functions

        def step(row: Tensor, state: Tensor) -> tuple[Tensor]:
            return (function(_clipped(node, row + F.linear(state, one.own))),)

        return step, [layer.start(start, one.place)], F.linear(layer.x, one.matrix, one.bias)

    return layer.over_directions(recurrence, bias, ["Tanh"], made)


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
    """Return the states of gated recurrent units (Cho et al. 2014) at each step, and the last."""
    layer = _Layer(node, x, weight, lengths)
    resets_state = not node.flag("linear_before_reset")
    sizes = [2 * layer.hidden, layer.hidden]

    def made(one: _Direction) -> tuple[RecurrentStep, Sequence[Tensor], Tensor]:
        first, second = one.biases
        owns: Sequence[Tensor] = [one.own]
        biases: Sequence[Tensor | None] = [second]
        if resets_state:
            owns = F.split(one.own, sizes, 0)
            biases = (None, None) if second is None else F.split(second, sizes, 0)
        step = partial(_gru_step, node, one.functions, owns, biases)
        return step, [layer.start(start, one.place)], F.linear(layer.x, one.matrix, first)

    return layer.over_directions(recurrence, bias, ["Sigmoid", "Tanh"], made)


def _gru_step(
    node: Node,
    functions: Sequence[Activation],
    owns: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    row: Tensor,
    state: Tensor,
) -> tuple[Tensor]:
    """Return the next state.

    One recurrent matrix is for all three: the reset applies after the product. Of two the second
    multiplies the state that was reset.
    """
    f, g = functions
    width = state.shape[-1]
    row_gates, row_hidden = F.split(row, [2 * width, width], -1)
    product = F.linear(state, owns[0], biases[0])
    gates, *moved = [product] if len(owns) > 1 else F.split(product, [2 * width, width], -1)
    update, reset = F.split(f(_clipped(node, row_gates + gates)), 2, -1)
    change = reset * moved[0] if moved else F.linear(reset * state, owns[1], biases[1])
    hidden = g(_clipped(node, row_hidden + change))
    return ((1.0 - update) * hidden + update * state,)


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
    """Return the states of long short-term memory (Hochreiter, Schmidhuber 1997), and the last."""
    layer = _Layer(node, x, weight, lengths)

    def made(one: _Direction) -> tuple[RecurrentStep, Sequence[Tensor], Tensor]:
        step = partial(_lstm_step, node, one.functions, one.own, _part(peepholes, one.place))
        states = [layer.start(start, one.place), layer.start(start_cell, one.place)]
        return step, states, F.linear(layer.x, one.matrix, one.bias)

    return layer.over_directions(recurrence, bias, ["Sigmoid", "Tanh", "Tanh"], made)


def _lstm_step(
    node: Node,
    functions: Sequence[Activation],
    own: Tensor,
    peepholes: Tensor | None,
    row: Tensor,
    state: Tensor,
    cell: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the next state and cell; gates are in the order input, output, forget, cell."""
    f, g, h = functions
    gates = row + F.linear(state, own)
    into, out, forget, new = F.split(gates, 4, -1)
    looks = (None, None, None) if peepholes is None else F.split(peepholes, 3, 0)
    into = f(_clipped(node, _seen(into, looks[0], cell)))
    kept = f(_clipped(node, _seen(forget, looks[2], cell)))
    if node.flag("input_forget"):
        kept = 1.0 - into
    following = kept * cell + into * g(_clipped(node, new))
    out = f(_clipped(node, _seen(out, looks[1], following)))
    return out * h(following), following


def _seen(gate: Tensor, peephole: Tensor | None, cell: Tensor) -> Tensor:
    """Return the sum of a gate, and what it sees of the cell."""
    return gate if peephole is None else gate + peephole * cell
