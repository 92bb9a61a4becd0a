"""Optimizers as pairs of functions over trees of tensors, `init` and `update`, like optax's.

Moments are f32 whatever the type of the gradients, and all of it is captured: an update is part of
the program of a training step, which `gptrs.jit(..., donate=[...])` runs in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gptrs import functionals as F
from gptrs.api.models import Tensor
from gptrs.api.programs import dtypes
from gptrs.capture.jitting.pytree import flatten, rebuild
from gptrs_train.schedules import Schedule

Tree = Any
"""A tensor, or containers of tensors, as `gptrs.jit` takes them."""
Decayed = Callable[[Tensor], bool]
"""Whether weight decay applies to a parameter."""


class Optimizer(NamedTuple):
    """An optimizer as a pair of functions: its first state, and the changes of parameters."""

    init: Callable[[Tree], Tree]
    """`init(params)` returns the state before the first update: zeros."""
    update: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]
    """`update(grads, state, params)` returns what to add to the parameters, and the next state.

    The three trees of tensors are nested alike."""


def apply_updates(params: Tree, updates: Tree) -> Tree:
    """Return the parameters with the updates added; each keeps its type."""
    return _joined(lambda p, u: p + F.cast(u, p.dtype), params, updates)


def every(parameter: Tensor) -> bool:
    """Decay all parameters, as torch does."""
    return True


def matrices(parameter: Tensor) -> bool:
    """Decay parameters of two axes or more: neither biases nor norms."""
    return parameter.rank > 1


def sgd(
    rate: Schedule,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    decayed: Decayed = every,
) -> Optimizer:
    """Return stochastic gradient descent, with momentum as `torch.optim.SGD` has it."""

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        count, moments = state["count"], state.get("moment")
        step = -_rate(rate, count)

        def of(g: Tensor, p: Tensor, *moment: Tensor) -> Sequence[Tensor]:
            g = _wide(g)
            if weight_decay and decayed(p):
                g = g + weight_decay * _wide(p)
            if not moment:
                return (step * g,)
            kept = moment[0] * momentum + g
            return step * (g + momentum * kept if nesterov else kept), kept

        if moments is None:
            return _each(of, grads, params)[0], {"count": count + 1}
        updates, moments = _each(of, grads, params, moments)
        return updates, {"count": count + 1, "moment": moments}

    def init(params: Tree) -> Tree:
        return {"count": _zero(), **({"moment": _zeros(params)} if momentum else {})}

    return Optimizer(init, update)


def adamw(
    rate: Schedule,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    weight_decay: float = 0.01,
    decayed: Decayed = every,
) -> Optimizer:
    """Return AdamW (Loshchilov and Hutter 2019) with the defaults of `torch.optim.AdamW`.

    With `weight_decay` 0 it is Adam.
    """
    first, second = betas

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        count = state["count"]
        # The count is an integer: f32 stops counting at 2^24 updates.
        made = _wide(count) + 1.0
        step, mean_left, square_left = _rate(rate, count), _left(first, made), _left(second, made)

        def of(g: Tensor, p: Tensor, mean: Tensor, square: Tensor) -> Sequence[Tensor]:
            g = _wide(g)
            # The forms of torch (lerp, then mul and addcmul), so that rounding agrees with it over
            # many steps.
            mean = _moved(mean, g, first)
            square = square * second + g * g * (1 - second)
            # Epsilon outside the root, and after the correction, as in torch; inside it, small
            # gradients would take other steps.
            change = mean / mean_left / (F.sqrt(square / square_left) + epsilon)
            return -step * _with_decay(change, p, weight_decay, decayed), mean, square

        updates, means, squares = _each(of, grads, params, state["mean"], state["square"])
        return updates, {"count": count + 1, "mean": means, "square": squares}

    def init(params: Tree) -> Tree:
        return {"count": _zero(), "mean": _zeros(params), "square": _zeros(params)}

    return Optimizer(init, update)


def lion(
    rate: Schedule,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    decayed: Decayed = every,
) -> Optimizer:
    """Return Lion (Chen et al. 2023): steps of one size, with the sign of a moment.

    Its rate should be three to ten times lower than AdamW's, its decay as much higher.
    """
    first, second = betas

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        count = state["count"]
        step = _rate(rate, count)

        def of(g: Tensor, p: Tensor, mean: Tensor) -> Sequence[Tensor]:
            g = _wide(g)
            # Two different averages, as in the paper: the step uses `first`, the kept moment
            # `second`.
            change = F.sign(mean * first + g * (1 - first))
            kept = mean * second + g * (1 - second)
            return -step * _with_decay(change, p, weight_decay, decayed), kept

        updates, means = _each(of, grads, params, state["mean"])
        return updates, {"count": count + 1, "mean": means}

    def init(params: Tree) -> Tree:
        return {"count": _zero(), "mean": _zeros(params)}

    return Optimizer(init, update)


_QUINTIC: Final = (3.4445, -4.7750, 2.0315)
"""Coefficients of `orthogonalized`, chosen by Jordan for the steepest slope at 0."""
_MUON_RMS: Final = 0.2


def muon(
    rate: Schedule,
    momentum: float = 0.95,
    nesterov: bool = True,
    weight_decay: float = 0.1,
    steps: int = 5,
) -> Optimizer:
    """Return Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon/) for matrices.

    The moment of each matrix is replaced by nearly the closest orthogonal matrix. Its size is that
    of AdamW's updates (`match_rms_adamw` of `torch.optim.Muon`, from Liu et al. 2025,
    arXiv:2502.16982), so that the rates of AdamW apply. More than two axes are stacks of matrices.
    For hidden layers: tables, heads and vectors need another optimizer, see `divided`.
    """

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        count = state["count"]
        step = _rate(rate, count)

        def of(g: Tensor, p: Tensor, mean: Tensor) -> Sequence[Tensor]:
            g = _wide(g)
            mean = _moved(mean, g, momentum)
            change = orthogonalized(g + (mean - g) * momentum if nesterov else mean, steps)
            size = _MUON_RMS * math.sqrt(max(map(int, p.shape[-2:])))
            return -step * _with_decay(change * size, p, weight_decay, every), mean

        updates, means = _each(of, grads, params, state["mean"])
        return updates, {"count": count + 1, "mean": means}

    def init(params: Tree) -> Tree:
        return {"count": _zero(), "mean": _zeros(params)}

    return Optimizer(init, update)


def orthogonalized(x: Tensor, steps: int = 5) -> Tensor:
    """Return matrices [..., M, N] whose singular values are moved to 0.7 ... 1.2.

    The quintic Newton-Schulz iteration of Muon. It squares the smaller side, so that a step
    multiplies min(M, N)^2 by max(M, N) numbers twice.
    """
    tall = int(x.shape[-2]) > int(x.shape[-1])
    axes = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    x = F.transpose(x, axes) if tall else x
    norm = F.sqrt(F.sum(F.square(x), (-2, -1), keepdims=True))
    x = x / F.maximum(norm, 1e-7)
    a, b, c = _QUINTIC
    for _ in range(steps):
        gram = x @ F.transpose(x, axes)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return F.transpose(x, axes) if tall else x


def divided(one: Optimizer, other: Optimizer, takes: Callable[[str], bool]) -> Optimizer:
    """Return an optimizer of parameters by name: `one` for those that it `takes`, else `other`."""

    def parts(tree: Mapping[str, Tree]) -> tuple[dict[str, Tree], dict[str, Tree]]:
        own = {name: value for name, value in tree.items() if takes(name)}
        return own, {name: value for name, value in tree.items() if name not in own}

    def init(params: Tree) -> Tree:
        own, rest = parts(params)
        return {
            "count": _zero(),
            **({"one": one.init(own)} if own else {}),
            **({"other": other.init(rest)} if rest else {}),
        }

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        after, updates = {"count": state["count"] + 1}, dict(grads)
        for label, optimizer, g, p in zip(
            ("one", "other"), (one, other), parts(grads), parts(params), strict=True
        ):
            if p:
                own, after[label] = optimizer.update(g, state[label], p)
                updates |= own
        return updates, after

    return Optimizer(init, update)


def adafactor(
    rate: Schedule,
    decay_rate: float = -0.8,
    clip: float = 1.0,
    epsilons: tuple[float, float] = (1e-30, 1e-3),
    scale_parameter: bool = True,
    weight_decay: float = 0.0,
    decayed: Decayed = every,
) -> Optimizer:
    """Return Adafactor (Shazeer and Stern 2018) without momentum, as transformers has it.

    A parameter of two axes or more keeps two vectors instead of a second moment of its own size.
    `scale_parameter` multiplies the rate by the root mean square of the parameter, at least the
    second of `epsilons`. transformers' `relative_step` is a schedule here.
    """
    least, least_scale = epsilons

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        count = state["count"]
        step = _rate(rate, count)
        # 1 - second moment's decay; the first update replaces the zeros.
        new = F.pow(_wide(count) + 1.0, decay_rate)

        def of(g: Tensor, p: Tensor, row: Tensor, column: Tensor) -> Sequence[Tensor]:
            g = _wide(g)
            change, row, column = _factored(g, g * g + least, row, column, new)
            change = change / F.maximum(_root_mean_square(change) / clip, 1.0)
            own = F.maximum(_root_mean_square(p), least_scale) * step if scale_parameter else step
            decay = weight_decay * _wide(p) if weight_decay and decayed(p) else 0.0
            return -own * (change + decay), row, column

        updates, rows, columns = _each(of, grads, params, state["row"], state["column"])
        return updates, {"count": count + 1, "row": rows, "column": columns}

    def init(params: Tree) -> Tree:
        rows, columns = _each(_factors, params)
        return {"count": _zero(), "row": rows, "column": columns}

    return Optimizer(init, update)


def _factors(p: Tensor) -> Sequence[Tensor]:
    """Return the zeros from which Adafactor starts the second moment of a parameter."""
    if p.rank < _MATRIX:
        return F.zeros(p.shape), F.zeros((0,))
    return F.zeros(p.shape[:-1]), F.zeros((*p.shape[:-2], p.shape[-1]))


def _factored(
    g: Tensor, square: Tensor, row: Tensor, column: Tensor, new: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a gradient divided by the root of its second moment, and the factors of that."""
    if g.rank < _MATRIX:
        row = row + (square - row) * new
        return g * F.rsqrt(row), row, column
    row = row + (F.mean(square, -1) - row) * new
    column = column + (F.mean(square, -2) - column) * new
    rows = F.rsqrt(row / F.mean(row, -1, keepdims=True))
    return g * F.expand_dims(rows, -1) * F.expand_dims(F.rsqrt(column), -2), row, column


