"""The application: its routes, and what each request passes on its way."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from typing_extensions import override

from gptrs.api import BackendError, EngineClosedError, UsageError
from gptrs.quick_dataclass import dataclass
from gptrs_runtime.verbs import VERBS
from gptrs_serve.bodies import (
    TASKS,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
    decoded,
)
from gptrs_serve.chat import chat
from gptrs_serve.completions import completions
from gptrs_serve.connections import http_protocol
from gptrs_serve.events import CLOSED_BY_CLIENT, ENDING
from gptrs_serve.listing import answered, detokenize, listed_models, one_model, tokenize
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
        served.close()

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
        *(
            post(path, reading(body, partial(answered, served=served, verb=VERBS[name])))
            for name, body in TASKS.items()
            for path in VERBS[name].routes
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


# The socket that a server listens on, and uvicorn on it.


_IDLE_S: Final = 30
_LOST_S: Final = 2
"""Time that answers have to tell that they failed, once nothing can be answered."""
_TOLD_S: Final = 1
"""Time that answers have to tell that they were cut short."""
_AGAIN_S: Final = 60
"""How often a lack is told of."""
_LACKS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ABANDON_S: Final = 60
"""Time that the engine has to end after that."""
_BACKLOG: Final = 2048
_SWITCH_S: Final = 0.0002
"""How long the engine waits at most until the thread of the connections lets it go on."""
_MOST_HEADER_BYTES: Final = 65_536


def new_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens; UsageError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol stated, asyncio switches off the wait of small packets for each other.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # clients that come before the server runs wait
    except OSError as error:
        listener.close()
        raise UsageError(
            f"{host} port {port} cannot be listened on: {error.strerror or error}",
            hint="give another --port or --host",
        ) from error
    return listener


class _Server(uvicorn.Server):
    """Ends, too, when `lost` says why nothing can be answered any more.

    Signals are handed on when the loop has ended: one that ends the process from within leaves
    answers that were not told so, and what Ctrl-C raises there is logged as an error.
    """

    def __init__(self, config: uvicorn.Config, lost: Callable[[], str | None]) -> None:
        super().__init__(config)
        self._lost = lost
        self._abandon: threading.Timer | None = None

    @override
    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer until the end; a process that came to it goes on."""
        try:
            with super().capture_signals():
                super().run(sockets)
        finally:
            if self._abandon is not None:
                self._abandon.cancel()

    @override
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to `run`, which the loop is within."""
        yield

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen; a lack of open files is told in one line a minute."""
        asyncio.get_running_loop().set_exception_handler(_LoopErrors().told)
        await super().startup(sockets)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close everything, after a second Ctrl-C at once; what is cut short is told so."""
        await super().shutdown(sockets)
        tasks = list(self.server_state.tasks)
        if self.force_exit:
            for task in tasks:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_TOLD_S)
        if self.force_exit:
            await self.lifespan.shutdown()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end; asked ten times a second."""
        reason = self._lost()
        if reason is None:
            return await super().on_tick(counter)
        # What runs on all processes fails soon, or waits for ever.
        self.config.timeout_graceful_shutdown = _LOST_S
        self._abandon = threading.Timer(_ABANDON_S, _abandon, [reason])
        self._abandon.daemon = True
        self._abandon.start()
        return True


class _LoopErrors:
    """Tells what goes wrong in the event loop.

    Of connections that cannot be taken for a lack of open files asyncio tells up to 2,048 times a
    second, with a traceback each.
    """

    def __init__(self) -> None:
        self._told_at = -math.inf

    def told(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tell of an error; what is no lack of files or memory as asyncio does."""
        error = context.get("exception")
        if "._start_serving(" in context["message"]:  # it tries again, on a socket closed meanwhile
            return
        if not (isinstance(error, OSError) and error.errno in _LACKS):
            loop.default_exception_handler(context)
            return
        now = loop.time()
        if now - self._told_at >= _AGAIN_S:
            self._told_at = now
            text = f"warning: connections wait: {error.strerror}; `ulimit -n` allows more files"
            print(text, file=sys.stderr, flush=True)


def _allow_files() -> None:
    """Let this process open as many files, and so connections, as the system lets it."""
    try:
        resource = import_module("resource")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ImportError, OSError, ValueError):  # none there, or the limit of macOS is lower yet
        return


def _abandon(reason: str) -> None:
    """End this process, in which some run waits for one that is gone."""
    print(
        f"error: {reason}; a run still waits for it, and is given up", file=sys.stderr, flush=True
    )
    os._exit(BackendError.exit_code)


def run_app(
    app: Starlette, listener: socket.socket, drain_seconds: int, lost: Callable[[], str | None]
) -> None:
    """Answer until told to stop; answers then have `drain_seconds`.

    BackendError when `lost` gives a reason: nothing can be answered any more.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=drain_seconds,
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        http=http_protocol(),
        ws="none",
    )
    sys.setswitchinterval(_SWITCH_S)
    _allow_files()
    _Server(config, lost).run(sockets=[listener])
    reason = lost()
    if reason is not None:
        raise BackendError(reason, hint="start the server again, and all processes of the model")
