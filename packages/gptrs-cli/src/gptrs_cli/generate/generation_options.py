"""The options of generations: those of a request of `gptrs generate`, else those of its model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gptrs.errors import UsageError
from gptrs_cli.generate.options import FormOptions, SamplingOptions
from gptrs_cli.generate.request import NOT_GREEDY, GenerateRequest
from gptrs_cli.loading import chosen_backend
from gptrs_cli.options.settings import Settings
from gptrs_cli.options.text_input import read_text
from gptrs_runtime.generation.grammar import Form, Grammar
from gptrs_runtime.generation.model_settings import configured_sampling
from gptrs_runtime.generation.options import PREFILL_CHUNK, GenerationOptions
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel


def generation_options(
    request: GenerateRequest, model: LoadedModel, settings: Settings
) -> GenerationOptions:
    """Return the options of generations, with the sampling that suits `model`, and its draft."""
    draft = request.guessing.draft
    chunk = request.context.prefill_chunk
    form = _form(request.form)
    sampling = _sampling(request.sampling, model.generation_config)
    if settings.processes is not None:
        guesses = draft is not None or request.guessing.prompt_lookup
        require_alike(sampling, guesses=guesses)
    return GenerationOptions(
        max_tokens=request.limits.max_tokens,
        sampling=sampling,
        stop=tuple(request.limits.stop),
        ignore_eos=request.limits.ignore_eos,
        use_cache=not request.context.no_cache,
        prefill_chunk=PREFILL_CHUNK if chunk is None else chunk,
        logprobs=request.output.logprobs,
        special=request.output.special,
        context=request.context.context_size,
        context_shift=request.context.context_shift,
        keep=request.context.keep,
        cache_budget=request.context.cache_budget,
        cache_dtype=request.context.cache_dtype,
        prompt_cache=request.context.prompt_cache,
        form=None if form is None else Grammar(model, *form),
        prompt_lookup=request.guessing.prompt_lookup,
        beams=1 if request.sampling.greedy else request.sampling.beams,
        length_penalty=request.sampling.length_penalty,
        draft=None if draft is None else load_model(draft, chosen_backend(settings)),
    )


def require_alike(sampling: Sampling, *, guesses: bool) -> None:
    """Raise UsageError for options that several processes would each follow in their own way."""
    if guesses:
        raise UsageError(
            "guesses follow from measured times, which several processes do not share",
            hint="leave out --draft and --prompt-lookup",
        )
    if sampling.temperature > 0 and sampling.seed is None:
        raise UsageError(
            "several processes must choose the same tokens", hint="give a --seed, or --greedy"
        )


def _form(options: FormOptions) -> tuple[Form, str] | None:
    """Return the form that texts must have, and its text, read from a file where one is named.

    UsageError for a file that cannot be read.
    """
    if options.json_schema is not None:
        return "json_schema", read_text(options.json_schema, "the JSON schema")
    if options.grammar is not None:
        return "lark", read_text(options.grammar, "the grammar")
    return None if options.regex is None else ("regex", options.regex)


def _sampling(options: SamplingOptions, settings: Mapping[str, object]) -> Sampling:
    """Return the sampling of a model with these settings in its generation_config.json."""
    given = dataclasses.asdict(options)
    del given["length_penalty"]
    has_beams = (given.pop("beams") or 1) > 1
    drawn = any(given[name] is not None for name in NOT_GREEDY)
    if given.pop("greedy") or (has_beams and not drawn):
        given["temperature"] = 0.0
    return configured_sampling(settings, **given)
