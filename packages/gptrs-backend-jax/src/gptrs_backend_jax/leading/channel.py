"""Messages from the leading process to its followers: a JSON head, and bytes."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from gptrs.api import BackendError
from gptrs.api.backends import ProcessGroup

Head = Mapping[str, object]
Message = tuple[Head, Sequence[bytes]]

_PREFIX = struct.Struct("<II")
"""The bytes of the head, and how many parts of bytes follow it."""
_SIZE = struct.Struct("<Q")
_MEET_S = 60
_GREET_S = 5
"""Seconds for the first bytes of a new connection, so that a silent stranger blocks no one."""
_ALIVE: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds of silence, between questions, and how many of these go unanswered."""
_INVITATION_BYTES, _TOKEN_BYTES = 1024, 32
_LOCAL = ("127.0.0.1", "localhost", "::1")

# The types of these functions of JAX are partly unknown.
_jax, _hosts = cast("Any", jax), cast("Any", multihost_utils)


class Follower:
    """The connection to one follower process; `number` is its number in JAX."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self._connection = connection

    def send(self, head: Head, parts: Sequence[bytes] = ()) -> None:
        """Send a message; BackendError if the process is gone."""
        text = json.dumps(head).encode()
        begin = _PREFIX.pack(len(text), len(parts)) + text
        try:
            self._connection.sendall(begin)
            for part in parts:
                self._connection.sendall(_SIZE.pack(len(part)))
                self._connection.sendall(part)
        except OSError as error:
            raise BackendError(
                f"process {self.number} of the model is gone: {error.strerror or error}",
                hint="start all of them again",
            ) from error

    def is_gone(self) -> bool:
        """Return whether the process has ended, or its host does not answer; does not wait."""
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


class Leader:
    """The way from the process that leads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def receive(self) -> Message:
        """Return the next message; BackendError if the process that leads is gone."""
        size, count = _PREFIX.unpack(self._read(_PREFIX.size))
        head = cast("Head", json.loads(self._read(size)))
        parts = [self._read(_SIZE.unpack(self._read(_SIZE.size))[0]) for _ in range(count)]
        return head, parts

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _read(self, size: int) -> bytes:
        read = bytearray(size)
        view = memoryview(read)
        try:
            while view:
                count = self._connection.recv_into(view)
                if not count:
                    raise _gone()
                view = view[count:]
        except OSError as error:
            raise _gone() from error
        return bytes(read)


def lead(group: ProcessGroup) -> list[Follower]:
    """Return channels to all other processes, which call `follow` at the same time.

    The followers get the address, and a secret that authenticates them, from JAX.
    """
    token = secrets.token_hex(_TOKEN_BYTES)
    host = _host_of(group)
    bound = host if host in _LOCAL else ""
    with socket.create_server((bound, 0)) as listener:
        hosts = [each for each in (host, socket.gethostname()) if each]
        _told({"hosts": hosts, "port": listener.getsockname()[1], "token": token})
        return _met(listener, token, _jax.process_count() - 1)


def follow() -> Leader:
    """Return the channel from the leading process, which calls `lead` at the same time."""
    invitation = _told(None)
    deadline, problem = time.monotonic() + _MEET_S, "no address"
    while time.monotonic() < deadline:
        for host in invitation["hosts"]:
            try:
                connection = socket.create_connection((host, invitation["port"]), _MEET_S)
            except OSError as error:
                problem = f"{host}: {error.strerror or error}"
                continue
            _prepare(connection)
            connection.sendall(f"{invitation['token']}{_jax.process_index():08d}".encode())
            return Leader(connection)
        time.sleep(0.1)
    raise BackendError(f"the first process cannot be reached from here: {problem}")


def _met(listener: socket.socket, token: str, count: int) -> list[Follower]:
    found: dict[int, Follower] = {}
    deadline = time.monotonic() + _MEET_S
    while len(found) < count:
        listener.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            connection, _ = listener.accept()
        except OSError as error:
            raise BackendError(
                f"{count - len(found)} processes of {count + 1} did not come: {error}",
                hint="the first one must be reached from the others, on any port",
            ) from error
        number = _number_of(connection, token)
        if number is None:
            connection.close()
            continue
        _prepare(connection)
        found[number] = Follower(number, connection)
    return [found[number] for number in sorted(found)]


def _number_of(connection: socket.socket, token: str) -> int | None:
    """Return the number that a process sends after the secret; None for a stranger."""
    connection.settimeout(_GREET_S)
    try:
        given = connection.recv(2 * _TOKEN_BYTES + 8, socket.MSG_WAITALL)
    except OSError:
        return None
    known = hmac.compare_digest(given[: 2 * _TOKEN_BYTES], token.encode())
    number = given[2 * _TOKEN_BYTES :]
    return int(number) if known and number.isdigit() else None


def _prepare(connection: socket.socket) -> None:
    """Send small messages immediately, and detect a lost host within a minute."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _told(invitation: Mapping[str, object] | None) -> dict[str, Any]:
    """Return the invitation of the first process; it calls with its own, the others with None."""
    text = json.dumps(invitation or {}).encode()
    sent = np.zeros(_INVITATION_BYTES, np.uint8)
    sent[: len(text)] = np.frombuffer(text, np.uint8)
    heard = np.asarray(_hosts.broadcast_one_to_all(sent, is_source=invitation is not None))
    return json.loads(heard.astype(np.uint8).tobytes().rstrip(b"\0"))


def _host_of(group: ProcessGroup) -> str:
    """Return the host of the first process, empty if a launcher knows it."""
    return "" if group.count is None else group.coordinator.rpartition(":")[0].strip("[]")


def _gone() -> BackendError:
    return BackendError("the first process of the model is gone", hint="start all of them again")
