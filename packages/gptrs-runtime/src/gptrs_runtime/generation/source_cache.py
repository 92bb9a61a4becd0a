"""The cache of encoder-decoders: a `TextCache` that encodes sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

import numpy as np
from typing_extensions import override

from gptrs.backend.contract import Backend
from gptrs.checkpoint.config_fields import is_integer
from gptrs.errors import CacheBudgetError, ContextLengthError, ModelError, UsageError
from gptrs.ir.dtypes import DType
from gptrs.nn.cache_spec import cache_groups
from gptrs.nn.decoder_cache import DecoderState
from gptrs.nn.page_buffers import PageBuffers
from gptrs.nn.ragged_step import RaggedStep, own_pages, ragged_step
from gptrs.plugins.capabilities import Seq2SeqLM
from gptrs.quoting import shown_value
from gptrs_runtime.generation.model_settings import require_known
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.paged_cache import LONG, PagedCache, RunsStep
from gptrs_runtime.generation.pages.page_pool import TextPages
from gptrs_runtime.generation.step_times import StepShapes
from gptrs_runtime.generation.text_cache import Row, TextCache
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.text_batches import one_batch


class SourceText(TextPages, kw_only=True):
    """A text, its source, and once started its lot and its row there."""

    source: tuple[int, ...]
    lot: Lot | None = None
    row: int = 0


class Lot:
    """Texts that started together with equally many tokens and grow in lockstep."""

    def __init__(self, state: DecoderState) -> None:
        self.state = state
        self.texts: list[SourceText] = []

    def write(self, lm: Seq2SeqLM, rows: Sequence[tuple[SourceText, Sequence[int]]]) -> np.ndarray:
        """Append the tokens of each text; return the logits f32 [B, V] after the last."""
        given = [text for text, _ in rows]
        for text in self.texts:
            text.lost = text not in given
        self.texts = given
        try:
            self.state.keep([text.row for text in given])
            for row, text in enumerate(given):
                text.row = row
            logits = lm.write(np.array([tokens for _, tokens in rows], np.int64), self.state)
        except BaseException:
            for text in given:
                text.lost = True
            raise
        for text, tokens in rows:
            text.tokens += tokens
        return logits[:, -1]


class SourceCache(TextCache):
    """Encodes the sources of texts that start together, and keeps the state of each lot.

    Texts are admitted until the first step; others wait until these have ended.
    """

    def __init__(self, lm: Seq2SeqLM, backend: Backend) -> None:
        super().__init__()
        self._lm = lm
        self._backend = backend
        self._begun: set[SourceText] = set()

    @override
    def admit(
        self,
        tokens: Sequence[int],
        positions: int,
        step: int,
        source: Sequence[int] = (),
        family: int = 0,
    ) -> TextPages | None:
        # None while others are being decoded.
        return None if self._begun else SourceText(source=tuple(source))

    @override
    def run(self, rows: Sequence[Row]) -> np.ndarray:
        given = [(row.text, row.tokens) for row in rows if isinstance(row.text, SourceText)]
        self._begin(given)
        found: dict[SourceText, np.ndarray] = {}
        for lot in dict.fromkeys(text.lot for text, _ in given):
            assert lot is not None
            own = [(text, tokens) for text, tokens in given if text.lot is lot]
            found.update(zip((text for text, _ in own), lot.write(self._lm, own), strict=True))
        return np.stack([found[text] for text, _ in given])

    @override
    def fork(self, text: TextPages) -> TextPages | None:
        assert isinstance(text, SourceText)
        copy = SourceText(source=text.source, lot=text.lot, row=text.row)
        copy.tokens = list(text.tokens)
        self._begun.add(copy)
        return copy

    @override
    def rewind(self, text: TextPages, length: int) -> None:
        """Raise CacheBudgetError: a text of a lot cannot be rewound alone; it must start over."""
        raise CacheBudgetError("a text that is written in step with others cannot go back")

    @override
    def release(self, text: TextPages) -> None:
        """Admit others once all running texts have ended."""
        if isinstance(text, SourceText):
            self._begun.discard(text)

    def _begin(self, rows: Iterable[tuple[SourceText, Sequence[int]]]) -> None:
        """Encode the sources of texts without a lot, batching those with equally many tokens."""
        lots: dict[int, list[SourceText]] = {}
        for text, tokens in rows:
            if text.lot is None:
                lots.setdefault(len(tokens), []).append(text)
        for texts in lots.values():
            sources = [text.source for text in texts]
            longest = self._lm.source_length
            batch = one_batch(sources, self._backend, longest)
            lot = Lot(self._lm.read_sources(batch.tokens, batch.mask))
            for row, number in enumerate(batch.rows):
                texts[number].lot, texts[number].row = lot, row
            self._begun.update(texts)


# Settings of encoder-decoders: how texts start and end.


class SourceSettings:
    """The first tokens of texts.

    ModelError for a model without a start token, and malformed settings; UsageError for options
    that do not apply.
    """

    def __init__(self, model: LoadedModel, options: GenerationOptions) -> None:
        self.source_length = model.seq2seq().source_length
        self.begin = [first_token(model, model.seq2seq().vocab_size)]
        given = {
            "context_shift": options.context_shift,
            "prompt_cache": options.prompt_cache is not None,
            "use_cache=False": not options.use_cache,
            "prompt_lookup": options.prompt_lookup,
            "draft": options.draft is not None,
            "mtp": options.mtp,
        }
        for name, asked in given.items():
            if asked:
                raise UsageError(
                    f"`{name}` is for models that continue a prompt, `{model.name}` reads a text"
                    " and writes another one",
                    hint="leave it out",
                )

    def require_source(self, length: int) -> None:
        """ContextLengthError for a source of too many tokens."""
        if length > self.source_length:
            raise ContextLengthError(
                f"{length} tokens do not fit into the {self.source_length} that the encoder takes",
                hint="shorten the text",
            )


def first_token(model: LoadedModel, size: int) -> int:
    """Return the decoder's start token, one of `size`; ModelError if the settings name none."""
    for name in ("decoder_start_token_id", "bos_token_id"):
        found = _token(model.generation_config, model.config, name)
        if found is not None:
            require_known(name, found, size)
            return found
    raise ModelError(
        f"`{model.name}` does not say with which token the texts that it writes begin",
        hint="add `decoder_start_token_id` to generation_config.json",
    )


