"""Generates text: reads the prompt in chunks, then chooses one token after another."""

from __future__ import annotations

from typing import Unpack

from gptrs_runtime.generation.batch import generate_batch, generate_several
from gptrs_runtime.generation.keyword_options import generation_options, tells_options
from gptrs_runtime.generation.keywords import OptionFields
from gptrs_runtime.generation.logits_processors import LogitsProcessor
from gptrs_runtime.generation.options import DEFAULT_MAX_TOKENS, PREFILL_CHUNK, GenerationOptions
from gptrs_runtime.generation.outcome import FinishReason, Generation, Timings
from gptrs_runtime.generation.stream import TextStream
from gptrs_runtime.generation.text_stream import TokenScores
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.text_batches import Prompt

__all__ = [
    "DEFAULT_MAX_TOKENS",
    "PREFILL_CHUNK",
    "FinishReason",
    "Generation",
    "GenerationOptions",
    "LogitsProcessor",
    "TextStream",
    "Timings",
    "TokenScores",
    "generate",
    "generate_batch",
    "generate_several",
    "stream",
]


@tells_options
def stream(
    model: LoadedModel,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    **fields: Unpack[OptionFields],
) -> TextStream:
    """Generate piece by piece; see `TextStream`.

    `prompt` is text, tokens, or the messages of a conversation. Fields of `GenerationOptions`, and
    of `Sampling`, may be given by name: `stream(model, "Once", max_tokens=20, temperature=0.7)`;
    they override those of `options`. UsageError for an empty prompt, unknown tokens or options,
    ContextLengthError when it does not fit, ModelError for a model that cannot generate.
    """
    return TextStream(model, prompt, generation_options(model, options, fields).for_stream())


@tells_options
def generate(
    model: LoadedModel,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    **fields: Unpack[OptionFields],
) -> Generation:
    """Generate to the end and return the outcome.

    `prompt` is text, tokens, or the messages of a conversation. It raises the errors of `stream`.
    """
    text = TextStream(model, prompt, generation_options(model, options, fields))
    for _ in text:
        pass
    return text.generation
