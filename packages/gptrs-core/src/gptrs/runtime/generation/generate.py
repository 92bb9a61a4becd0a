"""Generate text: read the prompt in chunks, then choose one token after another."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.runtime.generation.batch import generate_batch, generate_several
from gptrs.runtime.generation.logits_processors import LogitsProcessor
from gptrs.runtime.generation.options import (
    DEFAULT_MAX_TOKENS,
    PREFILL_CHUNK,
    FinishReason,
    Generation,
    GenerationOptions,
    Timings,
)
from gptrs.runtime.generation.sampling import Sampling
from gptrs.runtime.generation.stream import TextStream
from gptrs.runtime.generation.token_scores import TokenScores
from gptrs.runtime.load import LoadedModel, Prompt

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


def stream(
    model: LoadedModel, prompt: Prompt, options: GenerationOptions | None = None
) -> TextStream:
    """Generate piece by piece; see `TextStream`.

    `prompt` is text or token ids. UsageError for an empty prompt or unknown tokens,
    ContextLengthError when it does not fit, ModelError for a model that cannot generate.
    """
    return TextStream(model, prompt, options or GenerationOptions())


def generate(
    model: LoadedModel,
    prompt: Prompt,
    *,
    max_tokens: int | None = None,
    sampling: Sampling | None = None,
    stop: Sequence[str] = (),
    ignore_eos: bool = False,
    use_cache: bool = True,
    logits_processors: Sequence[LogitsProcessor] = (),
) -> Generation:
    """Generate to the end and return the outcome; parameters as in `GenerationOptions`."""
    options = GenerationOptions(
        max_tokens, sampling, stop, ignore_eos, use_cache, logits_processors=logits_processors
    )
    text = stream(model, prompt, options)
    for _ in text:
        pass
    return text.generation
