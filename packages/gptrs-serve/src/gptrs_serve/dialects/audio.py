"""`/v1/audio/transcriptions` and `/v1/audio/translations` of OpenAI: forms with audio."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from email.message import Message
from email.parser import BytesParser
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, cast

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from gptrs.errors import UsageError
from gptrs.quoting import quoted
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Segment, Transcription, Window
from gptrs_runtime.speech.fallback import Fallback
from gptrs_runtime.speech.timestamps import srt, vtt
from gptrs_runtime.verbs import VERBS
from gptrs_serve.bodies import Model
from gptrs_serve.events import EventStream, event_of, for_client
from gptrs_serve.fields import MOST_NAME, NOTHING, RequestFields, converted
from gptrs_serve.problems import RequestError, problem_of, read_bytes
from gptrs_serve.served import HEARING, Served

MOST_BYTES: Final = 25_000_000
"""Most bytes of a form with audio, as in OpenAI's API: 13 minutes at 16 kHz."""

MOST_PARTS: Final = 64
MOST_HEAD_BYTES: Final = 4_096

_FORM: Final = "multipart/form-data"


class _GoneError(Exception):
    """The client of a transcription has disconnected."""


class TranslationBody(RequestFields, kw_only=True):
    """`/v1/audio/translations`: English text of any speech."""

    refused: ClassVar[Mapping[str, str]] = {
        "prompt": "the transcription uses only the audio",
    }
    file: Annotated[Any, Meta(description="A WAV, MP3, FLAC, Ogg, M4A or WebM file.")]
    model: Model | None = None
    response_format: Annotated[
        Literal["json", "text", "srt", "verbose_json", "vtt"],
        Meta(description="`json`, `text`, `srt`, `vtt`, or `verbose_json` with segments."),
    ] = "json"
    temperature: (
        Annotated[
            float, Meta(ge=0, le=1, description="0: take the likeliest tokens; above 0: sample.")
        ]
        | None
    ) = None


class TranscriptionBody(TranslationBody, kw_only=True):
    """`/v1/audio/transcriptions`."""

    refused: ClassVar[Mapping[str, str]] = {
        **TranslationBody.refused,
        "known_speaker_names": "speakers are not distinguished",
        "known_speaker_references": "speakers are not distinguished",
        "languages": "use `language`, for a single one",
        "keywords": "the transcription uses only the audio",
    }
    language: (
        Annotated[str, Meta(description="The spoken language, such as `en`; default: detected.")]
        | None
    ) = None
    stream: Annotated[bool, Meta(description="Send the text as events, after transcribing.")] = (
        False
    )
    timestamp_granularities: (
        Annotated[list[Literal["segment"]], Meta(description="`segment` with `verbose_json`.")]
        | None
    ) = None
    chunking_strategy: (
        Annotated[
            Literal["auto"], Meta(description="The model determines the windows.", extra=NOTHING)
        ]
        | None
    ) = None
    include: (
        Annotated[
            Annotated[list[str], Meta(max_length=0)],
            Meta(description="Use `verbose_json`.", extra=NOTHING),
        ]
        | None
    ) = None


BODIES: Final[Mapping[str, type[TranslationBody]]] = {
    "/v1/audio/transcriptions": TranscriptionBody,
    "/v1/audio/translations": TranslationBody,
}


def form_fields(data: bytes | bytearray, content_type: str) -> dict[str, object]:
    """Return the fields of a form: texts, lists of those named `NAME[]`, and files as views.

    RequestError if there are none, or two of a name.
    """
    fields: dict[str, object] = {}
    for head, value in _parts(data, content_type):
        name, is_file = _head(head)
        if name is None:
            continue
        given: object = value
        if not is_file:
            given = bytes(value).decode("utf-8", "replace")
        if name.endswith("[]"):
            known = fields.setdefault(name[:-2], [])
            if isinstance(known, list):
                cast("list[object]", known).append(given)
                continue
        if name.removesuffix("[]") in fields:
            told = f"the form has two fields called {quoted(name.removesuffix('[]'))}"
            param = name.removesuffix("[]")[:MOST_NAME]
            raise RequestError(told, param=param, code="invalid_form")
        fields[name] = given
    if not fields:
        raise RequestError(f"the body is not a form of the type {_FORM}", code="invalid_form")
    return fields


