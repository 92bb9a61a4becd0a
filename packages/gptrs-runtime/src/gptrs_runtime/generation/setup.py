"""Checks a model and its options, and makes the objects of a generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial

from msgspec.structs import asdict, replace

from gptrs.errors import ContextLengthError, UsageError
from gptrs.plugins.capabilities import CausalLM, Seq2SeqLM
from gptrs_runtime.generation.beams import BEAM_SETTINGS, BeamSearch, BeamTask, asked_beams
from gptrs_runtime.generation.context import Context, ContextLimit
from gptrs_runtime.generation.generated_text import GeneratedText
from gptrs_runtime.generation.guessing.draft import (
    DraftText,
    HeadText,
    draft_cache,
    own_head_cache,
)
from gptrs_runtime.generation.guessing.guesser import PromptLookup, TextGuesses
from gptrs_runtime.generation.logits_processors import (
    FormJudge,
    LogitsProcessor,
    ProcessorChain,
    built_in_processors,
)
from gptrs_runtime.generation.masks_beside import MasksBeside
from gptrs_runtime.generation.model_settings import (
    configured_max_tokens,
    configured_rules,
    configured_sampling,
    configured_stops,
    note_ignored,
)
from gptrs_runtime.generation.options import DEFAULT_MAX_TOKENS, GenerationOptions
from gptrs_runtime.generation.paged_cache import STATES, HeadCache, PagedCache, paged_cache
from gptrs_runtime.generation.sampling import Sampler
from gptrs_runtime.generation.scheduler import Scheduler, WhenFailed
from gptrs_runtime.generation.source_cache import SourceCache, SourceSettings
from gptrs_runtime.generation.step_times import cache_budget, cache_dtype
from gptrs_runtime.generation.text_cache import NoCache, TextCache
from gptrs_runtime.generation.text_stream import Decode, IncrementalDecoder, after
from gptrs_runtime.generation.watching import Watch
from gptrs_runtime.images.image_prompts import Picture, PicturedTokens, shown_tokens
from gptrs_runtime.input_checks import require_known_tokens
from gptrs_runtime.loaded_model import LoadedModel


class GenerationSetup:
    """Makes texts of `model` under `options`, and the schedulers that run them.

    UsageError for options incompatible with the model, ModelError for a model that cannot generate
    or malformed settings in its generation_config.json.
    """

    def __init__(self, model: LoadedModel, options: GenerationOptions) -> None:
        reads = "seq2seq" in model.capabilities
        self.lm: CausalLM | Seq2SeqLM = model.seq2seq() if reads else model.causal_lm()
        self._sources = SourceSettings(model, options) if reads else None
        self.options = options
        self._model = model
        self._settings = model.generation_config
        self._limit = _context_limit(self.lm.context_length, options)
        # Explicit beams choose the likeliest texts even if the model samples by default.
        temperature = 0.0 if (options.beams or 1) > 1 else None
        self._sampling = options.sampling or configured_sampling(
            self._settings, temperature=temperature
        )
        self.beams = asked_beams(self._settings, options, self._sampling)
        decided = self.beams is not None or options.beams is not None
        note_ignored(
            *(model.name, self._settings, self.lm.vocab_size), BEAM_SETTINGS if decided else ()
        )
        self._rules = configured_rules(self._settings)
        if options.min_tokens is not None:
            least = {"min_new_tokens": options.min_tokens, "min_length": 0}
            self._rules = replace(self._rules, **least)
        own = frozenset[int]() if options.ignore_eos else model.eos_tokens
        require_known_tokens(options.stop_tokens, self.lm.vocab_size)
        self._ends = own | frozenset(options.stop_tokens)
        self._stops = self._all_stops()
        if self.beams is not None and self._stops:
            raise UsageError(
                "stop strings do not go with beams", hint="leave them out, or ask for 1 beam"
            )

    @cached_property
    def cache(self) -> PagedCache | None:
        """The cache that generations of the model share, None without a cache."""
        options = self.options
        if not options.use_cache or self._sources is not None:
            return None
        dtype, budget = cache_dtype(options.cache_dtype), cache_budget(options.cache_budget)
        return paged_cache(self._model, dtype, budget, STATES if options.guesses else 1)

    def new_text(
        self, prompt: Sequence[int], max_tokens: int | None = None, stream: int = 0
    ) -> GeneratedText:
        """Return a text that starts with `prompt`; `max_tokens` defaults to the options.

        For an encoder-decoder, the prompt is the source. ContextLengthError if it does not fit.
        `stream` is passed to the `Sampler`.
        """
        self._model.backend.agree(lambda: self._facts(prompt, max_tokens, stream))
        count = self.token_budget(len(prompt), max_tokens)
        pictures = self._pictures(prompt)
        begin = prompt if self._sources is None else self._sources.begin
        processors = self._processors(begin, count, prompt)
        form = processors[-1] if self.options.form is not None else None
        context, sampler = Context(begin, self._limit), Sampler(self._sampling, stream)
        # The last chosen token is never read.
        most_positions = min(self._limit.size, len(begin) + count - 1)
        return GeneratedText(
            prompt=shown_tokens(prompt),
            context=context,
            most_positions=most_positions,
            max_tokens=count,
            ends=self._ends,
            shown_ends=self._shown_ends,
            sampler=sampler,
            processors=ProcessorChain(processors, shown_tokens(begin)),
            decoder=self._decoder(),
            stops=self._stops,
            logprobs=self.options.logprobs,
            load_seconds=self._model.load_seconds,
            guesses=self._guesses(context, sampler, most_positions),
            source=() if self._sources is None else prompt,
            pictures=pictures,
            steps_at_once=self.options.steps_at_once,
            form=form if isinstance(form, FormJudge) else None,
            marks=self._marks,
            keeps_stop=self.options.keep_stop,
        )

    def _facts(self, prompt: Sequence[int], max_tokens: int | None, stream: int) -> dict[str, str]:
        """Return what decides the steps of a text, for processes that take them together."""
        options = asdict(self.options)
        for name in ("logits_processors", "form", "draft"):  # known by their addresses alone
            options[name] = bool(options[name])
        return {
            "prompt": str([*shown_tokens(prompt)]),
            "set of options": f"{options} {max_tokens} {stream} {self._sampling}",
            "generation_config.json": str(sorted(self._settings.items())),
        }

    def _processors(
        self, begin: Sequence[int], count: int, source: Sequence[int]
    ) -> list[LogitsProcessor]:
        """Return the processors of a text of `count` tokens after `begin`, made from `source`."""
        what = self._sampling, self._rules, self._ends, len(begin)
        built_in = built_in_processors(*what, count=count, source=shown_tokens(source))
        # The user's processors come last, so that they see suppressed tokens and have the final
        # say.
        processors = [*built_in, *self.options.logits_processors]
        if self.options.form is not None:
            processors.append(self.options.form.new_processor(len(begin)))
        return processors

    def search(self, text: GeneratedText, max_tokens: int | None = None) -> BeamSearch:
        """Return the search with `beams` for a new text; `max_tokens` as of `new_text`."""
        assert self.beams is not None
        begin = text.context.tokens
        count = self.token_budget(len(text.prompt), max_tokens)
        task = BeamTask(
            begin=tuple(begin),
            source=text.source,
            positions=text.most_positions,
            max_tokens=count,
            ends=self._ends,
            processors=lambda tokens: ProcessorChain(
                self._processors(begin, count, text.prompt), tokens
            ),
            chunk=self.options.prefill_chunk,
        )
        return BeamSearch(self.beams, self.cache or self._own_cache(), task)

    def _pictures(self, prompt: Sequence[int]) -> Sequence[Picture]:
        """Return the pictures of a prompt; UsageError for options that do not go with them."""
        if not isinstance(prompt, PicturedTokens):
            return ()
        options = self.options
        refused = {
            "use_cache": not options.use_cache,
            "prompt_cache": options.prompt_cache is not None,
            "draft": options.draft is not None,
            "mtp": options.mtp,
        }
        for name, is_asked in refused.items():
            if is_asked:
                raise UsageError(
                    f"`{name}` does not go with images: what a text sees of them is in the cache of"
                    " this process alone",
                    hint="leave it out, or the images",
                )
        return prompt.pictures

    def _guesses(
        self, context: Context, sampler: Sampler, most_positions: int
    ) -> TextGuesses | None:
        """Return the guess sources of a text; CacheBudgetError if it does not fit the draft's
        cache."""
        options = self.options
        if not options.guesses:
            return None
        draft = None
        if self._draft is not None:
            chunk = options.prefill_chunk
            what = context, sampler, most_positions, chunk
            if isinstance(self._draft, HeadCache):
                draft = HeadText(self._draft, *what)
            else:
                draft = DraftText(self._draft, *what)
            self._draft.require(draft.most_positions, chunk)
        lookup = PromptLookup(context.tokens) if options.prompt_lookup else None
        return TextGuesses(lookup, draft, self.lm.vocab_size)

    @cached_property
    def _draft(self) -> PagedCache | None:
        """Return the cache of the draft; UsageError if its tokens differ from the model's."""
        dtype = cache_dtype(self.options.cache_dtype)
        if self.options.mtp:
            return own_head_cache(self._model, dtype)
        if self.options.draft is None:
            return None
        return draft_cache(self._model, self.options.draft, dtype)

    def token_budget(self, prompt: int, max_tokens: int | None) -> int:
        """Return how many tokens may follow `prompt` tokens; ContextLengthError if they do not fit.

        `max_tokens` defaults to the options. UsageError if either is below 1.
        """
        asked = self.options.max_tokens if max_tokens is None else max_tokens
        if prompt < 1 or (asked is not None and asked < 1):
            raise UsageError(
                f"a text has a prompt and new tokens, at least 1 each, got {prompt} and {asked}"
            )
        if self._sources is not None:
            self._sources.require_source(prompt)
            prompt = len(self._sources.begin)
        room = self._limit.size - prompt
        if not self._limit.shift and (room < 1 or (asked is not None and asked > room)):
            more = f" and {asked} new ones" if asked is not None else ""
            raise ContextLengthError(
                f"{prompt} prompt tokens{more} do not fit into the context of"
                f" {self._limit.size} tokens",
                hint="shorten the prompt, lower --max-tokens, or add --context-shift",
            )
        if asked is not None:
            return asked
        default = configured_max_tokens(self._settings, prompt) or DEFAULT_MAX_TOKENS
        return default if self._limit.shift else min(room, default)

    def new_scheduler(
        self,
        most_texts: int | None = None,
        when_failed: WhenFailed | None = None,
        cache: TextCache | None = None,
        *,
        grows: bool = False,
        masks: MasksBeside | None = None,
        watch: Watch | None = None,
    ) -> Scheduler:
        """Return a scheduler on `cache`, by default on the cache shared by the model's
        generations."""
        return Scheduler(
            cache or self.cache or self._own_cache(),
            chunk=self.options.prefill_chunk,
            most_texts=most_texts,
            when_failed=when_failed,
            grows=grows,
            masks=masks,
            watch=watch,
        )

    def _own_cache(self) -> TextCache:
        """Return a cache for one scheduler, for models whose texts share nothing with others."""
        if self._sources is not None:
            return SourceCache(self._model.seq2seq(), self._model.backend)
        return NoCache(self._model.causal_lm())

    def _all_stops(self) -> tuple[str, ...]:
        if self._model.has_tokenizer:
            return (*self.options.stop, *configured_stops(self._settings))
        if self.options.stop:
            raise UsageError("stop strings need a model with a tokenizer")
        return ()

    @cached_property
    def _marks(self) -> Mapping[int, str]:
        """The texts of special tokens that are not shown, but that stop strings contain."""
        shown = self.options.special
        if not self._stops or shown is True:
            return {}
        tokenizer = self._model.tokenizer
        texts = tokenizer.special_pieces() - (shown or frozenset())
        used = [text for text in texts if any(text in stop for stop in self._stops)]
        return {number: text for text in used if (number := tokenizer.number(text)) is not None}

    @cached_property
    def _shown_ends(self) -> frozenset[int]:
        """The tokens that end a text and are part of it: shown special ones, and kept stops."""
        shown = self.options.special
        # A special one among these has no text unless it is shown.
        kept = frozenset(self.options.stop_tokens if self.options.keep_stop else ())
        if isinstance(shown, bool) or not self._model.has_tokenizer:
            return self._ends if shown else kept
        return kept | self._ends.intersection(map(self._model.tokenizer.number, shown))

    def _decoder(self) -> IncrementalDecoder:
        if not self._model.has_tokenizer:
            return IncrementalDecoder(_NoText())
        tokenizer = self._model.tokenizer
        decode: Decode = partial(tokenizer.decode, special=self.options.special)
        if self.options.form:  # covers everything generated, including a leading space
            decode = after(tokenizer.encode("a", special=False), decode)
        return IncrementalDecoder(decode, tokenizer.open_ends)


class _NoText:
    """The decoder of a model without a tokenizer: tokens have no text."""

    def __call__(self, tokens: Sequence[int]) -> str:
        return ""


def _context_limit(most: int, options: GenerationOptions) -> ContextLimit:
    asked = options.context
    if asked is not None and asked > most:
        raise ContextLengthError(
            f"the model has a context of {most} tokens, asked for {asked}",
            hint="lower --context",
        )
    return ContextLimit(asked or most, options.context_shift, options.keep)
