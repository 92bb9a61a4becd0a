"""The socket that a server listens on, and uvicorn on it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Final, Literal

import uvicorn
from starlette.applications import Starlette
from typing_extensions import override

from gptrs.api import BackendError, UsageError

_IDLE_S: Final = 30
_LOST_S: Final = 2
"""Time that answers have to tell that they failed, once nothing can be answered."""
_TOLD_S: Final = 1
"""Time that answers have to tell that they were cut short."""
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
    _Server(config, lost).run(sockets=[listener])
    reason = lost()
    if reason is not None:
        raise BackendError(reason, hint="start all processes of the model again")


def http_protocol() -> type[asyncio.Protocol] | Literal["h11"]:
    """Return what reads connections: httptools where it is installed, else h11."""
    if find_spec("httptools") is None:
        return "h11"
    return import_module("gptrs_serve.connection").Connection
