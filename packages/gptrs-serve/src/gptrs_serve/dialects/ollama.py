"""Ollama's API: chats, texts and embeddings as lines of JSON, and facts about models."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import override

from gptrs import __version__
from gptrs.errors import ModelError
from gptrs_runtime.chat.answer_reader import (
    AnswerEvent,
    AnswerForm,
    CallArguments,
    CallStart,
    ThoughtsDelta,
)
from gptrs_runtime.generation.scheduled_text import Client
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_serve.changes import may_change, unload_later, unloaded
from gptrs_serve.chat import Chat, asked_chat
from gptrs_serve.completions import asked_options, asked_prompt
from gptrs_serve.dialects.anthropic import arguments_of
from gptrs_serve.dialects.ollama_body import (
    EmbedBody,
    GenerateBody,
    OllamaChatBody,
    OneEmbeddingBody,
    ShowBody,
    is_dropped,
)
from gptrs_serve.events import for_client, line_of
from gptrs_serve.listing import context_length, embedded, lists_of, written_vectors
from gptrs_serve.metrics import Metrics
from gptrs_serve.problems import OLLAMA, RequestError, problem_of
from gptrs_serve.requests import client_of
from gptrs_serve.served import EMBEDDING, WRITING, Served
from gptrs_serve.writing import AnswerWriter

_NO_LIMIT: Final = 1 << 30
"""Tokens of an answer without `num_predict`: as many as fit."""
_LATEST: Final = ":latest"
VERSION: Final = "0.12.0"
"""The version of Ollama whose API this is; clients derive from it what the server can do."""
HOW: Final = {
    "pull": "models are served that `gptrs serve NAME=MODEL` names: a path, or ORG/NAME of the"
    " Hugging Face hub, which `gptrs serve` downloads",
    "push": "models are files of this machine: `gptrs convert` writes them",
    "create": "`gptrs serve NAME=MODEL` names models, `--adapter` adapts them",
    "copy": "`gptrs serve NAME=MODEL OTHER=MODEL` gives a model two names",
    "delete": "the command line determines the served models",
}
"""Hints for requests that would change the models of a server."""
_CAPABILITIES: Final = {"text_embedder": "embedding", "image_lm": "vision"}


def known_name(name: str, served: Served) -> str:
    """Return the name of a model without the tag that Ollama's clients add."""
    bare = name.removesuffix(_LATEST)
    unloaded = () if served.residence is None else served.residence.unloaded
    known = {*served.models, *unloaded}
    # The whole name first: a model may be called `x:latest` here.
    return bare if name not in known and bare in known else name


async def ollama_chat(
    request: Request, body: OllamaChatBody, served: Served, metrics: Metrics
) -> Response:
    """Answer a conversation; without one, clients mean to load the model, which is loaded."""
    name = known_name(body.model, served)
    served.named(name, "causal_lm")
    drops = is_dropped(body.keep_alive) and may_change(request, served)
    if not body.messages:
        if drops:
            await unloaded(request, name, served)
        message = {"role": "assistant", "content": ""}
        return JSONResponse({**_stamp(body.model), "message": message, **_ended(drops)})
    asked = asked_chat(partial(body.asked, name), served, metrics, client_of(request))
    chat = await for_client(request, asked)
    if drops:
        unload_later(name, served)
    return await LineWriter(chat, body.model, in_message=True).answer(request, stream=body.stream)


async def generated(
    request: Request, body: GenerateBody, served: Served, metrics: Metrics
) -> Response:
    """Answer a text as a message of the template, or continue it if there is no template."""
    name = known_name(body.model, served)
    _, model = served.named(name, served.capability(name, WRITING))
    drops = is_dropped(body.keep_alive) and may_change(request, served)
    if not body.prompt and not body.suffix:
        if drops:
            await unloaded(request, name, served)
        return JSONResponse({**_stamp(body.model), "response": "", **_ended(drops)})
    if body.raw or body.suffix or not _has_template(model):
        if body.images or body.system:
            raise RequestError(
                "images and a system message need a chat template; leave them out, and `raw` or"
                " `suffix`"
            )
        asked = _continued(body, name, model, served, metrics, client_of(request))
    else:
        asked = asked_chat(partial(body.asked, name), served, metrics, client_of(request))
    chat = await for_client(request, asked)
    if drops:
        unload_later(name, served)
    return await LineWriter(chat, body.model, in_message=False).answer(request, stream=body.stream)


async def _continued(
    body: GenerateBody,
    name: str,
    model: LoadedModel,
    served: Served,
    metrics: Metrics,
    client: Client,
) -> Chat:
    """Ask for the continuation of a text, without a template."""
    asked = await served.reading.prepared(partial(body.completion, name))
    # 16 is the default of OpenAI's completions, whose body this is; Ollama has no limit.
    if asked.max_tokens == 16 and (body.options is None or body.options.num_predict is None):
        asked.max_tokens = served.most_output or _NO_LIMIT
    options = await asked_options(asked, model, served)
    prompt = await asked_prompt(asked, options, name, model, body.prompt, served, client)
    assert prompt.stream is not None  # some token is asked for
    return Chat(name, model, prompt.stream, AnswerForm(), False, served.texts_of(model), metrics)


