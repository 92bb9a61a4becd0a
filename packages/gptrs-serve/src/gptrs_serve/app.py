"""The application: its routes, and what each request passes on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from gptrs.api import EngineClosedError
from gptrs.quick_dataclass import dataclass
from gptrs_runtime.verbs import VERBS
from gptrs_serve.bodies import (
    TASKS,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    ScoreBody,
    TokenizeBody,
)
from gptrs_serve.chat import chat
from gptrs_serve.completions import completions
from gptrs_serve.events import CLOSED_BY_CLIENT, ENDING
from gptrs_serve.fields import decoded
from gptrs_serve.keys import KeyRing
from gptrs_serve.listing import (
    answered,
    detokenize,
    listed_models,
    one_model,
    scored,
    tokenize,
)
from gptrs_serve.metrics import Metrics
from gptrs_serve.openapi import openapi_page
from gptrs_serve.problems import Guard, RequestError, problem_of, read_body, route_path
from gptrs_serve.request_log import RequestLog
from gptrs_serve.served import Served

_PAGE: Final = Path(__file__).with_name("page")
_POLICY: Final = (
    "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
Body = TypeVar("Body")
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Access:
    """Who may ask: keys, hosts and origins, none for all; and how long bodies may be."""

    keys: KeyRing | Sequence[str] = ()
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    most_body_bytes: int = 4_000_000
    logs: bool = False
    """Whether each request is logged."""


def new_app(served: Served, access: Access) -> Starlette:
    """Return the application; its shutdown ends the engine."""
    metrics = Metrics(served.engine, served.calls)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        served.close()

    routes = _routes(served, metrics, access.most_body_bytes)
    middleware = [Middleware(Guard, keys=KeyRing.of(access.keys), hosts=access.hosts)]
    if access.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(access.origins),
            allow_methods=["GET", "POST"],
            # Clients of OpenAI send a dozen headers of their own: those of allowed origins may.
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
        middleware.insert(0, cors)
    log = Middleware(
        RequestLog, answered=metrics.answered, path_of=_path_of(routes), logs=access.logs
    )
    return Starlette(
        routes=routes,
        middleware=[log, *middleware],
        exception_handlers={HTTPException: _refused},
        lifespan=lifespan,
    )


def _path_of(routes: Sequence[Route]) -> Callable[[Scope], str | None]:
    """Return what tells the path of the route of a request, None where there is none."""
    plain = {route.path for route in routes if "{" not in route.path}
    patterns = [route for route in routes if "{" in route.path]

    def path_of(scope: Scope) -> str | None:
        path = route_path(scope)
        if path in plain:
            return path
        return next((route.path for route in patterns if route.path_regex.match(path)), None)

    return path_of


def _routes(served: Served, metrics: Metrics, most_bytes: int) -> list[Route]:
    def reading(
        kind: type[Body], answer: Callable[[Request, Body], Awaitable[Response]]
    ) -> Handler:
        async def handler(request: Request) -> Response:
            return await answer(request, decoded(await read_body(request, most_bytes), kind))

        return handler

    def post(path: str, handler: Handler) -> Route:
        return Route(path, _answering(handler), methods=["POST"])

    def get(path: str, handler: Handler) -> Route:
        return Route(path, _answering(handler), methods=["GET"])

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
        *(
            post(path, reading(body, partial(answered, served=served, verb=VERBS[name])))
            for name, body in TASKS.items()
            for path in VERBS[name].routes
        ),
        *(
            post(path, reading(ScoreBody, lambda r, b: scored(r, b, served)))
            for path in ("/v1/score", "/score")
        ),
        post("/tokenize", reading(TokenizeBody, lambda _, b: tokenize(b, served))),
        post("/detokenize", reading(DetokenizeBody, lambda _, b: detokenize(b, served))),
        get("/v1/models", models),
        get("/v1/models/{name:path}", model),
        get("/openapi.json", described),
        get("/health", _health(served)),
        get("/ready", _ready(served)),
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


def _ready(served: Served) -> Handler:
    async def handler(_: Request) -> Response:
        lost = served.lost()
        if lost is None and served.engine is not None and not served.engine.accepts:
            lost = "the engine takes no more requests"
        if lost is not None:
            raise RequestError(lost, status=503, code="not_ready")
        return JSONResponse({"status": "ready"})

    return handler


def _file(name: str) -> Handler:
    async def handler(_: Request) -> Response:
        return FileResponse(
            _PAGE / name,
            headers={"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"},
        )

    return handler


def _answering(handler: Handler) -> Handler:
    """Return a handler that turns errors into answers."""

    async def answering(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=CLOSED_BY_CLIENT)
        except asyncio.CancelledError:  # the time of the last answers is over
            return problem_of(EngineClosedError(ENDING)).response()
        except Exception as error:
            return problem_of(error).response()

    return answering


async def _refused(request: Request, error: Exception) -> Response:
    """Answer for paths and methods that there are not."""
    assert isinstance(error, HTTPException)
    told = f"{request.method} {request.url.path[:200]}: {error.detail}"
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    response = RequestError(told, status=error.status_code, code=code).response()
    response.headers.update(error.headers or {})  # which methods there are
    return response
