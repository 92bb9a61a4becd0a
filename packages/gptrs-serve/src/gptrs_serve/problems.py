"""Errors in OpenAI's format: a status, and an object that says what to change."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gptrs.api import (
    CacheBudgetError,
    ContextLengthError,
    EngineBusyError,
    EngineClosedError,
    GptrsError,
    MissingLibraryError,
    ModelError,
    UsageError,
)
from gptrs.errors import CheckpointError, TimeLimitError
from gptrs_serve.keys import Key, KeyRing
from gptrs_serve.request_log import note_facts, request_id

_logger = logging.getLogger("gptrs")

RETRY_AFTER_S: Final = 1
ANTHROPIC: Final = "/v1/messages"
OLLAMA: Final = "/api/"
"""Prefixes of paths whose clients expect other errors than OpenAI's."""
_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    417: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's error types by status."""


class RequestError(Exception):
    """A request is refused with `status`; `param` names the field at fault, if any."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = RETRY_AFTER_S
        """Seconds after which to try again, where that may help."""

    def body(self, path: str = "") -> dict[str, object]:
        """Return the error object for the clients of a path; OpenAI's by default."""
        if path.startswith(OLLAMA):
            return {"error": self.message}
        if path.startswith(ANTHROPIC):
            error: dict[str, object] = {
                "type": _KINDS.get(self.status, _KINDS[500]),
                "message": self.message,
            }
            if self.code is not None:  # by which clients decide what to do instead
                fields = [] if self.param is None else [self.param]
                error["details"] = {"error_code": self.code, "unsupported": fields}
            return {"type": "error", "error": error}
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": told}

    def response(self, path: str = "") -> JSONResponse:
        """Return the answer to the request."""
        headers: dict[str, str] = {}
        if self.status in (429, 503):
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(path), self.status, headers)


def problem_of(error: Exception) -> RequestError:
    """Return the error to report to a client; without details if the error is unknown."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, EngineBusyError):
        busy = RequestError(str(error), status=429, code="busy")
        busy.retry_after = max(RETRY_AFTER_S, math.ceil(error.retry_after))
        return busy
    if isinstance(error, TimeLimitError):
        return RequestError(str(error), status=504, param="max_time", code="time_limit")
    if isinstance(error, EngineClosedError):
        return RequestError(str(error), status=503, code="closed")
    if isinstance(error, ContextLengthError):
        return RequestError(error.message, code="context_length_exceeded", param="max_tokens")
    if isinstance(error, CacheBudgetError):
        return RequestError(error.message, code="cache_budget", param="max_tokens")
    # Of a missing library, too: the request asks for what this server cannot read.
    of_the_request = isinstance(error, UsageError | ModelError | MissingLibraryError)
    # A file of weights that changed under the server is not the client's fault.
    if of_the_request and not isinstance(error, CheckpointError):
        at_fault = error.argument if isinstance(error, UsageError) else None
        return RequestError(error.message, param=at_fault, code=error.code)
    number = request_id()
    facts = {"request_id": number}
    # The client gets the number alone: messages of unknown errors may hold paths or parts of other
    # requests.
    _logger.error("request %s failed", number, exc_info=error, extra={"facts": facts})
    if isinstance(error, GptrsError):
        return RequestError(error.message, status=500, code=error.code)
    told = f"the server failed; its log says why, for request {number}"
    return RequestError(told, status=500, code="internal")


@contextmanager
def about_field(param: str) -> Generator[None]:
    """Scope whose errors of the request become RequestErrors with `param`.

    UsageErrors may name an argument instead. ModelErrors are those of images that cannot be read,
    and of what a model cannot do with the field.
    """
    try:
        yield
    except CheckpointError:  # a fault of the server
        raise
    except (UsageError, ModelError, MissingLibraryError) as error:
        problem = problem_of(error)
        problem.param = (error.argument if isinstance(error, UsageError) else None) or param
        raise problem from error


@contextmanager
def fields_called(names: Mapping[str, str]) -> Generator[None]:
    """Scope whose errors name fields of chats as another protocol does: `names` by those."""
    try:
        yield
    except RequestError as error:
        error.param = names.get(error.param or "", error.param)
        raise
    except UsageError as error:
        problem = problem_of(error)
        problem.param = names.get(problem.param or "", problem.param)
        raise problem from error


# Access checks before anything is read: keys, hosts, types and sizes of bodies.


PAGE_FILES: Final = {
    "/": "page.html",
    "/markdown-it.js": "vendor/markdown-it.esm.min.mjs",
    **{
        f"/{name}": name
        for name in (
            "chats.js",
            "files.js",
            "markdown.js",
            "page.css",
            "page.js",
            "stream.js",
            "view.js",
            "welcome.js",
        )
    },
}
"""The files of the chat page by the paths that serve them."""
OPEN_PATHS: Final = frozenset(("/health", "/ready", "/page.json", *PAGE_FILES))
"""Paths that need no key, as they reveal and change nothing."""
KEY: Final = "gptrs.key"
"""The name of the `Key` in the scope of a request, if there are keys."""
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """Refuses requests without one of `keys`, and those for other hosts than `hosts`.

    Empty `keys` and `hosts` refuse nothing. A page of another site could make a browser
    send requests to a server of this machine under a name of its own: hence the hosts.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, hosts: Sequence[str]) -> None:
        self._app = app
        self._keys = keys
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        problem = self._host_problem(headers, scope)
        key = None
        if problem is None and self._needs_key(scope):
            key = self._key(headers)
            if key is None:
                problem = RequestError(
                    "the API key is missing or wrong: send `Authorization: Bearer KEY`",
                    status=401,
                    code="invalid_api_key",
                )
        if problem is None and key is not None and not self._keys.begin(key):
            problem = RequestError(
                f"this key has {key.most_requests} open requests, which is its limit",
                status=429,
                code="busy",
            )
            key = None
        if problem is not None:
            await problem.response(route_path(scope))(scope, receive, send)
            return
        if key is None:
            await self._app(scope, receive, send)
            return
        scope[KEY] = key
        note_facts(**({"key": key.name} if key.name else {}))
        try:
            await self._app(scope, receive, send)
        finally:
            self._keys.end(key)

    def _needs_key(self, scope: Scope) -> bool:
        path = route_path(scope)
        # Browsers send no key with the OPTIONS request before a cross-origin one.
        return bool(self._keys) and path not in OPEN_PATHS and scope["method"] != "OPTIONS"

    def _key(self, headers: Headers) -> Key | None:
        """Return the key that a client sent; None if it is missing or unknown."""
        stated = headers.get("authorization", "")
        if not stated and "x-api-key" in headers:  # as Anthropic's clients send it
            stated = f"Bearer {headers['x-api-key']}"
        kind, _, given = stated.partition(" ")
        key = self._keys.find(given.strip())
        return key if kind.lower() == "bearer" else None

    def _host_problem(self, headers: Headers, scope: Scope) -> RequestError | None:
        hosts = headers.getlist("host")
        if len(hosts) > 1:  # RFC 9112, 3.2: a proxy may have read the other one
            return RequestError("a request has one `Host`", code="host")
        # HTTP/1.0 has no `Host`, and browsers, which this is about, speak no HTTP/1.0.
        is_old = not hosts and scope["http_version"] == "1.0"
        if self._hosts and not is_old and _without_port((hosts or [""])[0]) not in self._hosts:
            return RequestError(
                "this server does not answer for that host: `--allow-host` adds one",
                status=403,
                code="host",
            )
        return None