def _parts(data: bytes | bytearray, content_type: str) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the head and the content of each part of a form (RFC 2046, 5.1)."""
    kind = Message()
    kind["Content-Type"] = content_type
    boundary = kind.get_boundary("").encode("latin-1", "replace")
    mark = b"\r\n--" + boundary
    # Searched, not read line by line: the parser of the standard library takes minutes for the
    # 25 MB of a hostile form. Contents are views: slices would be copies of megabytes.
    at = -2 if data.startswith(mark[2:]) else data.find(mark)
    for _ in range(MOST_PARTS + 1 if boundary and at != -1 else 0):
        at += len(mark)
        if data.startswith(b"--", at):
            return
        begin, end = data.find(b"\r\n", at), data.find(mark, at)
        if min(begin, end) < 0 or data[at:begin].strip(b" \t"):
            break
        # From the end of the first line: a part without headers begins with the blank line.
        blank = data.find(b"\r\n\r\n", begin, end)
        if blank < 0 or blank - begin > MOST_HEAD_BYTES:
            break
        yield bytes(data[begin + 2 : blank]), memoryview(data)[blank + 4 : end]
        at = end
    raise RequestError(
        f"the body is not a form of the type {_FORM} with at most {MOST_PARTS} parts, and"
        f" {MOST_HEAD_BYTES} bytes before each content",
        code="invalid_form",
    )


def _head(head: bytes) -> tuple[str | None, bool]:
    """Return the name of a part, None without one, and whether it is a file."""
    part = BytesParser().parsebytes(head + b"\r\n\r\n")
    coding = str(part.get("content-transfer-encoding", "binary")).strip().lower()
    if coding not in ("binary", "8bit", "7bit"):
        raise RequestError(f"a part of the form is encoded: {coding[:40]!r}", code="invalid_form")
    name = part.get_param("name", header="content-disposition")
    return name if isinstance(name, str) else None, part.get_filename() is not None


def require_own_page(request: Request, origins: object) -> None:
    """Refuse a form from a page of another site: browsers send forms without a preflight."""
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    known = cast("tuple[str, ...]", origins)
    # Forms are sent across sites without a preflight, so CORS does not protect this route: only
    # `Origin` tells.
    if origin is None or origin.partition("://")[2] == host or {origin.lower(), "*"} & {*known}:
        return
    raise RequestError(
        "this server does not accept forms from that page", status=403, code="origin"
    )


async def heard(
    request: Request, served: Served, origins: object, most_bytes: int = MOST_BYTES
) -> Response:
    """Transcribe or translate the audio of a form; raises the errors of `transcribe`."""
    require_own_page(request, origins)
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != _FORM:
        raise RequestError(f"send `Content-Type: {_FORM}`", status=415, code="content_type")
    data = await read_bytes(request, max(most_bytes, MOST_BYTES))
    fields = await served.reading.run(lambda: form_fields(data, kind))
    # Not strict: forms have only texts, `0.5` is a number there.
    body = converted(fields, BODIES[request.url.path], strict=False)
    if not isinstance(body.file, memoryview):
        raise RequestError("`file` must be a file", param="file")
    _require_streamable(body)
    name, model = served.named(body.model, served.capability(body.model, HEARING))
    found = await _transcribed(request, body, model, served)
    if isinstance(body, TranscriptionBody) and body.stream:
        return EventStream(_events(found), lambda: None, ending=_ending)
    return _answer(body, name, found)


def _require_streamable(body: TranslationBody) -> None:
    """Refuse a stream in a format that has no events: they would have nothing of it."""
    streams = isinstance(body, TranscriptionBody) and body.stream
    if streams and body.response_format not in ("json", "text"):
        raise RequestError(
            f"`response_format` `{body.response_format}` cannot be streamed: leave out `stream`, or"
            " ask for `json`",
            param="response_format",
        )


async def _transcribed(
    request: Request, body: TranslationBody, model: LoadedModel, served: Served
) -> Transcription:
    """Return the text of audio; if the client disconnects, the current window is the last."""
    gone = threading.Event()

    def progress(*_: float) -> None:
        if gone.is_set():
            # An exception is the only way out of a model's loop over windows; nobody sees it.
            raise _GoneError

    asked: dict[str, Any] = {"sound": body.file, "progress": progress}
    if isinstance(body, TranscriptionBody):
        asked["language"] = body.language
    else:
        asked["task"] = "translate"
    if body.temperature:
        asked["fallback"] = Fallback(temperature=body.temperature)
    try:
        work = partial(VERBS["transcribe"].run, model, asked)
        return await for_client(request, served.hearings.alone(work))
    except UsageError as error:
        more = f"; {error.hint}" if error.hint else ""
        told = f"{error.message}{more}"
        raise RequestError(told, param=error.argument or "file", code=error.code) from error
    finally:
        gone.set()


def _answer(body: TranslationBody, name: str, found: Transcription) -> Response:
    """Return a transcription in the requested format."""
    text = found.text.strip()
    if body.response_format == "text":
        return PlainTextResponse(text + "\n")
    if body.response_format in ("srt", "vtt"):
        write = srt if body.response_format == "srt" else vtt
        return PlainTextResponse(write(found.segments))
    usage = {"type": "duration", "seconds": found.seconds}
    if body.response_format == "json":
        return JSONResponse({"text": text, "usage": usage})
    is_english = not isinstance(body, TranscriptionBody)
    return JSONResponse(
        {
            "task": "translate" if is_english else "transcribe",
            "language": found.language or "",
            "duration": found.seconds,
            "text": text,
            "segments": [_segment(number, each, found.windows)
                         for number, each in enumerate(found.segments)],
            "usage": usage,
            "model": name,
        }
    )  # fmt: skip


def _segment(number: int, segment: Segment, windows: tuple[Window, ...]) -> dict[str, object]:
    """Return a segment with the figures of its window, 0 for models without any."""
    within = [each for each in windows if each.start <= segment.start < max(each.end, each.start)]
    window = within[-1] if within else None
    return {
        "id": number,
        "seek": round(100 * (window.start if window else 0)),
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.token_ids),
        "temperature": window.temperature if window else 0.0,
        "avg_logprob": window.avg_logprob if window else 0.0,
        "compression_ratio": window.compression_ratio if window else 0.0,
        "no_speech_prob": (window.no_speech_prob if window else None) or 0.0,
    }


async def _events(found: Transcription) -> AsyncGenerator[bytes]:
    """Yield the text of each segment, then the whole text, which those add up to."""
    texts = [segment.text for segment in found.segments]
    if texts:
        texts[0] = texts[0].lstrip()
        texts[-1] = texts[-1].rstrip()
    for text in texts:
        yield _event("transcript.text.delta", delta=text)
    yield _event("transcript.text.done", text=found.text.strip())


def _event(kind: str, **fields: object) -> bytes:
    return event_of({"type": kind, **fields}, kind)


def _ending(error: Exception | None) -> bytes:
    return b"" if error is None else event_of(problem_of(error).body(), "error")
