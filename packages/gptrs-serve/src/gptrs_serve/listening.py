"""The socket that a server listens on, and uvicorn on it."""

from __future__ import annotations

import asyncio
import socket
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Final, Literal

import uvicorn
from starlette.applications import Starlette

from gptrs.api import UsageError

_IDLE_S: Final = 30
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


def run_app(app: Starlette, listener: socket.socket, drain_seconds: int) -> None:
    """Answer until told to stop; answers then have `drain_seconds`."""
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
    uvicorn.Server(config).run(sockets=[listener])


def http_protocol() -> type[asyncio.Protocol] | Literal["h11"]:
    """Return what reads connections: httptools where it is installed, else h11."""
    if find_spec("httptools") is None:
        return "h11"
    return import_module("gptrs_serve.connection").Connection
