"""The sockets that a server listens on, and uvicorn on them."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

import uvicorn
import uvicorn.config
from msgspec import Struct
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from gptrs.api import BackendError, UsageError
from gptrs_serve.connections import http_protocol
from gptrs_serve.problems import RequestError, route_path

_IDLE_S: Final = 30
_LOST_S: Final = 2
"""Seconds for answers to report that they failed, once the server is lost."""
_TOLD_S: Final = 1
"""Seconds for answers to report that they were cut short."""
_AGAIN_S: Final = 60
"""Seconds between warnings about a lack of files or memory, and about malformed requests."""
_LACKS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ABANDON_S: Final = 60
"""Seconds for the engine to end after that."""
_BACKLOG: Final = 2048
_ACCEPTED_AT_ONCE: Final = 32
"""Most connections that asyncio accepts at a time: 2,048, its limit otherwise, take seconds."""
_SWITCH_S: Final = 0.0002
"""Most seconds that the engine waits for the connections' thread to release the GIL."""
_MOST_HEADER_BYTES: Final = 65_536


class Wire(Struct, frozen=True):
    """The transport of a server: TLS files, path behind a proxy, socket file."""

    certificate: Path | None = None
    private_key: Path | None = None
    root_path: str = ""
    socket_file: Path | None = None
    """Removed when the server shuts down."""
    hang_up: Callable[[], None] | None = None
    """Called on SIGHUP."""


def new_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket; UsageError if the address is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol stated, asyncio switches off the wait of small packets for each other.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # Connections of the process before linger in TIME_WAIT for a minute, and would keep a restarted
    # server from its port.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Called before the models are loaded: a taken port is told at once, early clients wait.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"{host} port {port} cannot be listened on: {error.strerror or error}",
            hint="give another --port or --host",
        ) from error
    return listener


def new_unix_listener(path: Path) -> socket.socket:
    """Return a listening Unix socket that only this user and group can use.

    A stale socket file is replaced; UsageError if a server listens on it, or for another file.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                # A socket file stays behind a killed server, so its existence says nothing: only a
                # connection does.
                if probe.connect_ex(os.fspath(path)) == 0:
                    raise UsageError(f"--uds: another server listens on `{path}`")
            path.unlink()
        # Set around bind: permissions set after it would leave a moment in which every user can
        # connect.
        before = os.umask(0o117)
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
    except (OSError, UsageError) as error:
        listener.close()
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"--uds: `{path}` cannot be listened on: {error.strerror or error}",
            hint="give the path of a file that does not exist, of at most 100 characters",
        ) from error
    return listener


class _Server(uvicorn.Server):
    """Also ends when `lost` returns a reason why nothing can be answered any more.

    Signals are passed on after the loop has ended: one that ended the process inside it would leave
    answers without an end, and the exception of Ctrl-C would be logged as an error.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        lost: Callable[[], str | None],
        wire: Wire,
    ) -> None:
        super().__init__(config)
        self._lost = lost
        self._wire = wire
        self._abandon: threading.Timer | None = None

    @override
    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the end; the caller's process continues."""
        try:
            with super().capture_signals():
                try:
                    super().run(sockets)
                finally:  # the signal that ends the process comes again after this
                    if self._wire.socket_file is not None:
                        self._wire.socket_file.unlink(missing_ok=True)
        finally:
            if self._abandon is not None:
                self._abandon.cancel()

    @override
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to `run`, which surrounds the loop."""
        yield

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening; a lack of open files is reported in one line a minute."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_LoopErrors().told)
        is_main = threading.current_thread() is threading.main_thread()
        if self._wire.hang_up is not None and is_main and hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, self._wire.hang_up)
        await super().startup(sockets)
        for each in sockets or ():  # asyncio takes one number for both
            each.listen(_BACKLOG)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close everything, at once after a second Ctrl-C; answers that are cut say so."""
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
        # Work that spans all processes fails soon, or waits forever.
        self.config.timeout_graceful_shutdown = _LOST_S
        self._abandon = threading.Timer(_ABANDON_S, _abandon, [reason])
        self._abandon.daemon = True
        self._abandon.start()
        return True


class _LoopErrors:
    """Reports errors of the event loop.

    If connections cannot be accepted for lack of open files, asyncio reports it up to 2,048 times a
    second, with a traceback each.
    """

    def __init__(self) -> None:
        self._told_at = -math.inf

    def told(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report an error; asyncio handles all but a lack of files or memory."""
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


class Seldom(logging.Filter):
    """Passes one record a minute about malformed requests: strangers may send thousands.

    In its scope it is a filter of uvicorn's logger.
    """

    _told_at = -math.inf

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record."""
        if not record.getMessage().startswith("Invalid HTTP request"):
            return True
        now = time.monotonic()
        if now - self._told_at < _AGAIN_S:
            return False
        self._told_at = now
        return True

    def __enter__(self) -> Seldom:
        logging.getLogger("uvicorn.error").addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("uvicorn.error").removeFilter(self)


def _allow_files() -> None:
    """Raise the limit of open files, and so of connections, as far as the system allows."""
    try:
        resource = import_module("resource")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ImportError, OSError, ValueError):  # none there, or the limit of macOS is lower yet
        return


