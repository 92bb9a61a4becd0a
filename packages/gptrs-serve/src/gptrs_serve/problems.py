"""Errors as OpenAI's clients read them: a status, and an object that says what to change."""

from __future__ import annotations

import logging
import secrets
from typing import Final

from starlette.responses import JSONResponse

from gptrs.api import (
    CacheBudgetError,
    ContextLengthError,
    EngineBusyError,
    EngineClosedError,
    GptrsError,
    ModelError,
    UsageError,
)
from gptrs.errors import CheckpointError

_logger = logging.getLogger("gptrs")

RETRY_AFTER_S: Final = 1


class RequestError(Exception):
    """A request is refused with `status`; `param` is the field that is to blame, if one is."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, object]:
        """Return the object that OpenAI's clients read."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        """Return the answer to the request."""
        headers: dict[str, str] = {}
        if self.status in (429, 503):
            headers["Retry-After"] = str(RETRY_AFTER_S)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def problem_of(error: Exception) -> RequestError:
    """Return what a client is told of an error; nothing of an unknown one but that it happened."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, EngineBusyError):
        return RequestError(str(error), status=429, code="busy")
    if isinstance(error, EngineClosedError):
        return RequestError(str(error), status=503, code="closed")
    if isinstance(error, ContextLengthError):
        return RequestError(error.message, code="context_length_exceeded", param="max_tokens")
    if isinstance(error, CacheBudgetError):
        return RequestError(error.message, code="cache_budget", param="max_tokens")
    of_the_request = isinstance(error, UsageError | ModelError)
    # A file of weights that changed under the server is no fault of the one who asks.
    if of_the_request and not isinstance(error, CheckpointError):
        return RequestError(error.message, code=error.code)
    number = secrets.token_hex(4)
    _logger.error("request %s failed", number, exc_info=error)
    if isinstance(error, GptrsError):
        return RequestError(error.message, status=500, code=error.code)
    told = f"the server failed; its log says why, as of request {number}"
    return RequestError(told, status=500, code="internal")
