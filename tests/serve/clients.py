"""How tests ask a server, and hold the one in their own process in a state."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

httpx = pytest.importorskip("httpx", reason="the HTTP client httpx is not installed")
# One for all tests: making a client takes 40 ms, and its own limit of 5 s is too short for a busy
# machine. Each request has a connection of its own, as servers come and go.
http = httpx.Client(timeout=120, limits=httpx.Limits(max_keepalive_connections=0))


def post(address, path, body, **headers):
    return http.post(f"{address}{path}", json=body, headers=headers)


def cache_of(engine):
    return engine._lanes["tiny"]._cache


@contextmanager
def leaving(address: str, path: str, **body) -> Iterator[None]:
    """Send a request whose client goes away at the end of the scope, without its answer."""
    request = httpx.Request("POST", f"{address}{path}", **body)
    fields = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection((urlsplit(address).hostname, urlsplit(address).port)) as client:
        client.sendall(f"POST {path} HTTP/1.1\r\n{fields}\r\n".encode() + request.read())
        yield


@contextmanager
def held(engine) -> Iterator[None]:
    """Have the engine begin no step in the scope: what is asked for meanwhile begins together."""
    go = threading.Event()
    engine._loop.call(go.wait)
    try:
        yield
    finally:
        go.set()
