"""`gptrs perplexity`: how well a model predicts a text."""

from __future__ import annotations

import math
import time
from typing import Annotated

from gptrs.progress import Progress, StepProgress
from gptrs_cli.loading import adapter_of, loaded_model, observed, profile_of
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, AdapterOption, ModelOption, Settings, model_shown
from gptrs_cli.options.text_input import TextInput
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.streams import note_below
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.perplexity import Perplexity, measure_perplexity
from gptrs_runtime.results import Perplexity as PerplexityResult
from gptrs_runtime.results import Profile, RunTimings


@command_options(*MODEL)
def perplexity(
    *,
    text: TextInput,
    model: ModelOption = None,
    window: Annotated[
        int | None,
        option(
            "--window",
            "Show the model N tokens at a time.  [default: the context, at most 1024]",
            metavar="N",
        ),
    ] = None,
    stride: Annotated[
        int | None,
        option(
            "--stride",
            "Move on by N tokens; the others of a window are what comes before.  [default: half a"
            " window]",
            metavar="N",
        ),
    ] = None,
    adapter: AdapterOption = None,
    settings: Settings,
) -> None:
    """Measure how well a model predicts a text.

    Perplexity is exp of the mean -log p of its tokens; each but the first is scored once. Compare
    models on one text, window, stride and tokenizer only; bits per byte between tokenizers, too.
    """
    content = text.read()
    with observed(settings) as profile:
        with Waiting(f"loading {model_shown(model)}"):
            loaded = loaded_model(model, settings, adapter)
            loaded.causal_lm()
            tokens = loaded.prompt_tokens(content)
        started = time.perf_counter()
        with progress_bar("windows") as step:
            found = measure_perplexity(loaded, tokens, window, stride, _progress(step))
        seconds = time.perf_counter() - started
        bits = found.nll * found.scored / math.log(2) / len(content.encode())
        if settings.json:
            return print_result(_told(loaded, found, bits, seconds, profile_of(profile)))
        print(f"perplexity {found.perplexity:.4f} +- {found.perplexity_error:.4f}")
        print(f"{bits:.4f} bits a byte, {found.nll:.4f} nats a token")
        note_below(
            f"{found.scored} of {found.tokens} tokens scored in {found.windows} windows of"
            f" {found.window} tokens, stride {found.stride}, {seconds:.1f} s, backend"
            f" {loaded.backend.name}"
        )


def _progress(step: StepProgress) -> Progress:
    return lambda done, total: step(done, total, "")


def _told(
    loaded: LoadedModel, found: Perplexity, bits: float, seconds: float, profile: Profile
) -> PerplexityResult:
    is_finite = math.isfinite(found.perplexity)
    return PerplexityResult(
        perplexity=found.perplexity if is_finite else None,
        standard_error=found.perplexity_error if is_finite else None,
        nll=found.nll,
        bits_per_byte=bits,
        tokens=found.tokens,
        scored=found.scored,
        windows=found.windows,
        window=found.window,
        stride=found.stride,
        model=loaded.name,
        backend=loaded.backend.name,
        adapter=adapter_of(loaded),
        timings=RunTimings(load_s=loaded.load_seconds, perplexity_s=seconds),
        profile=profile,
    )
