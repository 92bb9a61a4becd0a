"""Request ids, the access log, and counts of requests."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, Literal

from msgspec import Struct, field
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

LogFormat = Literal["text", "json"]
_GIVEN_ID: Final = re.compile(r"[!-~]{1,128}")
"""Ids from clients or proxies that are safe in a log and a header."""
_OTHER: Final = "other"
"""The label for unknown paths in the counts: anyone can make those up."""
_ACCESS: Final = logging.getLogger("gptrs.access")


class RequestFacts(Struct):
    """A request, and its facts for the log."""

    id: str
    client: str
    facts: dict[str, object] = field(default_factory=dict)
    """Facts added by routes: the model, tokens read and written."""


_current: ContextVar[RequestFacts | None] = ContextVar("gptrs_request", default=None)


def request_id() -> str:
    """Return the id of the request that this task answers; a new one outside of requests."""
    request = _current.get()
    return secrets.token_hex(8) if request is None else request.id


def note_facts(**facts: object) -> None:
    """Add facts to the request's log line; integers are summed."""
    request = _current.get()
    if request is None:
        return
    for name, value in facts.items():
        before = request.facts.get(name)
        if isinstance(before, int) and isinstance(value, int):
            request.facts[name] = before + value
        else:
            request.facts[name] = value


class RequestLog:
    """Gives each request an id, counts it by path and status, and logs it if enabled.

    The id is the client's `X-Request-Id`, if sent, and is in the headers of the answer.
    This is the outermost layer: requests without a key, and for unknown paths, count as well.
    """

    def __init__(
        self,
        app: ASGIApp,
        answered: Callable[[str, int], None],
        path_of: Callable[[Scope], str | None],
        logs: bool,
    ) -> None:
        self._app = app
        self._answered = answered
        self._path_of = path_of
        self._logs = logs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        client = scope.get("client")
        request = RequestFacts(
            # Checked, as it goes into log lines and a header: a newline in it could forge either.
            given if _GIVEN_ID.fullmatch(given) else secrets.token_hex(8),
            str(client[0]) if client else "",
        )
        token = _current.set(request)
        began = time.perf_counter()
        status = [0]

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request.id
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            _current.reset(token)
            self._answered(self._path_of(scope) or _OTHER, status[0])
            if self._logs:
                self._log(scope, request, status[0], time.perf_counter() - began)

    def _log(self, scope: Scope, request: RequestFacts, status: int, seconds: float) -> None:
        facts: dict[str, object] = {
            "client": request.client,
            "method": scope["method"],
            # Without the query string, in which some clients put keys.
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 6),
            **request.facts,
            "request_id": request.id,
        }
        shown = [_printable(value) for value in list(facts.values())[:4]]
        rest = [f"{name}={_printable(value)}" for name, value in (request.facts.items())]
        line = " ".join([_now(), *shown, f"{seconds:.3f}s", *rest, f"id={request.id}"])
        _ACCESS.info("%s", line, extra={"facts": {"message": "request", **facts}})


# The log as JSON, for machines.


class _JsonLines(logging.Formatter):
    """An object a line: time, level, message, the facts of a request, the error with its cause."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            event["error"] = type(error).__name__
            event["error_message"] = str(error)
            event["causes"] = [f"{type(each).__name__}: {each}" for each in _causes(error)]
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def _now() -> str:
    return _iso(time.time())


def _iso(seconds: float) -> str:
    """Return a time in UTC in RFC 3339 format."""
    made = datetime.fromtimestamp(seconds, UTC)
    return made.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _printable(value: object) -> str:
    """Return a value on one line: paths and names of clients may contain anything."""
    text = str(value)
    return text if text.isprintable() and " " not in text and text else json.dumps(text)


def _causes(error: BaseException) -> Iterable[BaseException]:
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while cause is not None:
        yield cause
        cause = cause.__cause__


@contextmanager
def json_log() -> Generator[None]:
    """Scope in which gptrs and uvicorn log JSON, one object per line."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    before: list[tuple[logging.Logger, list[logging.Handler], int, bool]] = []
    for name, level in (("gptrs", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        before.append((logger, list(logger.handlers), logger.level, logger.propagate))
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        # Handlers of the root logger would write each line a second time, as text.
        logger.propagate = False
    try:
        yield
    finally:
        for logger, handlers, level, propagate in before:
            logger.handlers[:] = handlers
            logger.setLevel(level)
            logger.propagate = propagate
