"""The commands of the table of tasks by name: `verbs.classify` is the command `classify`."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import typer

from gptrs.lazy_module import lazy_module
from gptrs.progress import Progress, StepProgress
from gptrs.quoting import counted
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import is_terminal, note, note_below, printable
from gptrs_cli.terminal.tables import print_table
from gptrs_cli.verb_command import VerbRun, verb_command
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.verb_requests import SubtitleFormat
from gptrs_runtime.verbs import VERBS

if TYPE_CHECKING:
    from gptrs.checkpoint.formats import tensor_archive
    from gptrs_cli import loading, text_progress
    from gptrs_cli.terminal import progress as bars
    from gptrs_runtime.embedding import embed as embedding
    from gptrs_runtime.loaded_model import LoadedModel
    from gptrs_runtime.speech import timestamps
    from gptrs_runtime.tokenization import tokenizer
else:  # imported late: each command needs a few of them
    tensor_archive = lazy_module("gptrs.checkpoint.formats.tensor_archive")
    loading = lazy_module("gptrs_cli.loading")
    text_progress = lazy_module("gptrs_cli.text_progress")
    bars = lazy_module("gptrs_cli.terminal.progress")
    embedding = lazy_module("gptrs_runtime.embedding.embed")
    timestamps = lazy_module("gptrs_runtime.speech.timestamps")
    tokenizer = lazy_module("gptrs_runtime.tokenization.tokenizer")

_OTHER_HEAD: Final = re.compile("[A-Za-z0-9_]{1,80}For[A-Z][A-Za-z0-9]{1,80}")
"""The names of classes of transformers that have a head, such as `BertForMaskedLM`."""


def __getattr__(name: str) -> Callable[..., None]:
    """Return the command of a verb."""
    if name not in VERBS:
        raise AttributeError(name)
    return verb_command(VERBS[name], _BODIES.get(name, _read_texts))


def _read_texts(run: VerbRun) -> None:
    """Run a task whose results are a table."""
    with loading.observed(run.settings) as profile:
        run.load()
        with text_progress.text_progress(run.model, run.count, "reading") as progress:
            run.work(progress)
        if run.settings.json:
            run.print_json(profile)
        else:
            run.print_table()


def _embed(run: VerbRun) -> None:
    asked, settings = run.asked, run.settings
    with loading.observed(settings) as profile:
        # Before the model is loaded: hours of work must not end with a folder that cannot be
        # written.
        if asked.out is not None:
            tensor_archive.require_writable(asked.out)
        asked.require_few()
        run.load(_require_image_embedder if asked.images else _require_text_embedder)
        if not asked.images:
            _note_head(run.model)
        with text_progress.text_progress(run.model, run.count, "embedding") as progress:
            run.work(progress, embedding.embed_either)
        vectors, shape = run.found.vectors, list(run.found.vectors.shape)
        if asked.out is not None:
            tensor_archive.write_archive(asked.out, {"embeddings": vectors})
        if settings.json:
            shown = vectors if asked.out is None else None
            run.print_json(
                profile, shape=shape, embeddings=shown, similarity=run.found.similarities
            )
            return
        run.print_table(f"vectors f32{shape}", f", written to {asked.out}" if asked.out else "")


def _require_image_embedder(model: LoadedModel) -> None:
    model.image_embedder()


def _require_text_embedder(model: LoadedModel) -> None:
    # Models of images and texts embed texts, too, by another capability.
    if "image_text" not in model.capabilities:
        model.text_embedder()


def _note_head(model: LoadedModel) -> None:
    """Note that the head is left out, if config.json names a model with one."""
    names = model.config.get("architectures")
    if not (isinstance(names, list) and names):
        return
    name = cast("list[object]", names)[0]
    if isinstance(name, str) and _OTHER_HEAD.fullmatch(name):
        note(f"the files are of `{name}`: its body gives the vectors, its head is left out")


def _transcribe(run: VerbRun) -> None:
    shown = run.asked.format
    with loading.observed(run.settings) as profile:
        run.load()
        with Waiting("hearing") as waiting:

            def progress(heard: float, whole: float) -> None:
                waiting.now(f"heard {heard:.0f} of {whole:.0f} s")

            run.work(progress)
        if run.settings.json:
            run.print_json(profile, file=str(run.asked.sound))
            return
        found = run.found
        if shown is SubtitleFormat.TEXT:
            typer.echo(found.text.strip())
        else:
            typer.echo(
                (timestamps.srt if shown is SubtitleFormat.SRT else timestamps.vtt)(found.segments),
                nl=False,
            )
        note(
            f"{found.seconds:.1f} s of sound in {run.seconds:.1f} s, language"
            f" {found.language or 'of the model'}, backend {run.model.backend.name}"
        )


def _tokenize(run: VerbRun) -> None:
    asked, settings = run.asked, run.settings
    source = find_model(model_path(run.path))
    found = run.verb.function()(
        tokenizer.tokenizer_of(source, source.name), asked.text, asked.tokens, special=asked.special
    )
    if settings.json:
        print_result(found)
    elif asked.tokens is not None:
        # A pipe gets the bytes as they are, so that the text can be tokenized again.
        print(printable(found.text) if is_terminal(sys.stdout) else found.text)
    elif is_terminal(sys.stdout):
        rows = [
            [str(each.id), each.piece, json.dumps(each.text, ensure_ascii=False)]
            for each in found.tokens
        ]
        print_table(["id", "piece", "text"], rows)
        characters = counted(len(asked.text), "character")
        note_below(f"{counted(len(found.tokens), 'token')} of {characters}")
    else:
        print(*(each.id for each in found.tokens), sep=",")


def _perplexity(run: VerbRun) -> None:
    with loading.observed(run.settings) as profile:
        run.load()
        with bars.progress_bar("windows") as step:
            run.work(_progress(step))
        found = run.found
        if run.settings.json:
            # JSON has no infinity, the perplexity of a text that the model holds impossible, and no
            # NaN, the error of a single token.
            figures = {"perplexity": found.perplexity, "standard_error": found.standard_error}
            told = {name: None for name, value in figures.items() if not math.isfinite(value)}
            run.print_json(profile, **told)
            return
        print(f"perplexity {found}")
        print(f"{found.bits_per_byte:.4f} bits a byte, {found.nll:.4f} nats a token")
        note_below(
            f"{found.scored} of {found.tokens} tokens scored in"
            f" {counted(found.windows, 'window')} of {found.window} tokens, stride"
            f" {found.stride}, {run.seconds:.1f} s, backend {run.model.backend.name}"
        )


def _progress(step: StepProgress) -> Progress:
    return lambda done, total: step(done, total, "")


_BODIES: Final[dict[str, Callable[[VerbRun], None]]] = {
    "embed": _embed,
    "perplexity": _perplexity,
    "tokenize": _tokenize,
    "transcribe": _transcribe,
}
"""Tasks with results other than a table of texts."""
