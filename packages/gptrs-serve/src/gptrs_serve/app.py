"""The application: its routes, and what each request passes on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from gptrs.api import EngineClosedError
from gptrs.quick_dataclass import dataclass
from gptrs_serve.bodies import (
    ChatBody,
    ClassifyBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    RerankBody,
    TagBody,
    TokenizeBody,
    decoded,
)
from gptrs_serve.chat import chat
from gptrs_serve.completions import completions
from gptrs_serve.events import CLOSED_BY_CLIENT, ENDING
from gptrs_serve.listing import (
    classes,
    detokenize,
    embeddings,
    listed_models,
    one_model,
    rerank,
    tags,
    tokenize,
)
from gptrs_serve.openapi import openapi_page
from gptrs_serve.problems import Guard, RequestError, problem_of, read_body
from gptrs_serve.served import Metrics, Served

_PAGE: Final = Path(__file__).with_name("page")
_POLICY: Final = (
    "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
Body = TypeVar("Body")
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Access:
    """Who may ask: keys, hosts and origins, none for all; and how long bodies may be."""

    keys: Sequence[str] = ()
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    most_body_bytes: int = 4_000_000


def new_app(served: Served, access: Access) -> Starlette:
    """Return the application; its shutdown ends the engine."""
    metrics = Metrics(served.engine, served.calls)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        served.calls.close()
        if served.engine is not None:
            served.engine.close()

    middleware = [Middleware(Guard, keys=access.keys, hosts=access.hosts)]
    if access.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(access.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
        middleware.insert(0, cors)
    return Starlette(
        routes=_routes(served, metrics, access.most_body_bytes),
        middleware=middleware,
        exception_handlers={HTTPException: _refused},
        lifespan=lifespan,
    )


def _routes(served: Served, metrics: Metrics, most_bytes: int) -> list[Route]:
    def reading(
        kind: type[Body], answer: Callable[[Request, Body], Awaitable[Response]]
    ) -> Handler:
        async def handler(request: Request) -> Response:
            return await answer(request, decoded(await read_body(request, most_bytes), kind))

        return handler

    def post(path: str, handler: Handler) -> Route:
        return Route(path, _counted(handler, path, metrics), methods=["POST"])

    def get(path: str, handler: Handler) -> Route:
        return Route(path, _counted(handler, path, metrics), methods=["GET"])

    async def text(_: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    async def described(_: Request) -> Response:
        return JSONResponse(openapi_page())

    async def models(_: Request) -> Response:
        return listed_models(served)

    async def model(request: Request) -> Response:
        return one_model(str(request.path_params["name"]), served)

    return [
        post("/v1/chat/completions", reading(ChatBody, lambda r, b: chat(r, b, served, metrics))),
        post("/v1/completions",
             reading(CompletionBody, lambda r, b: completions(r, b, served, metrics))),
        post("/v1/embeddings", reading(EmbeddingBody, lambda r, b: embeddings(r, b, served))),
        post("/v1/rerank", reading(RerankBody, lambda r, b: rerank(r, b, served))),
        post("/rerank", reading(RerankBody, lambda r, b: rerank(r, b, served))),
        post("/v1/classify", reading(ClassifyBody, lambda r, b: classes(r, b, served))),
        post("/classify", reading(ClassifyBody, lambda r, b: classes(r, b, served))),
        post("/v1/tag", reading(TagBody, lambda r, b: tags(r, b, served))),
        post("/tokenize", reading(TokenizeBody, lambda _, b: tokenize(b, served))),
        post("/detokenize", reading(DetokenizeBody, lambda _, b: detokenize(b, served))),
        get("/v1/models", models),
        get("/v1/models/{name:path}", model),
        get("/openapi.json", described),
        get("/health", _health(served)),
        get("/metrics", text),
        get("/", _file("page.html")),
        get("/page.js", _file("page.js")),
        get("/page.css", _file("page.css")),
    ]  # fmt: skip


def _health(served: Served) -> Handler:
    async def handler(_: Request) -> Response:
        lost = served.lost()
        if lost is not None:
            raise RequestError(lost, status=503, code="lost")
        return JSONResponse({"status": "ok"})

    return handler


def _file(name: str) -> Handler:
    async def handler(_: Request) -> Response:
        return FileResponse(
            _PAGE / name,
            headers={"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"},
        )

    return handler


def _counted(handler: Handler, path: str, metrics: Metrics) -> Handler:
    """Return a handler that turns errors into answers, and counts both."""

    async def counted(request: Request) -> Response:
        try:
            response = await handler(request)
        except ClientDisconnect:
            response = Response(status_code=CLOSED_BY_CLIENT)
        except asyncio.CancelledError:  # the time of the last answers is over
            response = problem_of(EngineClosedError(ENDING)).response()
        except Exception as error:
            response = problem_of(error).response()
        metrics.answered(path, response.status_code)
        return response

    return counted


async def _refused(request: Request, error: Exception) -> Response:
    """Answer for paths and methods that there are not."""
    assert isinstance(error, HTTPException)
    told = f"{request.method} {request.url.path[:200]}: {error.detail}"
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    response = RequestError(told, status=error.status_code, code=code).response()
    response.headers.update(error.headers or {})  # which methods there are
    return response
