"""`/infill` of llama.cpp's server: the text between two texts, from models that fill gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from gptrs_runtime.chat.answer_reader import AnswerEvent, AnswerForm, TextDelta
from gptrs_serve.bodies import CompletionBody, MinP, Model, Temperature, TopP
from gptrs_serve.chat import Chat
from gptrs_serve.completions import AskedPrompt, asked_options, asked_prompt
from gptrs_serve.events import event_of, for_client
from gptrs_serve.fields import NOTHING, RequestFields, converted
from gptrs_serve.metrics import Metrics
from gptrs_serve.problems import RequestError, problem_of
from gptrs_serve.requests import client_of, prompts_of
from gptrs_serve.served import Served
from gptrs_serve.writing import AnswerWriter

_SAME: Final = ("model", "stream", "stop", "temperature", "top_k", "top_p", "min_p", "seed")
_ORDER: Final = ("penalties", "top_k", "typ_p", "top_p", "min_p", "temperature")
_OFF: Final = frozenset({"dry", "top_n_sigma", "xtc"})
"""Samplers that are always off, wherever they stand."""
_LETTERS: Final = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
}
_Ignored = Annotated[Any, Meta(description="A performance hint.", extra=NOTHING)]


class Predicting(RequestFields, kw_only=True):
    """The fields that `/infill` and `/completion` share."""

    model: Model | None = None
    n_predict: (
        Annotated[
            int, Meta(ge=-1, description="Most tokens; -1: the context; 0: only read the text.")
        ]
        | None
    ) = None
    stream: Annotated[bool, Meta(description="Stream the answer.")] = False
    stop: Annotated[list[str], Meta(description="End the answer before these texts.")] | None = None
    temperature: Temperature | None = None
    top_k: (
        Annotated[int, Meta(ge=-1, description="Sample among the K likeliest tokens.")] | None
    ) = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    seed: Annotated[int, Meta(description="Make sampling repeatable; -1: any.")] | None = None
    samplers: (
        Annotated[
            list[str] | str,
            Meta(
                description="llama.cpp's own order, like none: samplers run in that of"
                " transformers, whose temperature comes first.",
                extra=NOTHING,
            ),
        ]
        | None
    ) = None
    cache_prompt: _Ignored = None
    id_slot: _Ignored = None
    t_max_predict_ms: _Ignored = None
    t_max_prompt_ms: _Ignored = None


class InfillBody(Predicting, kw_only=True):
    """`/infill`."""

    refused: ClassVar[Mapping[str, str]] = {
        "input_extra": "put other files before the prefix",
        "grammar": "use `/v1/completions` with `suffix`",
    }
    input_prefix: Annotated[str, Meta(description="The text before the gap.")]
    input_suffix: Annotated[str, Meta(min_length=1, description="The text after the gap.")]
    prompt: Annotated[str, Meta(description="More text before the gap, after `input_prefix`.")] = ""


async def infill(request: Request, body: InfillBody, served: Served, metrics: Metrics) -> Response:
    """Write the text of a gap; RequestError for a model that cannot fill gaps."""
    given = {"prompt": body.input_prefix + body.prompt, "suffix": body.input_suffix}
    return await predicted(request, body, given, served, metrics)


async def predicted(
    request: Request,
    body: Predicting,
    given: Mapping[str, object],
    served: Served,
    metrics: Metrics,
    writer: Callable[[Chat], GapWriter] | None = None,
) -> Response:
    """Answer with the text of a completion with the fields of `body` and `given`."""
    _require_order(body.samplers)
    name, model = served.named(body.model, "causal_lm")
    is_warming = body.n_predict == 0  # editors read the text into the cache before they ask
    most = 1 if is_warming else None if body.n_predict == -1 else body.n_predict
    fields = {**{field: getattr(body, field) for field in _SAME}, **given}
    fields["max_tokens"] = most or model.causal_lm().context_length

    async def ask() -> AskedPrompt:
        asked = await served.reading.prepared(lambda: converted(fields, CompletionBody))
        options = await asked_options(asked, model, served)
        (prompt,) = prompts_of(asked)
        return await asked_prompt(asked, options, name, model, prompt, served, client_of(request))

    prompt = await for_client(request, ask())
    assert prompt.stream is not None  # some token is asked for
    chat = Chat(name, model, prompt.stream, AnswerForm(), False, served.texts_of(model), metrics)
    kind = WarmingWriter if is_warming else writer or GapWriter
    return await kind(chat).answer(request, stream=body.stream)


def _require_order(samplers: Sequence[str] | None) -> None:
    """Raise RequestError for samplers, by names or letters, in another order than the default."""
    if samplers is None:
        return
    named = [_LETTERS.get(each, each) for each in samplers]
    if [each for each in named if each not in _OFF] != [*_ORDER]:
        raise RequestError(
            "`samplers` other than llama.cpp's default order are not supported: samplers run in"
            " the order of transformers; the value of a sampler turns it off",
            param="samplers",
            code="unsupported_parameter",
        )


class GapWriter(AnswerWriter):
    """Writes pieces of `content`, and a last object with the reason for the end."""

    _text = ""

    @override
    def told(self, event: AnswerEvent) -> Iterator[bytes]:
        assert isinstance(event, TextDelta)  # it is read as text alone
        self._text += event.text
        yield event_of({"content": event.text, "stop": False})

    @override
    def end(self) -> bytes:
        return event_of({**self.whole(), "content": ""})

    @override
    def failed(self, error: Exception) -> bytes:
        return event_of(problem_of(error).body())

    @override
    def whole(self) -> dict[str, object]:
        stream = self.chat.stream
        kinds = {"eos": "eos", "stop": "word", "length": "limit"}
        return {
            "content": self._text,
            "model": self.chat.name,
            "stop": True,
            "stop_type": kinds.get(self.reason or "", "none"),
            "stopping_word": stream.texts[0].stop_string or "",
            "tokens_predicted": len(stream.texts[0].tokens),
            "tokens_evaluated": stream.prompt_tokens,
            "tokens_cached": stream.cached_tokens,
            "truncated": False,
        }


class WarmingWriter(GapWriter):
    """Answers a request for no token: its text has been read, and waits in the cache."""

    @override
    def told(self, event: AnswerEvent) -> Iterator[bytes]:
        return iter(())

    @override
    def whole(self) -> dict[str, object]:
        return {**super().whole(), "stop_type": "limit", "tokens_predicted": 0}