def _has_template(model: LoadedModel) -> bool:
    try:
        model.chat_template()
    except ModelError:
        return False
    return True


class LineWriter(AnswerWriter):
    """Writes lines of JSON: pieces of a message or a response, and a last line with the counts."""

    media_type = "application/x-ndjson"

    def __init__(self, chat: Chat, called: str, *, in_message: bool) -> None:
        super().__init__(chat)
        self._called = called
        self._in_message = in_message
        self._text = ""
        self._thinking = ""
        self._calls: list[dict[str, Any]] = []
        self._name: str | None = None
        """The tool of the current call, and its arguments so far."""
        self._arguments = ""

    @override
    def told(self, event: AnswerEvent) -> Iterator[bytes]:
        if isinstance(event, CallArguments):
            self._arguments += event.text
            return
        yield from self._end_call()
        if isinstance(event, CallStart):
            self._name = event.name
        elif isinstance(event, ThoughtsDelta):
            self._thinking += event.text
            yield self._line(thinking=event.text)
        else:
            self._text += event.text
            yield self._line(event.text)

    def _end_call(self) -> Iterator[bytes]:
        """Write the current call; a truncated one has its complete arguments only."""
        if self._name is None:
            return
        function = {"name": self._name, "arguments": arguments_of(self._arguments)}
        call: dict[str, Any] = {"function": function}
        self._calls.append(call)
        self._name, self._arguments = None, ""
        yield self._line(calls=[call])

    def _said(self, text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, object]:
        said: dict[str, object] = {"thinking": thinking} if thinking else {}
        if not self._in_message:
            return {"response": text, **said}
        message: dict[str, object] = {"role": "assistant", "content": text, **said}
        if calls:
            message["tool_calls"] = calls
        return {"message": message}

    def _line(
        self, text: str = "", thinking: str = "", calls: list[dict[str, Any]] | None = None
    ) -> bytes:
        said = self._said(text, thinking, calls or [])
        return line_of({**_stamp(self._called), **said, "done": False, **self._scores()})

    def _scores(self) -> dict[str, object]:
        """Return the log-probabilities of the tokens since the last line, if requested."""
        scores, self.scores = self.scores, []
        return self.chat.texts.chat(scores, "logprobs") if scores else {}

    @override
    def end(self) -> bytes:
        last = b"".join(self._end_call())
        said = {**self._said("", "", []), **self._counts(), **self._scores()}
        return last + line_of({**_stamp(self._called), **said})

    @override
    def failed(self, error: Exception) -> bytes:
        return line_of(problem_of(error).body(OLLAMA))

    @override
    def whole(self) -> dict[str, object]:
        said = self._said(self._text, self._thinking, self._calls)
        self.scores = [*(self.chat.stream.generations[0].logprobs or ())]
        return {**_stamp(self._called), **said, **self._counts(), **self._scores()}

    def _counts(self) -> dict[str, object]:
        """Return the reason for the end, the counts of tokens, and nanoseconds."""
        stream = self.chat.stream
        total = time.perf_counter() - stream.submitted
        count = len(stream.texts[0].tokens)
        timings = stream.generations[0].timings
        first = total if timings.first_token_s is None else timings.first_token_s
        speed = timings.decode_tokens_per_s
        decode = (count - 1) / speed if speed else 0.0
        return {
            "done": True,
            "done_reason": "length" if self.reason == "length" else "stop",
            "total_duration": _nanoseconds(total),
            "load_duration": 0,
            "prompt_eval_count": stream.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(first),
            "eval_count": count,
            # Clients divide by it without asking whether it is 0.
            "eval_duration": _nanoseconds(max(decode, 1e-9)),
        }


def _nanoseconds(seconds: float) -> int:
    return math.ceil(seconds * 1e9)


def _ended(drops: bool) -> dict[str, object]:
    """Return the last line of an answer without text."""
    return {"done": True, "done_reason": "unload" if drops else "load"}


def _stamp(name: str) -> dict[str, object]:
    return {"model": name, "created_at": _time(time.time())}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


# Embeddings, and what there is.


async def embeddings(request: Request, body: EmbedBody, served: Served) -> Response:
    """Return a vector for each text; none for an empty input, with which clients load a model."""
    begun = time.perf_counter()
    name = known_name(body.model, served)
    if not body.input:
        served.named(name, served.capability(name, EMBEDDING))
        return JSONResponse({"model": body.model, "embeddings": []})
    asked = body.asked(name)
    _, vectors, read = await embedded(request, asked, served)

    def told() -> dict[str, object]:
        return {
            "model": body.model,
            "embeddings": lists_of(asked, vectors),
            "total_duration": _nanoseconds(time.perf_counter() - begun),
            "load_duration": 0,
            "prompt_eval_count": read,
        }

    return await written_vectors(vectors, told, served)


