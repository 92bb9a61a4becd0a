"""The options of a generation as keyword arguments, the same for all functions that generate."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

from gptrs.errors import UsageError
from gptrs.quoting import did_you_mean
from gptrs.runtime.generation.logits_processors import LogitsProcessor, ProcessorMaker
from gptrs.runtime.generation.model_settings import configured_sampling
from gptrs.runtime.generation.options import EarlyStopping, GenerationOptions
from gptrs.runtime.generation.sampling import Sampling
from gptrs.runtime.loaded_model import LoadedModel


class SamplingFields(TypedDict, total=False):
    """Fields of `Sampling` that replace single ones of the model's generation_config.json."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    typical_p: float
    epsilon_cutoff: float
    eta_cutoff: float


class OptionFields(SamplingFields, total=False):
    """Fields of `GenerationOptions`, and those of `Sampling`."""

    max_tokens: int | None
    sampling: Sampling | None
    stop: Sequence[str]
    ignore_eos: bool
    use_cache: bool
    prefill_chunk: int
    logprobs: int | None
    special: bool
    context: int | None
    context_shift: bool
    keep: int
    cache_budget: int | str | None
    cache_dtype: str | None
    prompt_cache: str | os.PathLike[str] | None
    logits_processors: Sequence[LogitsProcessor]
    form: ProcessorMaker | None
    prompt_lookup: bool
    draft: LoadedModel | None
    beams: int | None
    length_penalty: float | None
    early_stopping: EarlyStopping | None
    steps_at_once: int | None


_SAMPLING = frozenset(SamplingFields.__annotations__)
_KNOWN = tuple(OptionFields.__annotations__)
_NAMES_ELSEWHERE: Mapping[str, str] = {
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "n_predict": "max_tokens",
    "prompt_lookup_num_tokens": "prompt_lookup",
    "assistant_model": "draft",
    "num_beams": "beams",
    "stop_strings": "stop",
    "temp": "temperature",
}


def generation_options(
    model: LoadedModel, options: GenerationOptions | None, fields: OptionFields
) -> GenerationOptions:
    """Return `options` with `fields` in place of its own.

    Fields of `Sampling` replace single ones of what the model's generation_config.json asks for;
    with `sampling` they exclude each other. UsageError for unknown names.
    """
    given = cast("dict[str, Any]", dict(fields))
    for name in given:
        if name not in _KNOWN:
            raise _unknown(name)
    drawn = {name: given.pop(name) for name in list(given) if name in _SAMPLING}
    if drawn:
        if given.get("sampling") is not None or (options and options.sampling is not None):
            raise UsageError(f"`{next(iter(drawn))}` and `sampling` exclude each other")
        given["sampling"] = configured_sampling(model.generation_config, **drawn)
    return dataclasses.replace(options or GenerationOptions(), **given)


def _unknown(name: str) -> UsageError:
    known = _NAMES_ELSEWHERE.get(name)
    guess = f"did you mean `{known}`? " if known else did_you_mean(name, _KNOWN)
    listed = ", ".join(f"`{option}`" for option in _KNOWN)
    return UsageError(f"there is no option `{name}`", hint=f"{guess}there are {listed}")
