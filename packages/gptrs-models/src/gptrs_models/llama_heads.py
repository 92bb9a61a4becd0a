"""Draft heads of the Llama family: multi-token prediction in a checkpoint, and EAGLE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import Module, Params, Tensor, jit
from gptrs.nn import (
    CacheSpec,
    CausalLMModule,
    DraftHead,
    Embedding,
    LayerCache,
    LayerNorm,
    Linear,
    RaggedStep,
    RMSNorm,
    Rope,
)
from gptrs_models.llama_attention import Attention
from gptrs_models.llama_blocks import Block, through
from gptrs_models.llama_config import LlamaConfig
from gptrs_models.llama_layers import MLP, make_norm
from gptrs_models.llama_positions import Positions, Rotary


class HeadForm(Struct, frozen=True):
    """The names of a head's weights in a checkpoint, and how its parts are joined.

    `scope` contains the number of layers of the model, `{n}`; it is in the scope of the model's
    body, unless `apart`. `token_norm` and `state_norm` are the
    norms before the halves of `joined`, whose input starts with the token if `token_first`. `norm`
    None: the model's head follows the block directly. `guides_normed`: guides of further tokens
    have been through `norm`.
    """

    scope: str
    token_norm: str
    state_norm: str
    joined: str
    block: str
    norm: str | None
    head: str | None = None
    token_first: bool = True
    guides_normed: bool = False
    apart: bool = False


FORMS = (
    # DeepSeek-V3, GLM-4.5 and their successors: a layer after the last.
    HeadForm(
        "layers.{n}", "enorm", "hnorm", "eh_proj", "", "shared_head.norm",
        "shared_head.head",
    ),
    # ERNIE 4.5: no norm before the model's head.
    HeadForm(
        "", "mtp_emb_norm.0", "mtp_hidden_norm.0", "mtp_linear_proj.0", "mtp_block.0", None
    ),
    # MiMo: the state comes first.
    HeadForm(
        "mtp_layers.0", "token_layernorm", "hidden_layernorm", "input_proj", "",
        "final_layernorm", token_first=False, guides_normed=True,
    ),
    # Qwen3-Next and Qwen3.5.
    HeadForm(
        "mtp", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "layers.0", "norm",
        guides_normed=True, apart=True,
    ),
)  # fmt: skip
"""The forms in which files have such heads; sources as vLLM's `*_mtp.py` reads them."""


def form_in(params: Params, body: Params, layers: int) -> tuple[HeadForm, Params] | None:
    """Return the form of the head in a checkpoint of `layers` layers, and its scope; or None."""
    for form in FORMS:
        whole = params if form.apart else body
        scope = whole / form.scope.format(n=layers) if form.scope else whole
        if f"{form.joined}.weight" in scope:
            return form, scope
    return None


class Words(Protocol):
    """The parts of a model that its head shares."""

    def embeddings(self, step: RaggedStep[Tensor]) -> Tensor:
        """Return the input of the first block for the tokens of a step, [N, C]."""
        ...

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of each vector, [..., C] -> [..., V]."""
        ...


class LlamaHead(DraftHead):
    """Base of the heads of this module: sizes, positions, and the cache of one layer."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config.context_length, config.vocab_size)
        if config.alibi or config.sines or config.names.positions:
            raise ModelError("draft heads of models without rotary embeddings are not supported")
        self.config = config
        self.layer = config.num_hidden_layers

    @override
    def cache_specs(self) -> list[CacheSpec]:
        return [*self.config.caches(self.layer)]

    def positions(self, step: RaggedStep[Tensor]) -> Positions:
        """Return the positions of a step."""
        config = self.config
        rope = config.rope_of(self.layer)
        if rope is None:
            return Positions()
        return Rotary(Rope.at(rope, config.head_dim, step, config.interleaved))


