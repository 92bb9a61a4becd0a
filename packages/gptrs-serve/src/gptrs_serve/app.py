"""The application: its routes, and the layers that each request passes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gptrs_serve.keys import KeyRing
from gptrs_serve.metrics import Metrics
from gptrs_serve.problems import Guard, RequestError, route_path
from gptrs_serve.request_log import RequestLog
from gptrs_serve.routes import routes
from gptrs_serve.served import Served


class Access(Struct, frozen=True):
    """Who may send requests: keys, hosts and origins, empty for all; and the longest body."""

    keys: KeyRing | Sequence[str] = ()
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    most_body_bytes: int = 4_000_000
    logs: bool = False
    """Whether each request is logged."""


class PlainPaths:
    """Has a path that ends in a slash answered like the one without.

    Starlette would redirect, and some clients follow without the body or the key.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and scope["path"].endswith("/"):
            path = scope["path"].rstrip("/")
            # The page keeps its slash: the addresses of its files are relative to it.
            if path != scope.get("root_path", ""):
                scope["path"] = path
        await self._app(scope, receive, send)


def new_app(served: Served, access: Access) -> Starlette:
    """Return the application; its shutdown ends the engine."""
    metrics = Metrics(served.engine, served.ledger)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        served.close()

    found = routes(served, metrics, access.most_body_bytes, access.origins)
    # The order is the order in which a request meets them: the log counts refused requests too, and
    # CORS answers preflights, which carry no key, before the guard asks for one.
    middleware = [Middleware(Guard, keys=KeyRing.of(access.keys), hosts=access.hosts)]
    if access.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(access.origins),
            allow_methods=["GET", "POST", "DELETE"],
            # Clients of OpenAI send a dozen headers of their own: those of allowed origins may.
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
        middleware.insert(0, cors)
    log = Middleware(
        RequestLog, answered=metrics.answered, path_of=_path_of(found), logs=access.logs
    )
    return Starlette(
        routes=found,
        middleware=[Middleware(PlainPaths), log, *middleware],
        exception_handlers={HTTPException: _refused},
        lifespan=lifespan,
    )


def _path_of(routes: Sequence[Route]) -> Callable[[Scope], str | None]:
    """Return a function from a request to the path of its route, None without one."""
    plain = {route.path for route in routes if "{" not in route.path}
    patterns = [route for route in routes if "{" in route.path]

    def path_of(scope: Scope) -> str | None:
        path = route_path(scope)
        if path in plain:
            return path
        # Counted by the route's pattern: names of models and responses in the label would grow the
        # metrics without bound.
        return next((route.path for route in patterns if route.path_regex.match(path)), None)

    return path_of


async def _refused(request: Request, error: Exception) -> Response:
    """Answer a request for an unknown path or method."""
    assert isinstance(error, HTTPException)
    told = f"{request.method} {request.url.path[:200]}: {error.detail}"
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    path = route_path(request.scope)
    response = RequestError(told, status=error.status_code, code=code).response(path)
    response.headers.update(error.headers or {})  # which methods there are
    return response