def _abandon(reason: str) -> None:
    """End this process, in which a run waits for a lost process."""
    print(
        f"error: {reason}; a run still waits for it, and is abandoned", file=sys.stderr, flush=True
    )
    # Not sys.exit: the thread that waits is in native code of a collective, and joining it would
    # never end.
    os._exit(BackendError.exit_code)


def run_app(
    app: ASGIApp,
    listener: socket.socket,
    drain_seconds: int,
    lost: Callable[[], str | None],
    wire: Wire | None = None,
) -> None:
    """Serve until told to stop; answers then have `drain_seconds` to end.

    BackendError when `lost` returns a reason: nothing can be answered any more.
    """
    wire = wire or Wire()
    # The default of 5 ms is as long as a step of a small model: the thread of the engine would wait
    # as long for each event that is sent.
    sys.setswitchinterval(_SWITCH_S)
    _allow_files()
    config = _config(app, wire, drain_seconds)
    with Seldom():
        _Server(config, lost, wire).run(sockets=[listener])
    reason = lost()
    if reason is not None:
        raise BackendError(reason, hint="start the server again, and all processes of the model")


def _config(app: ASGIApp, wire: Wire, drain_seconds: int) -> uvicorn.Config:
    """Return the settings of uvicorn; UsageError for an invalid certificate or key."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        backlog=_ACCEPTED_AT_ONCE,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=drain_seconds,
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        http=http_protocol(),
        ws="none",
        lifespan="on",
        root_path=wire.root_path,
        ssl_certfile=wire.certificate,
        ssl_keyfile=wire.private_key,
        log_config=None if _logs_as_json() else uvicorn.config.LOGGING_CONFIG,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        problem = error.strerror or str(error)
        raise UsageError(
            f"--ssl-certfile and --ssl-keyfile cannot be used: {problem}",
            hint="give a certificate and its private key in PEM, without a password",
        ) from error
    return config


def _logs_as_json() -> bool:
    """Return whether `json_log` has configured the loggers, which uvicorn must then leave alone."""
    return bool(logging.getLogger("uvicorn").handlers)


class Closing(Protocol):
    """A resource behind an application, such as its models, until it is closed."""

    def lost(self) -> str | None:
        """Return why nothing can be answered any more; None while requests can be answered."""
        ...

    def close(self) -> None:
        """End all threads."""
        ...


class Opening:
    """An application that a thread is still making, since its models are being loaded.

    Until then, `/health` answers 200, `/ready` 503, and other requests wait.
    """

    def __init__(self, make: Callable[[], tuple[ASGIApp, Closing]]) -> None:
        self._make = make
        self._app: ASGIApp | None = None
        self._models: Closing | None = None
        self.error: BaseException | None = None
        """The error that prevented it."""
        self._waiting: asyncio.Event | None = None

    def lost(self) -> str | None:
        """Return why nothing can be answered any more; None while requests can be answered."""
        if self.error is not None:
            return "the models could not be loaded"
        return None if self._models is None else self._models.lost()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or start loading."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if self._app is None and scope["type"] == "http":
            told = _while_loading(route_path(scope))
            if told is not None:
                await told(scope, receive, send)
                return
            assert self._waiting is not None  # the lifespan begins before any request
            await self._waiting.wait()
        if self._app is None:
            error = RequestError("the server is shutting down", status=503, code="closed")
            await error.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        loop, self._waiting = asyncio.get_running_loop(), asyncio.Event()
        context = copy_context()
        thread = threading.Thread(
            # Threads do not inherit context variables; those of the caller hold while models load,
            # too.
            target=context.run,
            args=(self._load, loop),
            name="gptrs loading",
            daemon=True,
        )
        thread.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._models is not None:
            self._models.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._app, self._models = self._make()
        except BaseException as error:  # `run_opening` raises it again
            self.error = error
        finally:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        assert self._waiting is not None
        # On the loop's own thread: asyncio.Event is not thread-safe.
        self._waiting.set()


def _while_loading(path: str) -> Response | None:
    """Return the answer to a probe while models load; None for a request that waits."""
    if path == "/health":
        return JSONResponse({"status": "loading"})
    if path == "/ready":
        told = "the models are being loaded: try again later"
        return RequestError(told, status=503, code="not_ready").response()
    return None


def run_opening(opening: Opening, listener: socket.socket, drain_seconds: int, wire: Wire) -> None:
    """Serve at once, as `run_app` does; raise the error of loading, if any."""
    try:
        run_app(opening, listener, drain_seconds, opening.lost, wire)
    except BackendError:
        if opening.error is not None:
            raise opening.error from None
        raise
