"""The compiled signatures of one function: counted, and the least recently used dropped."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from gptrs.backend.protocol import Backend
from gptrs.capture.fork_safe_lock import ForkSafeLock
from gptrs.capture.jitting.pytree import Structure, show
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import clipped

MOST_SIGNATURES = 512
"""Signatures kept for one function."""
MANY_SIGNATURES = 64
"""Above so many signatures a function is probably captured anew for every call."""

_logger = logging.getLogger("gptrs")


class StepKey(NamedTuple):
    """Everything that decides which program a call runs."""

    labels: tuple[str, ...]
    structures: tuple[Structure, ...]
    types: tuple[TensorType, ...]
    """The types of the tensors of all arguments, in order."""
    context: tuple[Hashable, ...]
    backend: Backend | None
    settings: Hashable
    """Other settings of the backend and the optimizer."""


@dataclass(frozen=True, slots=True)
class JitSignature:
    """A signature for which a function was compiled, in words."""

    arguments: Mapping[str, str]
    """The name of each argument, with the type of a tensor or the value of another."""
    context: tuple[Hashable, ...]
    """Ambient state: the overrides of functionals."""
    backend: str
    calls: int
    """Calls served."""

    def __str__(self) -> str:
        listed = ", ".join(f"{name}: {text}" for name, text in self.arguments.items())
        return f"({listed}) on {self.backend}, called {self.calls}x"


StepT = TypeVar("StepT")


@dataclass(slots=True)
class _Entry(Generic[StepT]):
    step: StepT
    calls: int
    used: int
    """Clock of the last use, for dropping the least recently used."""


class CompiledSteps(Generic[StepT]):
    """Steps by key, safe between threads."""

    def __init__(self, function: str, expected: int = MANY_SIGNATURES) -> None:
        self._function = function
        self._expected = expected
        self._entries: dict[StepKey, _Entry[StepT]] = {}
        # What was found last: to compare keys is quicker than to hash all types of one.
        self._last: tuple[StepKey, _Entry[StepT]] | None = None
        self._clock = itertools.count()
        self._lock = ForkSafeLock()
        self._warned = False

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: StepKey) -> StepT | None:
        """Return the step of a call and count the call; None if there is none."""
        last = self._last
        repeated = last is not None and last[0] == key
        entry = last[1] if last is not None and repeated else self._entries.get(key)
        if entry is None:
            return None
        with self._lock.inner:
            entry.calls += 1
            entry.used = next(self._clock)
            if not repeated and self._entries.get(key) is entry:  # else it was dropped meanwhile
                self._last = key, entry
        return entry.step

    def keep(self, key: StepKey, step: StepT) -> None:
        """Add the step of a call and count it; drop the least recently used step if need be."""
        with self._lock:
            self._last = None
            self._entries[key] = _Entry(step, 1, next(self._clock))
            if len(self._entries) > MOST_SIGNATURES:
                del self._entries[min(self._entries, key=lambda key: self._entries[key].used)]
            warn = len(self._entries) > self._expected and not self._warned
            self._warned = self._warned or warn
        if warn:
            _logger.warning("%s", self._warning())

    def clear(self) -> None:
        """Drop all of them."""
        with self._lock:
            self._entries.clear()
            self._last = None
            self._warned = False

    def signatures(self) -> list[JitSignature]:
        """Return all signatures in words, in the order in which they were compiled."""
        with self._lock:
            found = [(key, entry.calls) for key, entry in self._entries.items()]
        return [
            JitSignature(
                arguments_of(key), key.context, key.backend.name if key.backend else "", calls
            )
            for key, calls in found
        ]

    def _warning(self) -> str:
        forms: dict[str, dict[str, None]] = {}
        for signature in self.signatures():
            for name, text in signature.arguments.items():
                forms.setdefault(name, {})[text] = None
        name, found = max(forms.items(), key=lambda item: len(item[1]))
        few = " and ".join(f"`{clipped(text, 40)}`" for text in list(found)[:2])
        return (
            f"`{self._function}` was captured and compiled {len(self._entries)} times, argument"
            f" `{name}` in {len(found)} forms such as {few}: pad shapes to a few sizes, and pass"
            " numbers that change as tensors"
        )


def arguments_of(key: StepKey) -> dict[str, str]:
    """Return the arguments of a call in words, by name."""
    types = iter(key.types)
    pairs = zip(key.labels, key.structures, strict=True)
    return {label: show(structure, types) for label, structure in pairs}