def route_path(scope: Scope) -> str:
    """Return the path of a request below `--root-path`."""
    path = str(scope["path"])
    root = str(scope.get("root_path", ""))
    # Some proxies strip the prefix and some do not; both forms reach the same route.
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0].lower()


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Return the body of a request; RequestError if it is too long, or not declared as JSON.

    A browser sends a preflight before JSON to another site, but not before other types; it
    states its origin. Clients of Ollama often name no type.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_free = request.url.path.startswith(OLLAMA) and "origin" not in request.headers
    # A page of another site can send text/plain to this machine without a preflight; JSON it
    # cannot. This keeps such pages from running models.
    if kind != "application/json" and not is_free:
        raise RequestError("send `Content-Type: application/json`", status=415, code="content_type")
    return bytes(await read_bytes(request, most_bytes))


async def read_bytes(request: Request, most_bytes: int) -> bytearray:
    """Return the body of a request; RequestError if it is compressed or too long.

    RequestError, too, if the client expects more than a sign to go on (RFC 9110, 10.1.1).
    """
    expected = request.headers.get("expect") or "100-continue"
    if expected.strip().lower() != "100-continue":
        raise RequestError(
            f"the request has `Expect: {expected[:40]}`, this server meets `100-continue`",
            status=417,
            code="expectation_failed",
        )
    for name, plain in (("Content-Encoding", "identity"), ("Transfer-Encoding", "chunked")):
        coding = request.headers.get(name, "").strip().lower() or plain
        # A few megabytes of gzip unpack to gigabytes.
        if coding != plain:
            raise RequestError(
                f"the body has `{name}: {coding[:40]}`, only plain bodies are read",
                status=415,
                code="content_encoding",
            )
    too_long = RequestError(
        f"the body has more than {most_bytes} bytes, the limit of this server",
        status=413,
        code="body_too_large",
    )
    # Refused before tokenizing. The header may be missing or wrong, so `_read` counts, too.
    stated = request.headers.get("content-length", "")
    if stated.isdigit() and int(stated) > most_bytes:
        raise too_long
    data = await _read(request, most_bytes, too_long)
    body_bytes.set(len(data))
    return data


SMALL_BODY: Final = 16_384
"""Bytes of a body that is read on the event loop: at most some 10 ms, for one full of short
messages."""
body_bytes: ContextVar[int] = ContextVar("gptrs_body_bytes", default=0)
"""The bytes of the body that the current task answers, and of stored messages before it."""


def is_large() -> bool:
    """Return whether the current task answers a large body."""
    return body_bytes.get() > SMALL_BODY


MOST_BYTES_IN_FLIGHT: Final = 64_000_000
"""Total bytes of incomplete bodies; what exceeds it is read and dropped."""
_in_flight = [0]


async def _read(request: Request, most_bytes: int, too_long: RequestError) -> bytearray:
    """Return the body; status 503, after reading it, if other bodies hold all the memory.

    A client that is answered before it has sent everything sees a connection reset.
    """
    data = bytearray()
    size = held = 0
    is_dropped = False
    try:
        async for part in request.stream():
            size += len(part)
            if size > most_bytes:
                raise too_long
            # Small ones are always read; the number of connections bounds their sum.
            if size > SMALL_BODY and not is_dropped:
                # No lock: all handlers run on one event loop, and there is no await between reading
                # and adding.
                _in_flight[0] += size - held
                held = size
                # A single one may be longer, as `--most-body` allows.
                if _in_flight[0] > max(MOST_BYTES_IN_FLIGHT, held):
                    is_dropped = True
                    _in_flight[0] -= held
                    held = 0
                    data.clear()
            if not is_dropped:
                data += part
    finally:
        _in_flight[0] -= held
    if is_dropped:
        raise RequestError(
            f"the bodies of other requests take all {MOST_BYTES_IN_FLIGHT} bytes that are read at"
            " once",
            status=503,
            code="busy",
        )
    return data