class PredictionHead(LlamaHead):
    """A head for multi-token prediction: `block(joined([norm(token), norm(guide)]))`.

    Vocabulary and, where the checkpoint has no separate ones, table and word head are the model's.
    """

    def __init__(self, model: Words, config: LlamaConfig, form: HeadForm, params: Params) -> None:
        layer = config.num_hidden_layers
        block = params / form.block if form.block else params
        experts = config.experts
        if experts is not None:
            dense = f"{config.names.mlp}.{config.names.gate or config.names.up}.weight" in block
            experts = replace(experts, layers=() if dense else (layer,))
        config = replace(config, experts=experts)
        super().__init__(config)
        width = config.hidden_size
        self.model, self.form = model, form

        def norm(name: str) -> RMSNorm | LayerNorm:
            return make_norm(config.norm, params / name, width, config.rms_norm_eps)

        own = "embed_tokens.weight" in params
        self.embed_tokens = (
            Embedding(params / "embed_tokens", config.vocab_size, width, "vocab") if own else None
        )
        self.token_norm, self.state_norm = norm(form.token_norm), norm(form.state_norm)
        self.joined = Linear(params / form.joined, 2 * width, width, bias=False)
        self.block = Block(config, block, layer)
        self.norm = None if form.norm is None else norm(form.norm)
        self.words = None
        if form.head is not None and f"{form.head}.weight" in params:
            self.words = Linear(params / form.head, width, config.vocab_size, bias=False)

    @override
    def guided(
        self, step: RaggedStep[Tensor], guides: Tensor, caches: Sequence[LayerCache]
    ) -> Tensor:
        own = self.embed_tokens
        token = self.model.embeddings(step) if own is None else own(step.tokens)
        halves = [through(self.token_norm, token), through(self.state_norm, guides)]
        x = self.joined(F.concat(halves if self.form.token_first else halves[::-1], 1))
        return self.block(x, self.positions(step), *caches)

    @override
    def next_guides(self, x: Tensor) -> Tensor:
        return self.final_norm(x) if self.form.guides_normed else x

    @override
    def final_norm(self, x: Tensor) -> Tensor:
        return through(self.norm, x)

    @override
    def logits(self, x: Tensor) -> Tensor:
        return self.model.logits(x) if self.words is None else self.words(x)


# EAGLE: a checkpoint of its own with a layer that reads along.


def is_eagle(params: Params) -> bool:
    """Return whether a checkpoint is a draft head of EAGLE, and not a model."""
    return "fc.weight" in params and any(
        f"{layer}.self_attn.q_proj.weight" in params for layer in ("layers.0", "midlayer")
    )


class EagleDraft(Module):
    """The checkpoint of a draft head, which `head_for` a model makes usable."""

    capabilities = frozenset({"draft_head"})

    def __init__(self, config: LlamaConfig, params: Params, norm_first: bool) -> None:
        self._config, self._params, self._norm_first = config, params, norm_first
        params.leave_out()  # read once there is a model to guess for

    @property
    def context_length(self) -> int:
        """The number of positions that it is made for."""
        return self._config.context_length

    @property
    def vocab_size(self) -> int:
        """The number of tokens that it reads."""
        return self._config.vocab_size

    def head_for(self, model: CausalLMModule) -> DraftHead:
        """Return the head beside a model; ModelError if the sizes of both differ."""
        config = self._config
        own = getattr(model, "config", None)
        sizes = model.vocab_size, own.hidden_size if isinstance(own, LlamaConfig) else None
        if sizes[0] != config.vocab_size or sizes[1] not in (None, config.hidden_size):
            raise ModelError(
                f"the draft head is for a model of {config.vocab_size} tokens and width"
                f" {config.hidden_size}, this one has {sizes[0]} and {sizes[1] or 'another'}",
                hint="take the draft head of this model",
            )
        if "midlayer.self_attn.q_proj.weight" in self._params:
            return Eagle3Head(model, config, self._params, self._norm_first)
        return EagleHead(model, config, self._params)


class EagleHead(LlamaHead):
    """EAGLE (Li et al. 2024): layers without a first norm on `fc([token, guide])`.

    The word head, without a norm, is the model's.
    """

    def __init__(self, model: CausalLMModule, config: LlamaConfig, params: Params) -> None:
        super().__init__(replace(config, first_norm=False))
        self.model = model
        width = config.hidden_size
        self.embed_tokens = _table(model, config, params)
        self.fc = Linear(params / "fc", 2 * width, width, bias="fc.bias" in params)
        count = config.num_hidden_layers
        self.layers = [Block(self.config, params / "layers" / i, i) for i in range(count)]

    @override
    def cache_specs(self) -> list[CacheSpec]:
        return [each for i in range(len(self.layers)) for each in self.config.caches(i)]

    @override
    def guided(
        self, step: RaggedStep[Tensor], guides: Tensor, caches: Sequence[LayerCache]
    ) -> Tensor:
        x = self.fc(F.concat([self.embed_tokens(step.tokens), guides], 1))
        positions = self.positions(step)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, positions, cache)
        return x

    @override
    def logits(self, x: Tensor) -> Tensor:
        return self.model.logits(x)


