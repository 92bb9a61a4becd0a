"""Mixtures of experts (Shazeer et al. 2017), which replace the MLPs of some layers."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.api.programs import dtypes
from gptrs.nn import ACTIVATIONS, ExpertMatrices, ExpertWeight, Linear

# Routing in groups of experts (DeepSeek-V2 and V3), with biases, and SparseMixer.


BIAS = "gate.e_score_correction_bias"
"""Name of the expert biases of DeepSeek-V3 and its relatives."""


class Routing(Struct, frozen=True):
    """How experts are chosen: only from the `chosen_groups` best of `groups` groups.

    Scores are a softmax over all experts, or a `sigmoid` of each. A group scores by its two best
    experts with `sigmoid`, else by the best one. The tensor `bias` of the mixture, if any, is added
    for the choice only. Normalized weights are divided by their sum plus `least`, then multiplied
    by `scale`. `mixer` is the margin of SparseMixer, which chooses two experts by its own rule.
    """

    groups: int = 1
    chosen_groups: int = 1
    sigmoid: bool = False
    scale: float = 1.0
    bias: str | None = None
    least: float = 1e-20
    mixer: float | None = None


class GroupedRouter(Module):
    """Chooses the experts of each token and their weights."""

    def __init__(
        self, routing: Routing, params: Params, gate: str, width: int, experts: int
    ) -> None:
        self.gate = Linear(params / gate, width, experts, bias=False)
        self.bias = None
        if routing.bias is not None:
            row = (1, experts) if routing.bias.startswith("moe_statics") else (experts,)
            self.bias = F.reshape(params.tensor(routing.bias, row), (experts,))
        self._routing = routing

    def __call__(self, x: Tensor, chosen: int, normalized: bool) -> tuple[Tensor, Tensor]:
        """[N, C] -> weights [N, k] and experts, integers [N, k]."""
        found = self.gate(x)
        if self._routing.mixer is not None:
            return _sparse_mixer(found, self._routing.mixer)
        scores = F.sigmoid(found) if self._routing.sigmoid else F.softmax(found, axis=-1)
        choice = scores if self.bias is None else scores + self.bias
        _, experts = F.top_k(self._in_groups(choice), chosen)
        # The bias balances the load: it takes part in the choice only, not in the weights
        # (DeepSeek-V3, Liu et al. 2024).
        weights = F.gather(scores, experts, axis=1)
        if normalized:
            # Sigmoids of all chosen experts may underflow to 0, unlike a softmax.
            weights = weights / (F.sum(weights, axis=-1, keepdims=True) + self._routing.least)
        return weights * self._routing.scale, experts

    def _in_groups(self, choice: Tensor) -> Tensor:
        """Return scores [N, E] that are -inf outside the chosen groups."""
        routing = self._routing
        rows, experts = choice.shape
        if routing.groups == 1:
            return choice
        grouped = F.reshape(choice, (rows, routing.groups, experts // routing.groups))
        # The score of a group: its best expert in DeepSeek-V2, the sum of its two best in V3, which
        # has sigmoids.
        best, _ = F.top_k(grouped, 2 if routing.sigmoid else 1)
        _, groups = F.top_k(F.sum(best, axis=2), routing.chosen_groups)  # (N, k)
        own = F.reshape(F.arange(routing.groups), (1, 1, routing.groups))
        taken = F.equal(F.expand_dims(groups, 2), own)  # (N, k, G)
        taken = F.sum(F.cast(taken, dtypes.si32), axis=1) > 0
        # -inf, since with a bias scores may be negative and 0 could win.
        kept = F.where(F.expand_dims(taken, 2), grouped, -math.inf)
        return F.reshape(kept, (rows, experts))


def _sparse_mixer(scores: Tensor, worse: float) -> tuple[Tensor, Tensor]:
    """Return the weights [N, 2] and indices of the two best experts (Liu et al. 2024).

    Each weight is a softmax over the experts within `2 * worse` of it, relative to the larger of
    both scores; the second softmax excludes the first expert.
    """
    best, experts = F.top_k(scores, 2)
    own = F.reshape(F.arange(scores.shape[1]), (1, scores.shape[1]))
    first = F.equal(F.cast(F.slice_axis(experts, 1, 0, 1), own.dtype), own)  # (N, E)
    weights: list[Tensor] = []
    for rank in (0, 1):
        top = F.slice_axis(best, 1, rank, 1)  # (N, 1)
        kept = (top - scores) / F.maximum(F.abs(scores), top) <= 2 * worse
        if rank:
            kept = F.logical_and(kept, F.logical_not(first))
        shares = F.where(kept, F.exp(scores - top), 0.0)
        weights.append(1.0 / F.sum(shares, axis=1, keepdims=True))
    return F.concat(weights, axis=1), experts


_UP = ("embed", "mlp")
"""Mesh axes of the inputs and outputs of an expert's first matrices: each device has a part of
every expert."""
_DOWN = ("mlp", "embed")


class Clamp(Struct, frozen=True):
    """The activation of gpt-oss: limit of the gate, and slope of its sigmoid."""

    limit: float
    slope: float


_Added = tuple[Tensor, Tensor]
"""The factors of an adapter."""
_JOINED = ("experts.gate_up_proj", "experts.down_proj")
"""Names of the matrices of all experts together."""
_FUSED = "gate_up_proj"
"""The name of the gate and `up` of one expert in one matrix, as some GGUF files have them."""


class Experts(Struct, frozen=True):
    """Settings of the mixtures of a model, and names of their weights.

    Each token goes to the `chosen` experts with the largest softmax scores; `normalized` makes
    these add up to 1. The listed `layers` have a mixture. `shared` is the width of the expert for
    every token (None: there is none), at `shared_scope` of the layer, with a gate of its own at
    `shared_gate` if that is set; `shared_joined` names its fused gate and `up`, and its last
    matrix. With `joined`, files hold the matrices of all experts together: [E, 2 I, C] and [E, C,
    I], or with axes 1 and 2 `turned`. With `clamp`, the mixture is a `ClampedMixture`.
    """

    count: int
    chosen: int
    width: int
    layers: tuple[int, ...]
    normalized: bool
    shared: int | None = None
    scope: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    clamp: Clamp | None = None
    routing: Routing | None = None
    shared_gate: bool = True
    shared_bias: bool = False
    shared_scope: str | None = None
    shared_joined: tuple[str, str] | None = None
    router: str = "gate"
    joined: tuple[str, str] = _JOINED
    turned: bool = False

    def first(self, layer: Params, width: int, block: int | None = None) -> _Added | None:
        """Return what an adapter adds to gate and `up`, or to one of them, of all experts."""
        weight = self._weight(_JOINED[0], (self.gate, self.up), (width, 2 * self.width))
        return layer.expert_low_rank(replace(weight, block=block))

    def last(self, layer: Params, width: int) -> _Added | None:
        """Return what an adapter adds to the last matrices of all experts."""
        return layer.expert_low_rank(self._weight(_JOINED[1], (self.down,), (self.width, width)))

    def _weight(self, name: str, layers: tuple[str, ...], sizes: tuple[int, int]) -> ExpertWeight:
        clamped = self.clamp is not None
        # Files of Mixtral and of Granite keep names that transformers has changed since.
        renamed = self.scope == "block_sparse_moe" and self.joined == _JOINED
        scope = "mlp" if renamed else self.scope
        mixed = self.routing is not None and self.routing.mixer is not None
        router = "router" if mixed else self.router.removesuffix(".layer")
        return ExpertWeight(
            f"{scope}.experts",
            name.rpartition(".")[2],
            [f"{self.scope}.experts.{{}}.{each}" for each in layers],
            (f"{self.scope}.{self.router}", f"{scope}.{router}"),
            self.count,
            *sizes,
            alternate=clamped,
            turned=clamped,
        )


class Mixture(Module):
    """The weighted sum of the MLPs of the chosen experts; only their weights are read."""

    def __init__(self, experts: Experts, layer: Params, width: int, activation: str) -> None:
        inner, params = experts.width, layer / experts.scope
        self.gate = (
            Linear(params / experts.router, width, experts.count, bias=False)
            if experts.routing is None
            else GroupedRouter(experts.routing, params, experts.router, width, experts.count)
        )
        whole = experts.joined[0] in params
        self.joined = whole or f"experts.0.{_FUSED}.weight" in params
        if self.joined:
            added, sizes = experts.first(layer, width), (width, 2 * inner)
            self.gate_up_proj = (
                _joined(experts, params, experts.joined[0], sizes, added)
                if whole
                else _matrices(experts, params, _FUSED, sizes, _UP, added)
            )
        else:
            gate, up = (experts.first(layer, width, block) for block in range(2))
            self.gate_proj = _matrices(experts, params, experts.gate, (width, inner), _UP, gate)
            self.up_proj = _matrices(experts, params, experts.up, (width, inner), _UP, up)
        added, sizes = experts.last(layer, width), (inner, width)
        self.down_proj = (
            _joined(experts, params, experts.joined[1], sizes, added)
            if whole
            else _matrices(experts, params, experts.down, sizes, _DOWN, added)
        )
        self.shared = None if experts.shared is None else _Shared(layer, width, experts, activation)
        self._activation = ACTIVATIONS[activation]
        self._chosen, self._normalized = experts.chosen, experts.normalized

    def __call__(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        rows, width = x.shape
        chosen = self._chosen
        scores, experts = self._route(x)  # (N, k) twice
        groups = F.reshape(experts, (rows * chosen,))
        repeated = F.repeat_interleave(x, chosen, 0)  # (N * k, C)
        if self.joined:
            gate, up = F.split(self.gate_up_proj(repeated, groups), 2)
        else:
            gate, up = self.gate_proj(repeated, groups), self.up_proj(repeated, groups)
        outputs = self.down_proj(self._activation(gate) * up, groups)
        outputs = F.reshape(outputs, (rows, chosen, width)) * F.reshape(scores, (rows, chosen, 1))
        mixed = F.sum(outputs, axis=1)
        return mixed if self.shared is None else mixed + self.shared(x)

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights and indices of the chosen experts of each row, [N, k]."""
        if isinstance(self.gate, GroupedRouter):
            return self.gate(x, self._chosen, self._normalized)
        scores, experts = F.top_k(F.softmax(self.gate(x), axis=-1), self._chosen)
        if self._normalized:
            scores = scores / F.sum(scores, axis=-1, keepdims=True)
        return scores, experts


