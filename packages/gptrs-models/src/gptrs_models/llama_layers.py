"""Norms and MLPs of the Llama family."""

from __future__ import annotations

from gptrs import functionals as F
from gptrs.api.models import Module, Params, Tensor
from gptrs.nn import ACTIVATIONS, LayerNorm, Linear, RMSNorm
from gptrs_models.llama_config import LlamaConfig

_UP = ("embed", "mlp")


class HeadwiseNorm(Module):
    """Layer normalization of each head with separate weights, [.., H, D].

    Checkpoints store them as one tensor (Cohere), or one per head (StableLM 2).
    """

    def __init__(self, params: Params, n_heads: int, head_dim: int, epsilon: float) -> None:
        if "norms.0.weight" in params:
            each = [params.tensor(f"norms.{i}.weight", (head_dim,)) for i in range(n_heads)]
            self.weight = F.stack(each)
        else:
            self.weight = params.tensor("weight", (n_heads, head_dim))
        self._epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize the last axis of `x`."""
        return F.layer_norm(x, epsilon=self._epsilon) * self.weight


def make_norm(kind: str, params: Params, width: int, epsilon: float) -> RMSNorm | LayerNorm:
    """Return a norm of vectors [.., width], of a kind that `llama_config.Norm` names."""
    offset = 1.0 if kind.endswith("_offset") else 0.0
    if kind.startswith("rms"):
        return RMSNorm(params, width, epsilon, offset)
    weight, bias = kind != "layer_plain", kind in ("layer", "layer_offset")
    return LayerNorm(params, width, epsilon, offset, weight=weight, bias=bias)


class XIELU(Module):
    """An activation with learned slopes for x above and below 0 (Huang et al. 2024)."""

    def __init__(self, params: Params) -> None:
        self.alpha_p, self.alpha_n = (params.tensor(name, (1,)) for name in ("alpha_p", "alpha_n"))
        self.beta, self.eps = (params.tensor(name, ()) for name in ("beta", "eps"))

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to each element."""
        above, below = F.softplus(self.alpha_p), self.beta + F.softplus(self.alpha_n)
        bent = (F.expm1(F.minimum(x, self.eps)) - x) * below
        return F.where(x > 0, above * F.square(x), bent) + self.beta * x


class MLP(Module):
    """`down(activation(gate(x)) * up(x))` (Shazeer 2020); without a gate `down(activation(up(x)))`.

    In some kinds, gate and `up` are the halves of one matrix.
    """

    def __init__(self, config: LlamaConfig, params: Params) -> None:
        dim, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        names = config.names
        self.joined, self.gated = names.gate_up is not None, names.gate is not None
        if names.gate_up is not None:
            self.gate_up_proj = Linear(params / names.gate_up, dim, 2 * inner, bias, axes=_UP)
        else:
            if names.gate is not None:
                self.gate_proj = Linear(params / names.gate, dim, inner, bias, axes=_UP)
            self.up_proj = Linear(params / names.up, dim, inner, bias, axes=_UP)
        out_bias = bias if config.down_bias is None else config.down_bias
        self.down_proj = Linear(params / names.down, inner, dim, out_bias, axes=("mlp", "embed"))
        self.up_first = config.up_first
        learned = config.hidden_act == "xielu"
        self.activation = XIELU(params / "act_fn") if learned else ACTIVATIONS[config.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        if self.joined:
            gate, up = F.split(self.gate_up_proj(x), 2)
            gate, up = (up, gate) if self.up_first else (gate, up)
            return self.down_proj(self.activation(gate) * up)
        if self.gated:
            return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(self.activation(self.up_proj(x)))