class Eagle3Head(LlamaHead):
    """EAGLE-3 (Li et al. 2025): one layer whose attention reads token and guide side by side.

    A guide of the model is `fc` of its states before the third block, the middle one and the third
    last. The head may know a part of the vocabulary, whose tokens are `d2t` above their numbers.
    With `norm_first`, which is `norm_before_residual` of its config, the layer adds to the
    normalized guide.
    """

    def __init__(
        self, model: CausalLMModule, config: LlamaConfig, params: Params, norm_first: bool
    ) -> None:
        super().__init__(config)
        self.norm_first = norm_first
        width, layer = config.hidden_size, params / "midlayer"
        count = len(model.cache_specs())
        self.reads = (min(2, count), count // 2, max(0, count - 3))
        self.embed_tokens = _table(model, config, params)
        self.fc = Linear(params / "fc", 3 * width, width, bias=False)
        self.attention = Attention(config, layer / "self_attn", inputs=2 * width)
        self.mlp = MLP(config, layer / "mlp")

        def norm(name: str) -> RMSNorm:
            return RMSNorm(params / name, width, config.rms_norm_eps)

        self.token_norm, self.state_norm = (
            norm(f"midlayer.{name}") for name in ("input_layernorm", "hidden_norm")
        )
        self.mlp_norm = norm("midlayer.post_attention_layernorm")
        self.norm = norm("norm")
        words = params.tensor("lm_head.weight", use="linear").shape[0]
        self.words = Linear(params / "lm_head", width, words, bias=False)
        known = "d2t" in params
        self.offsets = params.tensor("d2t", (words,), floating=False) if known else None
        if self.offsets is None and words != model.vocab_size:
            raise ModelError(
                f"the draft head has {words} of {model.vocab_size} tokens and does not say which",
                hint="its tensor `d2t` says it",
            )

    @override
    def guides(self, states: np.ndarray) -> np.ndarray:
        return self._reduced(Tensor.of_array(states)).numpy()

    @override
    def guided(
        self, step: RaggedStep[Tensor], guides: Tensor, caches: Sequence[LayerCache]
    ) -> Tensor:
        normed = self.state_norm(guides)
        halves = [self.token_norm(self.embed_tokens(step.tokens)), normed]
        x = (normed if self.norm_first else guides) + self.attention(
            F.concat(halves, 1), self.positions(step), caches[0]
        )
        return x + self.mlp(self.mlp_norm(x))

    @override
    def final_norm(self, x: Tensor) -> Tensor:
        return self.norm(x)

    @override
    def logits(self, x: Tensor) -> Tensor:
        return self.words(x)

    @override
    def vocabulary_logits(self, logits: np.ndarray) -> np.ndarray:
        if self.offsets is None:
            return logits
        found = np.full((len(logits), self.vocab_size), -np.inf, np.float32)
        found[:, self._tokens] = logits
        return found

    @cached_property
    def _tokens(self) -> np.ndarray:
        """The tokens that it knows, in its own order."""
        assert self.offsets is not None
        offsets = self.offsets.numpy().astype(np.int64)
        return np.arange(len(offsets)) + offsets

    @cached_property
    def _reduced(self) -> Callable[[Tensor], Tensor]:
        return jit(self.fc.__call__, dynamic={"x": ("N", None)})


def _table(model: CausalLMModule, config: LlamaConfig, params: Params) -> Embedding:
    """Return the table of tokens in the checkpoint of a head, else that of its model."""
    if "embed_tokens.weight" in params:
        return Embedding(params / "embed_tokens", config.vocab_size, config.hidden_size, "vocab")
    shape = (config.vocab_size, config.hidden_size)
    tables = [each for _, each in model.named_modules() if isinstance(each, Embedding)]
    found = next((each for each in tables if tuple(each.weight.shape) == shape), None)
    if found is None:
        raise ModelError(
            "the draft head has no table of tokens, and that of the model is not known"
        )
    return found
