"""A draft head for a model: one layer, in EAGLE's layout, that learns beside the frozen model."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.backends import Backend
from gptrs.api.models import CausalLMModule, Tensor, tensor
from gptrs.functionals.dispatch.active_overrides import entered
from gptrs.nn.attention import whole_texts
from gptrs.nn.draft_head import DraftHead
from gptrs.plugins.capabilities import DraftHeadSource
from gptrs_runtime.running_model import model_factory
from gptrs_runtime.sources.model_source import ModelSource
from gptrs_train.learner import Learner, LearningParams, NoWeights, random_stream
from gptrs_train.losses import token_loss

_KIND: Final = "llama"
_MARKS: Final = ("fc.weight", "layers.0.self_attn.q_proj.weight")
"""Weights that tell a draft head from a model; it has no table of tokens of its own."""
_HEAD_WIDTH: Final = 64


class NewDraftHead(Struct, frozen=True):
    """Says that a run makes a draft head, and leaves the model as it is."""


class _HeadParams(LearningParams):
    """The weights of a new draft head."""

    @override
    def __contains__(self, name: str) -> bool:
        return self._prefix + name in _MARKS


class DraftLearner(Learner):
    """A draft head (EAGLE, Li et al. 2024) that learns what follows the next token of a text.

    It reads each next token beside the model's state, and learns the token after it and the model's
    next state, which is what guides further guesses. ModelError for kinds that are not language
    models, or whose table of tokens is not known.
    """

    writes_adapter = False

    def __init__(self, source: ModelSource, backend: Backend, seed: int = 0) -> None:
        module = self._begin(source, backend, fresh=False)
        self.config = self._config_beside(module)
        self._head_params = _HeadParams(NoWeights(), backend, str(source.path), fresh=True)
        self._draft_head(module, self._head_params)
        self.trained = self._first_head(seed)

    @property
    @override
    def new(self) -> Collection[str]:
        return self.trained.keys()

    @override
    def is_hidden(self, name: str) -> bool:
        return len(self._head_params.asked.weights[name]) > 1

    @override
    def loss(self, trained: Mapping[str, Tensor], batch: Any, seed: Tensor | None = None) -> Tensor:
        """Return the sum of the weighted losses of the tokens of a `Batch`, f32 []."""
        return self._loss(trained, batch, seed, frozen=True)

    @override
    def _loss(
        self, trained: Mapping[str, Tensor], batch: Any, seed: Tensor | None, *, frozen: bool
    ) -> Tensor:
        module = self._made(self.params)
        head = self._draft_head(module, self._head_params.holding(trained, 1.0))
        count, length = batch.tokens.shape
        rows = (count * (length - 1),)
        with self.running(module, seed):
            step, caches = whole_texts(batch.tokens, module.cache_specs(), batch.positions)
            *_, last = module.states(step, caches)  # (B * T, C)
            states = F.stop_gradient(module.final_norm(last))
            step, caches = whole_texts(batch.targets, head.cache_specs(), batch.positions)
            found = head.guided(step, states, caches)
            found, after = (
                F.reshape(F.reshape(each, (count, length, -1))[:, own], (*rows, -1))
                for each, own in ((found, slice(0, length - 1)), (states, slice(1, length)))
            )
            weights = batch.weights[:, 1:]
            if batch.positions is not None:  # another text begins where positions do
                weights = F.where(batch.positions[:, 1:] > 0, weights, 0.0)
            weights = F.reshape(weights, rows)
            targets = F.reshape(batch.targets[:, 1:], rows)
            logits = self._head(module)
            cost = token_loss(*logits, found, targets, weights, self.vocabulary, frozen=frozen)
            apart = F.mean(F.square(F.cast(found, "f32") - F.cast(after, "f32")), -1)
            return cost + F.sum(apart * weights)

    @override
    def _made(self, params: LearningParams) -> Any:
        return self._checked(self._module(self.source.config, params))

    def _draft_head(self, module: CausalLMModule, params: LearningParams) -> DraftHead:
        made = model_factory(_KIND)(dict(self.config), params)
        return cast("DraftHeadSource", made).head_for(module)

    def _config_beside(self, module: CausalLMModule) -> dict[str, object]:
        """Return the config.json of the head, whose sizes are those of a layer of the model."""
        one = tensor(np.zeros((1, 1), np.int64))
        with entered(self._overrides):
            width = int(module.whole_states(one)[-1].shape[-1])
        heads = next(n for n in range(max(1, width // _HEAD_WIDTH), 0, -1) if width % (2 * n) == 0)
        return {
            "architectures": ["LlamaForCausalLMEagle"],
            "model_type": _KIND,
            "vocab_size": self.vocabulary,
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_hidden_layers": 1,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "max_position_embeddings": self.context_length,
            "rms_norm_eps": 1e-6,
        }

    def _first_head(self, seed: int) -> dict[str, np.ndarray]:
        """Return initial weights: ones of norms, and matrices that keep the size of their input."""
        found: dict[str, np.ndarray] = {}
        for number, (name, shape) in enumerate(self._head_params.asked.weights.items()):
            if len(shape) == 1:
                found[name] = np.ones(shape, np.float32)
                continue
            array = random_stream(seed, number).normal(0, 1 / math.sqrt(shape[1]), shape)
            found[name] = array.astype(np.float32)
        return found
