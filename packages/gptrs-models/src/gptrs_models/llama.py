"""Llama and its relatives as transformers saves them; see `llama_config` and `llama_blocks`.

About seventy kinds of decoders differ in parts, switches and names; `llama_kinds` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.models import Params, Tensor, tensor
from gptrs.nn import (
    CacheSpec,
    CausalLMModule,
    DraftHead,
    Embedding,
    LayerCache,
    Linear,
    RaggedStep,
    Rope,
)
from gptrs_models.llama_blocks import BLOCKS, through
from gptrs_models.llama_config import LlamaConfig
from gptrs_models.llama_heads import PredictionHead, form_in
from gptrs_models.llama_layers import make_norm
from gptrs_models.llama_positions import Alibi, Positions, Rotary


class Llama(CausalLMModule):
    """The language model.

    With dynamic rotary scaling, beyond `max_position_embeddings`, the logits depend on how a text
    was cut into steps, as in transformers. Attributes are named after Llama's weights, whatever the
    checkpoint calls them.
    """

    captures_on_disk = True

    def __init__(self, config: LlamaConfig, params: Params) -> None:
        super().__init__(config.context_length, config.vocab_size)
        self.short_context = config.rope.short_context
        self.config, names, width = config, config.names, config.hidden_size
        body = self._body(params)
        inner = config.embedding_width or width
        # Some files have the table that a tied layer shares under the name of that layer only.
        head, embed = f"{names.head}.weight", f"{names.embed}.weight"
        lent = config.tie_word_embeddings and head in params and embed not in body
        table = params / names.head if lent else body / names.embed
        self.embed_tokens = Embedding(table, config.vocab_size, inner, "vocab")
        self.project_in = self.project_out = None
        if inner != width:
            self.project_in = Linear(body / "project_in", inner, width, bias=False)
            self.project_out = Linear(body / "project_out", width, inner, bias=False)
        if names.positions is not None:
            rows = config.context_length + config.position_offset
            self.embed_positions = Embedding(body / names.positions, rows, width)
        self.sines = None if config.sines is None else tensor(config.sines.table(width))
        if names.embed_norm is not None:
            self.embed_norm = make_norm(
                config.norm, body / names.embed_norm, width, config.rms_norm_eps
            )
        layers, block = body / names.layers, BLOCKS[config.order]
        self.layers = [block(config, layers / i, i) for i in range(config.num_hidden_layers)]
        self.norm = (
            make_norm(config.norm, body / names.norm, width, config.rms_norm_eps)
            if config.final_norm
            else None
        )
        # A checkpoint may have separate weights for a layer that the config calls tied.
        vocabulary = config.vocab_size
        tied = config.tie_word_embeddings and not params.stores_apart(head, table)
        self.tied_bias = (
            params.tensor(f"{names.head}.bias", (vocabulary,))
            if tied and config.head_bias
            else None
        )
        self.lm_head = (
            None
            if tied
            else Linear(
                params / names.head,
                inner,
                vocabulary,
                bias=config.head_bias,
                axes=("embed", "vocab"),
            )
        )

    def _body(self, params: Params) -> Params:
        """Return the scope of everything except the head."""
        names = self.config.names
        first = (f"{names.body}.{each}.weight" for each in (names.embed, names.norm))
        return params / names.body if any(each in params for each in first) else params

    @override
    def cache_specs(self) -> list[CacheSpec]:
        caches = [self.config.caches(layer) for layer in range(len(self.layers))]
        # The first caches of all layers, then those of states, which share the pages of the first.
        return [first for first, *_ in caches] + [each for _, *rest in caches for each in rest]

    @override
    def states(self, step: RaggedStep[Tensor], caches: Sequence[LayerCache]) -> Iterator[Tensor]:
        count = len(self.layers)
        further = iter(caches[count:])
        x = self.embeddings(step)
        yield x
        for i, positions in enumerate(self._positions(step)):
            more = islice(further, len(self.config.caches(i)) - 1)
            x = self.layers[i](x, positions, caches[i], *more)
            yield x

    def embeddings(self, step: RaggedStep[Tensor]) -> Tensor:
        """Return the input of the first block for the tokens of a step, [N, C]."""
        x = self.embed_tokens(step.tokens)  # (N, C)
        x = x if self.project_in is None else self.project_in(x)
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        if self.config.names.positions is not None:
            x = x + self.embed_positions(step.positions + self.config.position_offset)
        if self.sines is not None:
            x = x + F.take(self.sines, step.positions)
        return x if self.config.names.embed_norm is None else self.embed_norm(x)

    def _positions(self, step: RaggedStep[Tensor]) -> Sequence[Positions]:
        """Return the positions of a step for each layer."""
        config, layers = self.config, range(self.config.num_hidden_layers)
        if config.alibi:
            if config.alibi_rounded:
                return [Alibi.rounded(config.alibi, step)] * len(layers)
            return [Alibi.at(config.alibi, step, config.score_scale)] * len(layers)
        settings = [config.rope_of(layer) for layer in layers]
        ropes = {
            each: Rotary(Rope.at(each, config.head_dim, step, config.interleaved))
            for each in dict.fromkeys(settings)
            if each is not None
        }
        return [Positions() if each is None else ropes[each] for each in settings]

    @override
    def final_norm(self, x: Tensor) -> Tensor:
        return through(self.norm, x)

    @override
    def logits(self, x: Tensor) -> Tensor:
        config = self.config
        x = x if self.project_out is None else self.project_out(x)
        logits = self.embed_tokens.unembed(x) if self.lm_head is None else self.lm_head(x)
        if self.tied_bias is not None:
            logits = logits + self.tied_bias
        if config.logit_scale != 1:
            logits = logits * config.logit_scale
        if config.logit_softcap is not None:
            logits = F.tanh(logits / config.logit_softcap) * config.logit_softcap
        return logits

    def draft_head(self, params: Params) -> DraftHead | None:
        """Return the first head for multi-token prediction in the weights; None without one.

        Further heads are not used: the first one guesses again from its own states, as in EAGLE.
        """
        found = form_in(params, self._body(params), self.config.num_hidden_layers)
        return None if found is None else PredictionHead(self, self.config, *found)
