"""Sizes and limits of requests, known before any work begins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from gptrs.errors import EngineBusyError
from gptrs_runtime.text_batches import shown_bytes
from gptrs_serve.problems import RequestError, body_bytes, is_large

MOST_BYTES: Final = 256_000_000
"""Bytes that the answers to one request may take."""
MOST_HELD_BYTES: Final = 128_000_000
"""Bytes of large bodies whose requests run or wait outside the engine."""
_TEXT_COPIES: Final = 4
"""Copies of a text that is sent back: as JSON, in the whole answer, in the connection's buffer."""
_TOKEN_BYTES: Final = 100
"""Bytes per token of an answer, and per likeliest token beside it, until it is sent."""


class Account(Struct, frozen=True):
    """The size of a request: tokens to read or score, and answers with `logprobs` likeliest tokens.

    `answers` are those to all of its prompts, also where the account is that of one of them.
    `length` is how many tokens an answer may have, None if the request leaves that to the server,
    `room` how many fit into the context, and `most` how many the operator allows, None for any.
    """

    tokens: int
    answers: int
    length: int | None
    logprobs: int
    room: int
    most: int | None

    def tokens_of_answer(self) -> int:
        """Return how many tokens an answer may have at most.

        This is a limit, not a promise: clients ask any model for 4,096.
        RequestError for more than the operator or the memory allows.
        """
        asked, most = self.length, self.most
        if asked is not None and most is not None and asked > most:
            raise RequestError(
                f"this server writes at most {most} tokens, asked for {asked}", param="max_tokens"
            )
        wanted = most if asked is None else asked
        if self.room < 1:  # refused by the engine, which counts both
            return wanted or 1
        # Not an error: clients send 4,096 or more by default, whatever the model's context.
        length = self.room if wanted is None else min(wanted, self.room)
        bytes_of_token = self.answers * (1 + self.logprobs) * _TOKEN_BYTES
        # Answers are held until their request ends. Without a bound, n = 128 with 20 logprobs over
        # a long context would take gigabytes for one request.
        held = max(1, MOST_BYTES // bytes_of_token)
        if length > held and asked is not None:
            raise RequestError(
                f"{self.answers} answers of {length} tokens with {self.logprobs} likeliest ones"
                f" each take {shown_bytes(length * bytes_of_token)}, a request may take"
                f" {shown_bytes(MOST_BYTES)}: ask for fewer answers, tokens or `logprobs`",
                param="n" if self.answers > 1 else "logprobs",
            )
        return min(length, held)


class Echoes:
    """Counts what a request gets back of its own prompts, in each of `answers`.

    A body of 4 MB may have a million tokens; each may come back with 20 likeliest ones.
    """

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._bytes = 0

    def add(self, text: str, tokens: int, logprobs: int | None) -> None:
        """Count a prompt and the scores of its tokens; RequestError if it is too much."""
        scores = 0 if logprobs is None else tokens * (1 + logprobs) * _TOKEN_BYTES
        self._bytes += self._answers * (_TEXT_COPIES * len(text) + scores)
        if self._bytes > MOST_BYTES:
            raise RequestError(
                f"the prompts with their scores take {shown_bytes(self._bytes)} or more in"
                f" {self._answers} answers each, a request may take {shown_bytes(MOST_BYTES)}: ask"
                " for fewer prompts, answers or `logprobs`",
                param="echo",
            )


class Ledger:
    """Counts the work of all open requests; thread-safe.

    `answers` returns how many answers the engine has open. Together with the work that waits for
    threads that prepare requests, and for models that read texts, they are at most `most_requests`.
    The large bodies that such work holds have at most `MOST_HELD_BYTES` together.
    """

    def __init__(self, most_requests: int, answers: Callable[[], int] = lambda: 0) -> None:
        self.most_requests = most_requests
        self._answers = answers
        self._lock = threading.Lock()
        self.requests = 0
        """Pieces of work that run or wait outside the engine."""
        self.bytes = 0
        """Bytes of their large bodies."""

    def begin(self) -> int:
        """Count a piece of work of the current request; EngineBusyError if there are too many.

        Returns the bytes to give to `end`.
        """
        size = body_bytes.get() if is_large() else 0
        with self._lock:
            # One is always taken: stored messages may exceed the limit by themselves.
            if size and self.bytes and self.bytes + size > MOST_HELD_BYTES:
                raise EngineBusyError(
                    f"the bodies of waiting requests take {shown_bytes(self.bytes)}, the limit is"
                    f" {shown_bytes(MOST_HELD_BYTES)}",
                    hint="try again later",
                )
            # Asked within the lock: two threads that both see one free slot would both take it.
            if self.requests + self._answers() >= self.most_requests:
                raise EngineBusyError(
                    f"{self.most_requests} requests run or wait, which is the most allowed",
                    hint="try again later",
                )
            self.requests += 1
            self.bytes += size
        return size

    def end(self, size: int) -> None:
        """Undo `begin`, which returned `size`."""
        with self._lock:
            self.requests -= 1
            self.bytes -= size