class _Shared(Module):
    """The expert for every token, weighted per token if there is a gate."""

    def __init__(self, layer: Params, width: int, experts: Experts, activation: str) -> None:
        usual = "shared_expert" if experts.shared_gate else "shared_experts"
        own = layer / (experts.shared_scope or f"{experts.scope}.{usual}")
        inner, bias = experts.shared or 0, experts.shared_bias
        up, down = experts.shared_joined or ("gate_up_proj", "down_proj")
        # Files of llama.cpp have the fused gate and `up` apart.
        self.joined = experts.shared_joined is not None and "gate_proj.weight" not in own
        if self.joined:
            self.gate_up_proj = Linear(own / up, width, 2 * inner, bias, axes=_UP)
        else:
            self.gate_proj = Linear(own / "gate_proj", width, inner, bias, axes=_UP)
            self.up_proj = Linear(own / "up_proj", width, inner, bias, axes=_UP)
            down = "down_proj"
        self.down_proj = Linear(own / down, inner, width, bias, axes=_DOWN)
        gate = layer / f"{experts.scope}.shared_expert_gate"
        self.weight = Linear(gate, width, 1, bias=False) if experts.shared_gate else None
        self._activation = ACTIVATIONS[activation]

    def __call__(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        if self.joined:
            gate, up = F.split(self.gate_up_proj(x), 2)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        found = self.down_proj(self._activation(gate) * up)
        return found if self.weight is None else found * F.sigmoid(self.weight(x))


def _matrices(
    experts: Experts,
    params: Params,
    name: str,
    sizes: tuple[int, int],
    axes: tuple[str, str],
    added: _Added | None,
) -> ExpertMatrices:
    """Return the matrices of all experts; `sizes` and `axes` are of inputs and outputs."""
    names = [f"{index}.{name}.weight" for index in range(experts.count)]
    return ExpertMatrices.of_each(params / "experts", names, *sizes, axes[::-1], added)


def _joined(
    experts: Experts,
    params: Params,
    name: str,
    sizes: tuple[int, int],
    added: _Added | None,
) -> ExpertMatrices:
    """Return the matrices from a fused weight; `turned` ones are transposed in some files only."""
    if experts.turned:
        try:
            return ExpertMatrices.joined(params, name, experts.count, *sizes, added)
        except ModelError:
            pass  # transformers saves them in its own layout
    return ExpertMatrices.whole(params, name, experts.count, *sizes, added)


def read_experts(
    fields: ConfigFields,
    layers: int,
    *,
    names: tuple[str, ...],
    count: int | None,
    chosen: int | None,
    width: str,
    inner: int,
    chosen_name: str = "num_experts_per_tok",
) -> Experts:
    """Read the settings that kinds share.

    The number of experts is under one of `names`; `count`, `chosen` and `inner` are defaults;
    `width` is the name of an expert's width.
    """
    name = next((name for name in names if name in fields.settings), names[0])
    total = fields.integer(name, count)
    wanted = fields.integer(chosen_name, chosen)
    if wanted > total:
        raise fields.error(chosen_name, f"must be at most {total}, the number of experts")
    return Experts(
        total, wanted, fields.integer(width, inner), tuple(range(layers)), normalized=True
    )


def sparse_layers(fields: ConfigFields, layers: int) -> tuple[int, ...]:
    """Return the layers with a mixture, by `decoder_sparse_step` and `mlp_only_layers`."""
    step = fields.integer("decoder_sparse_step", 1)
    dense: tuple[int, ...] = ()
    if fields.get("mlp_only_layers") not in (None, []):
        dense = fields.integers("mlp_only_layers", [], minimum=0)
    return tuple(layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)


# Mixtures of experts of gpt-oss: biases, a clamped gate, and softmax over the chosen scores only.


class ClampedMixture(Module):
    """The weighted sum of the MLPs of the chosen experts: `(up + 1) * gate * sigmoid(a * gate)`.

    Gate and `up` alternate in one matrix or have a matrix each. Both are clamped to the limit, the
    gate only from above. Weights are the softmax of the chosen experts' scores.
    """

    def __init__(self, experts: Experts, clamp: Clamp, layer: Params, width: int) -> None:
        params = layer / experts.scope
        self.router = Linear(params / experts.router, width, experts.count)
        read = _Apart if "experts.gate_proj.bias" in params else _Joined
        self.experts = read(experts, layer, width)
        self._chosen, self._clamp = experts.chosen, clamp

    def __call__(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        rows, width = x.shape
        chosen = self._chosen
        scores, experts = F.top_k(self.router(x), chosen)  # (N, k) twice
        weights = F.softmax(scores, axis=-1)
        groups = F.reshape(experts, (rows * chosen,))
        repeated = F.repeat_interleave(x, chosen, 0)  # (N * k, C)
        inner = self._activated(*self.experts.gate_and_up(repeated, groups))
        outputs = self.experts.down(inner, groups)
        outputs = F.reshape(outputs, (rows, chosen, width)) * F.reshape(weights, (rows, chosen, 1))
        return F.sum(outputs, axis=1)

    def _activated(self, gate: Tensor, up: Tensor) -> Tensor:
        """[R, I] twice -> [R, I]."""
        gate = F.minimum(gate, self._clamp.limit)
        up = F.clamp(up, -self._clamp.limit, self._clamp.limit)
        return (up + 1.0) * gate * F.sigmoid(gate * self._clamp.slope)


class _Joined(Module):
    """Experts in folders: a matrix [C, 2 * I] in which gate and `up` alternate."""

    def __init__(self, experts: Experts, layer: Params, width: int) -> None:
        params, count, inner = layer / f"{experts.scope}.experts", experts.count, experts.width
        added = experts.first(layer, width)
        self.gate_up_proj = ExpertMatrices.joined(
            params, "gate_up_proj", count, width, 2 * inner, added
        )
        self.gate_up_bias = params.tensor("gate_up_proj_bias", (count, 2 * inner))
        added = experts.last(layer, width)
        self.down_proj = ExpertMatrices.joined(params, "down_proj", count, inner, width, added)
        self.down_bias = params.tensor("down_proj_bias", (count, width))

    def gate_and_up(self, x: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        """[R, C], [R] -> [R, I] twice."""
        joined = self.gate_up_proj(x, groups) + F.take(self.gate_up_bias, groups)
        rows, width = joined.shape
        pairs = F.reshape(joined, (rows, width // 2, 2))
        gate, up = (F.squeeze(each, 2) for each in F.split(pairs, [1, 1]))
        return gate, up

    def down(self, x: Tensor, groups: Tensor) -> Tensor:
        """[R, I], [R] -> [R, C]."""
        return self.down_proj(x, groups) + F.take(self.down_bias, groups)


class _Apart(Module):
    """Experts in GGUF files: separate matrices for gate and `up`."""

    def __init__(self, experts: Experts, layer: Params, width: int) -> None:
        params, count, inner = layer / f"{experts.scope}.experts", experts.count, experts.width
        gate, up = (experts.first(layer, width, block) for block in range(2))
        self.gate_proj = _clamped_matrices(params, "gate_proj", count, (width, inner), gate)
        self.gate_bias = params.tensor("gate_proj.bias", (count, inner))
        self.up_proj = _clamped_matrices(params, "up_proj", count, (width, inner), up)
        self.up_bias = params.tensor("up_proj.bias", (count, inner))
        last = experts.last(layer, width)
        self.down_proj = _clamped_matrices(params, "down_proj", count, (inner, width), last)
        self.down_bias = params.tensor("down_proj.bias", (count, width))

    def gate_and_up(self, x: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        """[R, C], [R] -> [R, I] twice."""
        gate = self.gate_proj(x, groups) + F.take(self.gate_bias, groups)
        return gate, self.up_proj(x, groups) + F.take(self.up_bias, groups)

    def down(self, x: Tensor, groups: Tensor) -> Tensor:
        """[R, I], [R] -> [R, C]."""
        return self.down_proj(x, groups) + F.take(self.down_bias, groups)


def _clamped_matrices(
    params: Params,
    name: str,
    count: int,
    sizes: tuple[int, int],
    added: _Added | None,
) -> ExpertMatrices:
    names = [f"{number}.{name}.weight" for number in range(count)]
    return ExpertMatrices.of_each(params, names, *sizes, low_rank=added)