async def one_embedding(request: Request, body: OneEmbeddingBody, served: Served) -> Response:
    """Return the vector of a text; an empty one for an empty text."""
    name = known_name(body.model, served)
    if not body.prompt:
        served.named(name, served.capability(name, EMBEDDING))
        return JSONResponse({"embedding": []})
    _, vectors, _ = await embedded(request, body.asked(name), served)
    return JSONResponse({"embedding": vectors[0].tolist()})


async def version(_: Request) -> Response:
    """Return the version of Ollama whose API this is, and that of gptrs."""
    return JSONResponse({"version": VERSION, "gptrs": __version__})


def tags(served: Served) -> Response:
    """Return the served models, including those that a request would load."""
    found = [_listed(name, served) for name in served.models]
    names = [] if served.residence is None else served.residence.unloaded
    # Of what is not read yet there are no facts, but clients show these fields without asking.
    unread: dict[str, object] = {
        "modified_at": _time(served.created),
        "size": 0,
        "details": {"parent_model": "", "format": "gptrs", "family": "", "families": [],
                    "parameter_size": "", "quantization_level": ""},
    }  # fmt: skip
    unloaded = [{"name": name, "model": name, "digest": _digest(name), **unread} for name in names]
    return JSONResponse({"models": [*found, *unloaded]})


def running(served: Served) -> Response:
    """Return the loaded models, and the number of requests of each."""
    # Models do not expire here, but clients parse a time.
    never = _time(served.created + 100 * 365 * 86_400)
    engine = served.engine
    found = [
        {**_listed(name, served), "expires_at": never, "size_vram": 0,
         "context_length": context_length(model),
         "requests": 0 if engine is None else engine.open_requests(name)}
        for name, model in served.models.items()
    ]  # fmt: skip
    return JSONResponse({"models": found})


async def shown(body: ShowBody, served: Served) -> Response:
    """Describe a model; RequestError if there is none of that name."""
    name = known_name(body.model or body.name or "", served)
    model = served.models.get(name)
    if model is None:
        raise RequestError(f"model {name[:80]!r} not found", status=404, param="model")
    try:
        template = model.chat_template().source
    except ModelError:
        template = ""
    length = context_length(model)
    info: dict[str, object] = {
        "general.architecture": model.kind,
        "general.parameter_count": _parameters(model),
    }
    if length is not None:
        info[f"{model.kind}.context_length"] = length
    return JSONResponse(
        {
            "modelfile": f"FROM {name}\n",
            "parameters": "",
            "template": template,
            "details": _details(model),
            "model_info": info,
            "capabilities": _capabilities(model, template),
            "modified_at": _time(served.created),
        }
    )


def refused(what: str) -> RequestError:
    """Return a hint on how to change the models of a server."""
    return RequestError(f"this server does not {what} models: {HOW[what]}", code="unsupported")


def _listed(name: str, served: Served) -> dict[str, object]:
    model = served.models[name]
    called = name if ":" in name else name + _LATEST
    size = sum(
        math.prod(tensor.shape) * tensor.dtype.numpy.itemsize
        for tensor in model.parameters().values()
    )
    return {
        "name": called,
        "model": called,
        "modified_at": _time(served.created),
        "size": size,
        "digest": _digest(called),
        "details": _details(model),
    }


def _digest(name: str) -> str:
    """Return a digest of a name: one of the weights would take long."""
    # Ollama's command shows the first 12 characters, and crashes if there are none.
    return hashlib.sha256(name.encode()).hexdigest()


def _shortened(count: int) -> str:
    """Return a number in three digits, as Ollama does: 55.8K, 135M, 1.24B."""
    for unit, power in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if count >= 0.9995 * power:  # rounds to 1
            return f"{count / power:.3g}{unit}"
    return str(count)


def _details(model: LoadedModel) -> dict[str, object]:
    return {
        "parent_model": "",
        "format": "gptrs",
        "family": model.kind,
        "families": [model.kind],
        "parameter_size": _shortened(_parameters(model)),
        "quantization_level": str(model.weight_type or "none"),
    }


def _parameters(model: LoadedModel) -> int:
    return sum(math.prod(tensor.shape) for tensor in model.parameters().values())


def _capabilities(model: LoadedModel, template: str) -> list[str]:
    """Return Ollama's names for the capabilities of a model."""
    found = [] if model.capabilities.isdisjoint(WRITING) else ["completion"]
    found += [word for name, word in _CAPABILITIES.items() if name in model.capabilities]
    if "tools" in template:
        found.append("tools")
    if "think" in template:
        found.append("thinking")
    return found
