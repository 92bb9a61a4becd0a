"""Mixtures of experts (Shazeer et al. 2017) in place of the MLPs of some layers."""

from __future__ import annotations

from dataclasses import dataclass

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import ACTIVATIONS, ExpertMatrices, Linear
from gptrs_models.grouped_routing import GroupedRouter, Routing

_UP = ("embed", "mlp")
"""Inputs and outputs of the first matrices of an expert: each device has a part of all experts."""
_DOWN = ("mlp", "embed")


@dataclass(frozen=True)
class Clamp:
    """The activation of gpt-oss: the largest gate, and the slope of its sigmoid."""

    limit: float
    slope: float


@dataclass(frozen=True)
class Experts:
    """Settings of the mixtures of a model, and the names of their weights.

    Each token goes to the `chosen` experts with the largest scores, softmax of all; `normalized`
    makes these add up to 1. The `layers` listed have a mixture. `shared` is the width of an expert
    that every token goes to, None without one, weighted by a gate of its own where there is one
    (`shared_gate`), and lies at `shared_scope` of the layer. Its gate and `up` are one matrix where
    `shared_joined` names that and the last one. Those of the experts are, all together, in files
    that have `joined`: [E, 2 I, C] and [E, C, I], or perhaps with axes 1 and 2 `turned`. With
    `clamp` the mixture is a `ClampedMixture`.
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
    joined: tuple[str, str] = ("experts.gate_up_proj", "experts.down_proj")
    turned: bool = False


class Mixture(Module):
    """The weighted sum of the MLPs of the chosen experts; only their weights are read."""

    def __init__(self, experts: Experts, layer: Params, width: int, activation: str) -> None:
        inner, params = experts.width, layer / experts.scope
        self.gate = (
            Linear(params / experts.router, width, experts.count, bias=False)
            if experts.routing is None
            else GroupedRouter(experts.routing, params, experts.router, width, experts.count)
        )
        self.joined = experts.joined[0] in params
        if self.joined:
            up, down = experts.joined
            self.gate_up_proj = _joined(experts, params, up, width, 2 * inner)
            self.down_proj = _joined(experts, params, down, inner, width)
        else:
            self.gate_proj = _matrices(experts, params, experts.gate, width, inner, _UP)
            self.up_proj = _matrices(experts, params, experts.up, width, inner, _UP)
            self.down_proj = _matrices(experts, params, experts.down, inner, width, _DOWN)
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
        """Return the weights of the chosen experts of each row, and which they are, [N, k]."""
        if isinstance(self.gate, GroupedRouter):
            return self.gate(x, self._chosen, self._normalized)
        scores, experts = F.top_k(F.softmax(self.gate(x), axis=-1), self._chosen)
        if self._normalized:
            scores = scores / F.sum(scores, axis=-1, keepdims=True)
        return scores, experts


class _Shared(Module):
    """The expert of all tokens, weighted by a number for each token where there is a gate."""

    def __init__(self, layer: Params, width: int, experts: Experts, activation: str) -> None:
        usual = "shared_expert" if experts.shared_gate else "shared_experts"
        own = layer / (experts.shared_scope or f"{experts.scope}.{usual}")
        inner, bias = experts.shared or 0, experts.shared_bias
        down, self.joined = "down_proj", experts.shared_joined is not None
        if experts.shared_joined is not None:
            up, down = experts.shared_joined
            self.gate_up_proj = Linear(own / up, width, 2 * inner, bias, axes=_UP)
        else:
            self.gate_proj = Linear(own / "gate_proj", width, inner, bias, axes=_UP)
            self.up_proj = Linear(own / "up_proj", width, inner, bias, axes=_UP)
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
    experts: Experts, params: Params, name: str, inputs: int, outputs: int, axes: tuple[str, str]
) -> ExpertMatrices:
    """Return the matrices of all experts; `axes` names inputs and outputs."""
    names = [f"{index}.{name}.weight" for index in range(experts.count)]
    return ExpertMatrices.of_each(params / "experts", names, inputs, outputs, axes[::-1])


def _joined(
    experts: Experts, params: Params, name: str, inputs: int, outputs: int
) -> ExpertMatrices:
    """Return the matrices that are one weight; `turned` ones are so in some files only."""
    if experts.turned:
        try:
            return ExpertMatrices.joined(params, name, experts.count, inputs, outputs)
        except ModelError:
            pass  # transformers saves them in its own form
    return ExpertMatrices.whole(params, name, experts.count, inputs, outputs)


def read_experts(
    fields: ConfigFields,
    layers: int,
    *,
    names: tuple[str, ...],
    count: int,
    chosen: int,
    width: str,
    inner: int,
    chosen_name: str = "num_experts_per_tok",
) -> Experts:
    """Read the settings that kinds have in common.

    The number of experts has one of `names` in a file; `count`, `chosen` and `inner` are defaults,
    `width` is the name of the width of an expert.
    """
    name = next((name for name in names if name in fields.settings), names[0])
    count = fields.integer(name, count)
    wanted = fields.integer(chosen_name, chosen)
    if wanted > count:
        raise fields.error(chosen_name, f"must be at most {count}, the experts there are")
    return Experts(
        count, wanted, fields.integer(width, inner), tuple(range(layers)), normalized=True
    )


def sparse_layers(fields: ConfigFields, layers: int) -> tuple[int, ...]:
    """Return the layers with a mixture, by `decoder_sparse_step` and `mlp_only_layers`."""
    step = fields.integer("decoder_sparse_step", 1)
    dense: tuple[int, ...] = ()
    if fields.get("mlp_only_layers") not in (None, []):
        dense = fields.integers("mlp_only_layers", [], minimum=0)
    return tuple(layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)
