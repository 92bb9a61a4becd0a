"""Keywords of a generation, for type checkers: written by tools/option_keywords.py."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from gptrs_runtime.generation.sampling_options import Sampling

if TYPE_CHECKING:
    from gptrs_runtime.generation.logits_processors import LogitsProcessor, ProcessorMaker
    from gptrs_runtime.generation.options import EarlyStopping
    from gptrs_runtime.loaded_model import LoadedModel


class SamplingFields(TypedDict, total=False):
    """Fields of `Sampling` in place of those of generation_config.json; None leaves them."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    typical_p: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None


class OptionFields(SamplingFields, total=False):
    """Fields of `GenerationOptions`, and those of `Sampling`."""

    max_tokens: int | None
    sampling: Sampling | None
    stop: Sequence[str]
    keep_stop: bool
    ignore_eos: bool
    stop_tokens: Sequence[int]
    min_tokens: int | None
    use_cache: bool
    prefill_chunk: int
    logprobs: int | None
    special: bool | frozenset[str]
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
    mtp: bool
    beams: int | None
    length_penalty: float | None
    early_stopping: EarlyStopping | None
    steps_at_once: int | None
