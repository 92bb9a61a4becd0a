"""`gptrs transcribe`: what is said in a file of sound."""

from __future__ import annotations

import dataclasses
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from msgspec import structs

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import shown_value
from gptrs_cli.loading import loaded_model, observed, profile_of
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, Settings
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import note
from gptrs_cli.text_run import HeadModel
from gptrs_observe.profile import Profile
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import RunTimings, Transcribe, Transcription
from gptrs_runtime.speech.fallback import Fallback
from gptrs_runtime.speech.timestamps import srt, vtt
from gptrs_runtime.speech.transcribe import transcribe as transcribe_sound


class Format(StrEnum):
    """How a transcription is printed."""

    TEXT = "text"
    SRT = "srt"
    VTT = "vtt"


@dataclass(frozen=True)
class FallbackOptions:
    """Settings for windows whose text is doubtful; None leaves them to the model's files."""

    title: ClassVar[str] = "Doubtful windows"

    temperature: Annotated[
        str | None,
        option("--temperature", "Tried one after another, such as 0,0.2,0.4.", metavar="T,T,.."),
    ] = None
    compression_ratio_threshold: Annotated[
        float | None,
        option("--compression-ratio-threshold", "Text that compresses more repeats itself."),
    ] = None
    logprob_threshold: Annotated[
        float | None,
        option("--logprob-threshold", "Text whose mean log-probability is below is poor."),
    ] = None
    no_speech_threshold: Annotated[
        float | None,
        option("--no-speech-threshold", "Poor text is none where silence is likelier than this."),
    ] = None
    condition_on_prev_tokens: Annotated[
        bool | None,
        option(
            "--condition-on-prev-tokens/--no-condition-on-prev-tokens",
            "Show each window the text before it.",
        ),
    ] = None
    seed: Annotated[int | None, option("--seed", "Draw the same tokens each time.")] = None

    def fallback(self) -> Fallback | None:
        """Return the given settings, None without any; UsageError for values out of range."""
        given = {
            name: value for name, value in dataclasses.asdict(self).items() if value is not None
        }
        if "temperature" in given:
            given["temperature"] = _temperatures(given["temperature"])
        return Fallback(**given) if given else None


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"`--temperature` takes numbers with commas between them, got {shown_value(text)}",
            hint="write --temperature 0,0.2,0.4,0.6,0.8,1",
        ) from None


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
    doubtful: FallbackOptions,
    settings: Settings,
) -> None:
    """Write down what is said in a file.

    Text goes to standard output, figures to standard error.
    """
    fallback = doubtful.fallback()
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
                fallback=fallback,
                progress=lambda heard, all_of_it: waiting.now(
                    f"heard {heard:.0f} of {all_of_it:.0f} s"
                ),
            )
        seconds = time.perf_counter() - started
        if settings.json:
            return print_result(_told(loaded, file, result, seconds, profile))
        typer.echo(_printed(result, shown), nl=shown is Format.TEXT)
        note(_figures(loaded, result, seconds))


def _told(
    model: LoadedModel, file: Path, found: Transcription, seconds: float, profile: Profile | None
) -> Transcribe:
    """Return what the JSON tells."""
    return Transcribe(
        model=model.name,
        kind=model.kind,
        backend=model.backend.name,
        file=str(file),
        **structs.asdict(found),
        timings=RunTimings(load_s=model.load_seconds, transcribe_s=seconds),
        profile=profile_of(profile),
    )


def _figures(model: LoadedModel, result: Transcription, seconds: float) -> str:
    return (
        f"{result.seconds:.1f} s of sound in {seconds:.1f} s, language"
        f" {result.language or 'of the model'}, backend {model.backend.name}"
    )


def _printed(result: Transcription, shown: Format) -> str:
    if shown is Format.TEXT:
        return result.text.strip()
    return (srt if shown is Format.SRT else vtt)(result.segments)