def global_norm(tree: Tree) -> Tensor:
    """Return the Euclidean norm of all elements of a tree, f32 []."""
    leaves: list[Tensor] = []
    flatten(tree, leaves)
    total: Tensor | float = 0.0
    for leaf in leaves:
        total = total + F.sum(F.square(_wide(leaf)))
    assert isinstance(total, Tensor), "a tree of gradients has a tensor"
    return F.sqrt(total)


def clip_by_global_norm(
    grads: Tree, most: float, share: Tensor | float = 1.0
) -> tuple[Tree, Tensor]:
    """Return the gradients times `share` scaled to a norm of at most `most`, and the norm before.

    As `torch.nn.utils.clip_grad_norm_`, which adds 1e-6 to the norm that it divides by.
    """
    # Of the gradients as they are: times `share`, all would be written, to be read only twice.
    norm = global_norm(grads) * share
    # An infinite `most` gives 1 here; an infinite norm gives 0 * inf = NaN, which the trainer
    # reports.
    scale = F.minimum(most / (norm + 1e-6), 1.0)
    return scaled(grads, scale * share), norm


def scaled(tree: Tree, factor: Tensor) -> Tree:
    """Return a tree with all of its tensors multiplied by `factor`, f32 []."""
    return _mapped(lambda x: x * F.cast(factor, x.dtype), tree)


