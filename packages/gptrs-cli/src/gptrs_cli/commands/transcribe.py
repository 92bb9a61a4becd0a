"""`gptrs transcribe`: what is said in a file of sound."""

from __future__ import annotations

import dataclasses
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gptrs.runtime.loaded_model import LoadedModel
from gptrs.runtime.speech.subtitles import srt, vtt
from gptrs.runtime.speech.transcribe import transcribe as transcribe_sound
from gptrs.runtime.speech.transcription import Transcription
from gptrs_cli.loading import loaded_model
from gptrs_cli.observation import observed, profile_fields
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.stderr import note
from gptrs_cli.terminal.waiting import Waiting
from gptrs_cli.text_run import HeadModel


class Format(StrEnum):
    """How a transcription is printed."""

    TEXT = "text"
    SRT = "srt"
    VTT = "vtt"


@command_options(*MODEL)
def transcribe(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE.wav", help="A WAV file, of any length.")],
    model: HeadModel,
    language: Annotated[
        str | None,
        typer.Option(
            "--language", metavar="CODE", help="Spoken, such as `en`; else the model tells."
        ),
    ] = None,
    translate: Annotated[
        bool, typer.Option("--translate", help="Write English, whatever is spoken.")
    ] = False,
    shown: Annotated[
        Format, typer.Option("--format", help="Text, or subtitles as SubRip or WebVTT.")
    ] = Format.TEXT,
    no_timestamps: Annotated[
        bool, typer.Option("--no-timestamps", help="Write each window without times in it.")
    ] = False,
    settings: Settings,
) -> None:
    """Write down what is said in a file.

    Text goes to standard output, figures to standard error.
    """
    with observed(settings) as profile:
        with Waiting(f"loading `{model}`") as waiting:
            loaded = loaded_model(model, settings)
            loaded.hearer()
            started = time.perf_counter()
            result = transcribe_sound(
                loaded,
                file,
                language=language,
                task="translate" if translate else None,
                timestamps=not no_timestamps,
                progress=lambda heard, all_of_it: waiting.now(
                    f"heard {heard:.0f} of {all_of_it:.0f} s"
                ),
            )
        seconds = time.perf_counter() - started
        if settings.json:
            fields = _fields(loaded, file, result, seconds)
            print_result("transcribe", fields | profile_fields(profile))
            return
        typer.echo(_printed(result, shown), nl=shown is Format.TEXT)
        note(
            f"{result.seconds:.1f} s of sound in {seconds:.1f} s, language"
            f" {result.language or 'of the model'}, backend {loaded.backend.name}"
        )


def _fields(
    model: LoadedModel, file: Path, result: Transcription, seconds: float
) -> dict[str, object]:
    """Return what the JSON tells."""
    return {
        "model": model.name,
        "kind": model.kind,
        "backend": model.backend.name,
        "file": str(file),
        **dataclasses.asdict(result),
        "timings": {"load_s": model.load_seconds, "transcribe_s": seconds},
    }


def _printed(result: Transcription, shown: Format) -> str:
    if shown is Format.TEXT:
        return result.text.strip()
    return (srt if shown is Format.SRT else vtt)(result.segments)
