"""Calls of libraries that recurse as deep as a stranger's text nests: on a stack that is enough."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from gptrs.fork_safe_lock import ForkSafeLock

T = TypeVar("T")

_LEAST: Final = 8 << 20
_STEP: Final = 1 << 20
_lock = ForkSafeLock()
"""The size of the stacks of new threads is one setting of the process."""


def on_deep_stack(function: Callable[[], T], stack_bytes: int) -> T:
    """Return the result of `function`, called on a stack of at least that many bytes.

    Only the part that is used takes memory. Errors of the function pass; MemoryError where there
    is no room for such a stack.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            done.append(function())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=call, name="gptrs-deep-stack", daemon=True)
    with _lock:
        before = threading.stack_size(max(_LEAST, -(-stack_bytes // _STEP) * _STEP))
        try:
            thread.start()
        except RuntimeError as error:
            raise MemoryError(f"no memory is left for a stack of {stack_bytes} bytes") from error
        finally:
            threading.stack_size(before)
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