def _token(settings: Mapping[str, object], config: Mapping[str, object], name: str) -> int | None:
    value = settings.get(name)
    value = config.get(name) if value is None else value
    if isinstance(value, list):
        several = cast("list[object]", value)
        value = several[0] if len(several) == 1 else several
    if value is not None and (not is_integer(value) or value < 0):
        raise ModelError(f"`{name}` must be a token, got {shown_value(value)}")
    return value


# One cache for models that differ in their adapters, whose texts run in one step.


class AdaptedSteps(Protocol):
    """A model whose linear layers support several adapters."""

    def adapted_step(
        self, step: RaggedStep, adapters: np.ndarray, buffers: PageBuffers
    ) -> np.ndarray:
        """Run a step with adapter `adapters[n]`, si32 [N], numbered from 1, for row n."""
        ...


def adapted_steps(models: Sequence[LoadedModel]) -> AdaptedSteps:
    """Return the base of `models` with the adapters of all of them, for shared steps.

    ModelError if layers of the model do not support an adapter for each row, tested with a step of
    two texts.
    """
    base = models[0].base
    adapters = [model.adapter for model in models if model.adapter is not None]
    assert base is not None, "each was made by `with_adapter`"
    made = base.with_several(adapters)
    if not hasattr(made, "adapted_step"):
        raise ModelError(f"`{base.name}` has no steps for several adapters")
    together = cast("AdaptedSteps", made)
    lm, table = base.causal_lm(), own_pages(2, 1)
    groups = len(cache_groups(lm.cache_specs()))
    step = StepShapes(base.backend).padded(ragged_step([[0], [0]], [0, 0], [table] * groups))
    pages = lm.new_buffers([table.size] * groups)
    together.adapted_step(step, _padded([1, 2], len(step.tokens)), pages)
    return together


class FamilyCache(PagedCache):
    """The pages of all texts of `models`, which differ in their adapters: families 1, 2, ...

    A step of one family runs its model; a step of several runs `together`, where each row gets its
    own adapter's product, with the same bits. Texts share pages only within their family.
    """

    def __init__(
        self,
        models: Sequence[LoadedModel],
        together: AdaptedSteps,
        dtype: DType,
        budget: int | None,
        states: int = 1,
    ) -> None:
        first = models[0]
        super().__init__(first.causal_lm(), first.backend, dtype, budget, states=states)
        self._members = [model.causal_lm() for model in models]
        self._together = together
        self.tells_states = False  # a draft head knows the model without adapters

    @property
    @override
    def steps_at_once(self) -> int:
        return 1

    @override
    def _method(self, rows: Sequence[Row], step: RaggedStep) -> RunsStep:
        families = [
            row.text.family % LONG for row in rows for _ in range(len(row.tokens) + len(row.guess))
        ]
        if len(set(families)) == 1:
            return self._members[families[0] - 1].step
        numbers = _padded(families, len(step.tokens))
        return lambda step, buffers: self._together.adapted_step(step, numbers, buffers)


def _padded(families: Sequence[int], rows: int) -> np.ndarray:
    """Return the family of each row, si32; padding rows have none, 0."""
    made = np.zeros(rows, np.int32)
    made[: len(families)] = families
    return made