def added(one: Tree, other: Tree) -> Tree:
    """Return the sums of the tensors of two trees."""
    return _joined(lambda x, y: x + y, one, other)


_MATRIX: Final = 2


def _with_decay(change: Tensor, p: Tensor, weight_decay: float, decayed: Decayed) -> Tensor:
    return change + weight_decay * _wide(p) if weight_decay and decayed(p) else change


def _moved(mean: Tensor, g: Tensor, beta: float) -> Tensor:
    """Return `beta * mean + (1 - beta) * g`, from the nearer one: with `beta` 0 exactly `g`."""
    return mean + (g - mean) * (1 - beta) if beta > 0.5 else g - (g - mean) * beta


def _left(beta: float, made: Tensor) -> Tensor:
    """Return 1 - beta^made; near 1, a power in f32 would lose half of the digits."""
    return -F.expm1(made * math.log(beta)) if beta else F.ones(())


def _rate(rate: Schedule, count: Tensor) -> Tensor | float:
    return rate(_wide(count))


def _wide(x: Tensor) -> Tensor:
    return F.cast(x, dtypes.f32)


def _root_mean_square(x: Tensor) -> Tensor:
    return F.sqrt(F.mean(F.square(_wide(x))))


def _zero() -> Tensor:
    return F.zeros((), dtypes.si32)


def _zeros(params: Tree) -> Tree:
    return _mapped(lambda p: F.zeros(p.shape), params)


def _each(function: Callable[..., Sequence[Tensor]], first: Tree, *others: Tree) -> list[Tree]:
    """Return one tree for each result of `function`, called with corresponding tensors of trees."""
    leaves: list[Tensor] = []
    structure = flatten(first, leaves)
    columns = [leaves]
    for other in others:
        more: list[Tensor] = []
        flatten(other, more)
        columns.append(more)
    results = list(zip(*(function(*row) for row in zip(*columns, strict=True)), strict=True))
    return [rebuild(structure, iter(found)) for found in results]


def _mapped(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    return _each(lambda *leaves: (function(*leaves),), tree)[0]


def _joined(function: Callable[[Tensor, Tensor], Tensor], one: Tree, other: Tree) -> Tree:
    return _each(lambda *leaves: (function(*leaves),), one, other)[0]
