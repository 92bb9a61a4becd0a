"""Runs one generation: loads the model, streams its text or prints JSON, reports the figures."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from gptrs.runtime.generate import Generation, GenerationOptions, TextStream, stream
from gptrs.runtime.load import LoadedModel, load_model
from gptrs.runtime.profile import Profile
from gptrs.runtime.sampling import configured_sampling
from gptrs_cli.failures import INTERRUPTED
from gptrs_cli.observation import profile_fields
from gptrs_cli.progress import compilation_shown
from gptrs_cli.prompt import Prompt
from gptrs_cli.settings import Settings
from gptrs_cli.stderr import Waiting, has_colors, is_terminal, note, printable


@dataclass(frozen=True)
class Request:
    """What the user asked for; None where the model or gptrs decides."""

    model: Path | None
    prompt: Prompt
    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    use_cache: bool
    echo: bool


def run(request: Request, settings: Settings, profile: Profile | None = None) -> int:
    """Generate and print; returns the exit code, which is 0 unless the user interrupts.

    JSON comes with what `profile` has found.
    """
    what = f"`{request.model}`" if request.model else "the demo model"
    with Waiting(f"loading {what}") as waiting:
        model = load_model(request.model, settings.backend, settings.threads)
        pieces = stream(model, request.prompt.content, _options(request, model))
        waiting.now("reading the prompt")
        with compilation_shown(model.backend, waiting):
            if settings.json:
                interrupted = _print_json(request, model, pieces, waiting, profile)
            else:
                interrupted = _print_text(request, model, pieces, waiting)
        return INTERRUPTED if interrupted else 0


def _options(request: Request, model: LoadedModel) -> GenerationOptions:
    sampling = configured_sampling(
        model.generation_config,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        seed=request.seed,
    )
    return GenerationOptions(
        max_tokens=request.max_tokens,
        sampling=sampling,
        stop=request.stop,
        ignore_eos=request.ignore_eos,
        use_cache=request.use_cache,
    )


def _print_json(
    request: Request,
    model: LoadedModel,
    pieces: TextStream,
    waiting: Waiting,
    profile: Profile | None,
) -> bool:
    """Print one object at the end; whether the user interrupted."""
    interrupted = False
    try:
        for _ in pieces:
            pass
    except KeyboardInterrupt:
        interrupted = True
    waiting.stop()
    result = pieces.generation
    prompt = request.prompt.content
    fields: dict[str, object] = {
        "text": result.text,
        "token_ids": result.token_ids,
        "prompt": prompt if isinstance(prompt, str) else None,
        "prompt_token_ids": result.prompt_token_ids,
        "finish_reason": result.finish_reason,
        "timings": dataclasses.asdict(result.timings),
        "model": model.name,
        "backend": model.backend.name,
    }
    print(json.dumps(fields | profile_fields(profile)), flush=True)
    return interrupted


def _print_text(request: Request, model: LoadedModel, pieces: TextStream, waiting: Waiting) -> bool:
    """Print the text as it comes, then the figures; whether the user interrupted."""
    page = _Page()
    interrupted = False
    shown = 0
    try:
        for piece in pieces:
            waiting.stop()
            if page.is_empty:
                page.write_prompt(request)
            if not model.has_tokenizer:
                tokens = pieces.generation.token_ids
                piece = "".join(f"{token} " for token in tokens[shown:])
                shown = len(tokens)
            page.write(piece)
    except KeyboardInterrupt:
        interrupted = True
    waiting.stop()
    page.end_line()
    result = pieces.generation
    if interrupted:
        note(f"interrupted after {len(result.token_ids)} tokens")
    else:
        note(_figures(result, model))
    return interrupted


class _Page:
    """Standard output while text arrives: nothing stays in a buffer, no escape code gets through.

    A pipe gets the text as it is; a terminal gets control characters in visible form.
    """

    def __init__(self) -> None:
        self._terminal = is_terminal(sys.stdout)
        self._last = ""
        self.is_empty = True

    def write_prompt(self, request: Request) -> None:
        """Print the prompt where the user asked for it, or could not know it."""
        prompt = request.prompt
        text = prompt.content if isinstance(prompt.content, str) else f"{prompt.content} "
        if request.echo or (prompt.is_default and self._terminal):
            self.write(text, dim=has_colors(sys.stdout))

    def write(self, text: str, *, dim: bool = False) -> None:
        self.is_empty = False
        if text:
            shown = printable(text) if self._terminal else text
            sys.stdout.write(typer.style(shown, dim=True) if dim else shown)
            sys.stdout.flush()
            self._last = text[-1]

    def end_line(self) -> None:
        """Leave the cursor at the start of a line."""
        if self._last != "\n":
            sys.stdout.write("\n")
            sys.stdout.flush()


def _figures(result: Generation, model: LoadedModel) -> str:
    timings = result.timings
    parts = [f"prompt {len(result.prompt_token_ids)} tokens"]
    if timings.prompt_tokens_per_s is not None and timings.first_token_s is not None:
        parts[0] += f" at {timings.prompt_tokens_per_s:.0f} tok/s"
        parts.append(f"first token {timings.first_token_s * 1000:.0f} ms")
    decoded = f"{len(result.token_ids)} new tokens"
    if timings.decode_tokens_per_s is not None:
        decoded += f" at {timings.decode_tokens_per_s:.0f} tok/s"
    parts += [decoded, f"backend {model.backend.name}", f"loaded in {timings.load_s:.2f} s"]
    return ", ".join(parts)
