"""The routes: handlers of bodies and of paths; errors become answers."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from gptrs.api import EngineClosedError
from gptrs_runtime.sources.recommended import recommended
from gptrs_runtime.verbs import VERBS
from gptrs_serve.bodies import (
    TASKS,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    LoadAdapterBody,
    LoadBody,
    ScoreBody,
    TemplateBody,
    TokenizeBody,
    UnloadAdapterBody,
    UnloadBody,
)
from gptrs_serve.changes import CHANGES, adapted, loaded, unloaded
from gptrs_serve.chat import chat
from gptrs_serve.completions import completions
from gptrs_serve.dialects.anthropic import counted, messages
from gptrs_serve.dialects.anthropic_body import CountBody, MessagesBody
from gptrs_serve.dialects.audio import BODIES, heard
from gptrs_serve.dialects.infill import InfillBody, infill
from gptrs_serve.dialects.llama_cpp import PredictBody, applied, completion, props, slots
from gptrs_serve.dialects.ollama import (
    HOW,
    embeddings,
    generated,
    known_name,
    ollama_chat,
    one_embedding,
    refused,
    running,
    shown,
    tags,
    version,
)
from gptrs_serve.dialects.ollama_body import (
    EmbedBody,
    GenerateBody,
    OllamaChatBody,
    OneEmbeddingBody,
    ShowBody,
)
from gptrs_serve.dialects.responses import Responses
from gptrs_serve.dialects.responses_body import InputTokensBody, ResponsesBody
from gptrs_serve.dialects.tei import (
    TextsBody,
    TextsRankBody,
    info,
    texts_embedded,
    texts_ranked,
)
from gptrs_serve.events import CLOSED_BY_CLIENT, ENDING
from gptrs_serve.fields import decoded
from gptrs_serve.interventions import InterventionBody, intervened
from gptrs_serve.listing import (
    answered,
    detokenize,
    listed_models,
    one_model,
    scored,
    tokenize,
)
from gptrs_serve.metrics import Metrics
from gptrs_serve.openapi import ROUTES, openapi_page
from gptrs_serve.problems import (
    OLLAMA,
    PAGE_FILES,
    RequestError,
    problem_of,
    read_body,
    route_path,
)
from gptrs_serve.served import Served

_PAGE: Final = Path(__file__).with_name("page")
_POLICY: Final = (
    "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
Handler = Callable[[Request], Awaitable[Response]]
Answer = Callable[[Request, Any], Awaitable[Response]]


def routes(
    served: Served, metrics: Metrics, most_bytes: int, origins: Sequence[str] = ()
) -> list[Route]:
    """Return all routes: those of the table, and the page; forms may come from `origins`."""

    async def hearing(request: Request) -> Response:
        return await heard(request, served, origins, most_bytes)

    def post(path: str, body: type[Any]) -> Route:
        answer = answers[body]

        async def handler(request: Request) -> Response:
            data = await read_body(request, most_bytes)
            asked = await served.reading.prepared(lambda: decoded(data, body))
            if served.residence is not None and body not in CHANGES:
                name = getattr(asked, "model", None)
                # After the body is read and checked: a bad request must not load gigabytes.
                await served.residence.ensure(name and known_name(name, served))
            return await answer(request, asked)

        return route(path, handler, "POST")

    def route(path: str, handler: Handler, method: str = "GET") -> Route:
        # Names of models may have slashes, as those of the hub do.
        named = path.replace("/v1/models/{name}", "/v1/models/{name:path}")
        return Route(named, _answering(handler), methods=[method])

    responses = Responses(served, metrics)
    answers = _answers(served, metrics, responses)
    found = _read(served, metrics, responses)
    return [
        *(post(path, row.body) for path, row in ROUTES.items() if row.body and not row.form),
        *(route(path, handler) for path, handler in found.items()),
        *(route(path, hearing, "POST") for path in BODIES),
        route("/v1/responses/{name}", responses.delete, "DELETE"),
        route("/v1/responses/{name}/cancel", responses.cancel, "POST"),
        *(route(f"{OLLAMA}{name}", _refusing(name), "POST") for name in HOW if name != "delete"),
        route(f"{OLLAMA}delete", _refusing("delete"), "DELETE"),
    ]


def _answers(served: Served, metrics: Metrics, responses: Responses) -> Mapping[type, Answer]:
    """Return the handler of each body."""
    tasks = {
        body: partial(answered, served=served, verb=VERBS[name]) for name, body in TASKS.items()
    }
    return {
        ChatBody: lambda r, b: chat(r, b, served, metrics),
        CompletionBody: lambda r, b: completions(r, b, served, metrics),
        ResponsesBody: responses.create,
        InputTokensBody: responses.count,
        MessagesBody: lambda r, b: messages(r, b, served, metrics),
        CountBody: lambda r, b: counted(r, b, served),
        OllamaChatBody: lambda r, b: ollama_chat(r, b, served, metrics),
        GenerateBody: lambda r, b: generated(r, b, served, metrics),
        EmbedBody: lambda r, b: embeddings(r, b, served),
        TextsBody: lambda r, b: texts_embedded(r, b, served),
        TextsRankBody: lambda r, b: texts_ranked(r, b, served),
        OneEmbeddingBody: lambda r, b: one_embedding(r, b, served),
        ShowBody: lambda _, b: shown(b, served),
        InfillBody: lambda r, b: infill(r, b, served, metrics),
        PredictBody: lambda r, b: completion(r, b, served, metrics),
        TemplateBody: lambda _, b: applied(b, served),
        ScoreBody: lambda r, b: scored(r, b, served),
        TokenizeBody: lambda _, b: tokenize(b, served),
        DetokenizeBody: lambda _, b: detokenize(b, served),
        InterventionBody: lambda r, b: intervened(r, b, served),
        LoadBody: lambda r, b: loaded(r, b, served),
        UnloadBody: lambda r, b: unloaded(r, b.model, served),
        LoadAdapterBody: lambda r, b: adapted(r, b, served),
        UnloadAdapterBody: lambda r, b: unloaded(r, b.lora_name, served, is_adapter=True),
        **tasks,
    }


def _read(served: Served, metrics: Metrics, responses: Responses) -> dict[str, Handler]:
    """Return the handlers of paths without a body."""

    async def text(_: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    async def described(_: Request) -> Response:
        return JSONResponse(openapi_page())

    async def models(_: Request) -> Response:
        return listed_models(served)

    async def model(request: Request) -> Response:
        return one_model(str(request.path_params["name"]), served)

    async def model_props(request: Request) -> Response:
        return await props(request, served)

    async def running_slots(request: Request) -> Response:
        return await slots(request, served)

    async def model_info(request: Request) -> Response:
        return await info(request, served)

    async def tagged(_: Request) -> Response:
        return tags(served)

    async def in_memory(_: Request) -> Response:
        return running(served)

    return {
        "/v1/models": models,
        "/v1/models/{name}": model,
        "/v1/responses/{name}": responses.retrieve,
        "/v1/responses/{name}/input_items": responses.input_items,
        "/props": model_props,
        "/info": model_info,
        "/slots": running_slots,
        "/api/tags": tagged,
        "/api/ps": in_memory,
        "/api/version": version,
        "/openapi.json": described,
        "/health": _health(served),
        "/ready": _ready(served),
        "/metrics": text,
        "/page.json": _suggested,
        **{path: _file(name) for path, name in PAGE_FILES.items()},
    }


def _refusing(what: str) -> Handler:
    async def handler(_: Request) -> Response:
        raise refused(what)

    return handler


def _health(served: Served) -> Handler:
    async def handler(_: Request) -> Response:
        lost = served.lost()
        if lost is not None:
            raise RequestError(lost, status=503, code="lost")
        return JSONResponse({"status": "ok"})

    return handler


def _ready(served: Served) -> Handler:
    async def handler(_: Request) -> Response:
        lost = served.lost()
        if lost is None and served.engine is not None and not served.engine.accepts:
            lost = "the engine accepts no more requests"
        if lost is not None:
            raise RequestError(lost, status=503, code="not_ready")
        return JSONResponse({"status": "ready"})

    return handler


async def _suggested(_: Request) -> Response:
    """Return the models that the page suggests if no served model can chat."""
    found = [
        {"short": each.short, "about": each.about, "bytes": each.nbytes}
        for each in recommended()
        if each.task == "chat"
    ]
    return JSONResponse({"recommended": found})


def _file(name: str) -> Handler:
    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        # The modules of one version fit together only: a browser asks whether they have changed.
        "Cache-Control": "no-cache",
    }
    media_type = "text/javascript" if name.endswith((".js", ".mjs")) else None

    async def handler(_: Request) -> Response:
        return FileResponse(_PAGE / name, headers=headers, media_type=media_type)

    return handler


def _answering(handler: Handler) -> Handler:
    """Return a handler that turns errors into answers."""

    async def answering(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect as error:
            _release(error)
            return Response(status_code=CLOSED_BY_CLIENT)
        except asyncio.CancelledError:  # the time of the last answers is over
            return problem_of(EngineClosedError(ENDING)).response(route_path(request.scope))
        except Exception as error:
            response = problem_of(error).response(route_path(request.scope))
            _release(error)
            return response

    return answering


def _release(error: BaseException | None) -> None:
    """Drop the frames that an error passed through, and what caused it."""
    # Tasks and futures among their variables refer to the error: a cycle, which kept bodies of
    # megabytes until the garbage collector came, hundreds of requests later.
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
