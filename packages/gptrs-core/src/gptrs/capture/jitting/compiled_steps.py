"""The compiled signatures of one function, with call counts; the least recently used are
dropped."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gptrs.backend.contract import Backend
from gptrs.capture.jitting.dynamic_axes import AxisPlan
from gptrs.capture.jitting.pytree import Structure, show
from gptrs.fork_safe_lock import ForkSafeLock
from gptrs.ir.size_guards import SizeGuards
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import clipped

MOST_SIGNATURES = 512
"""Signatures kept for one function."""
MANY_SIGNATURES = 64
"""Beyond this number of signatures, a function is probably captured for every call, so warn."""

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


class JitSignature(Struct, frozen=True):
    """A signature for which a function was compiled, in readable form."""

    arguments: Mapping[str, str]
    """The name of each argument, with the types of its tensors or its value."""
    context: tuple[Hashable, ...]
    """Ambient state: the overrides of functionals."""
    backend: str
    calls: int
    """Calls served."""
    guards: tuple[str, ...] = ()
    """Additional conditions on the sizes of `dynamic` axes: `N >= 17`."""

    def __str__(self) -> str:
        listed = ", ".join(f"{name}: {text}" for name, text in self.arguments.items())
        where = f" where {', '.join(self.guards)}" if self.guards else ""
        return f"({listed}){where} on {self.backend}, called {self.calls}x"


StepT = TypeVar("StepT")


class SymbolicKey(Struct, frozen=True):
    """The key of a call with symbols instead of its named sizes, and these sizes."""

    key: StepKey
    sizes: tuple[int, ...]
    plan: AxisPlan

    def on(self, backend: Backend, settings: Hashable) -> SymbolicKey:
        """Return the key of the same call on `backend`."""
        return replace(self, key=self.key._replace(backend=backend, settings=settings))


class _Entry(Struct, Generic[StepT]):
    key: StepKey
    step: StepT
    calls: int
    used: int
    """Clock of the last use, for LRU eviction."""
    plan: AxisPlan | None = None
    guards: SizeGuards | None = None

    def words(self) -> JitSignature:
        """Return the signature in words."""
        named = self.plan.named if self.plan else str
        arguments = {label: named(text) for label, text in arguments_of(self.key).items()}
        guards = tuple(map(named, self.guards.words())) if self.guards else ()
        backend = self.key.backend.name if self.key.backend else ""
        return JitSignature(arguments, self.key.context, backend, self.calls, guards)


class CompiledSteps(Generic[StepT]):
    """Thread-safe map of steps by key.

    A step with symbols serves all calls of a symbolic key whose sizes its guards accept: `bind`
    finds it at first, then `find` by the key of the call itself.
    """

    def __init__(self, function: str, expected: int = MANY_SIGNATURES) -> None:
        self._function = function
        self._expected = expected
        self._entries: dict[StepKey, list[_Entry[StepT]]] = {}
        self._bound: dict[StepKey, tuple[_Entry[StepT], StepT]] = {}
        """Steps by exact key of the call, with its sizes."""
        # The last hit: comparing keys is faster than hashing all types of one.
        self._last: tuple[StepKey, tuple[_Entry[StepT], StepT]] | None = None
        self._clock = itertools.count()
        self._lock = ForkSafeLock()
        self._warned = False

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def find(self, key: StepKey) -> StepT | None:
        """Return the step of a call and count the call; None if there is no step."""
        # Read once, without the lock: another thread may replace it at any time.
        last = self._last
        repeated = last is not None and last[0] == key
        found = last[1] if last is not None and repeated else self._bound.get(key)
        if found is None:
            return None
        entry, step = found
        with self._lock.inner:
            entry.calls += 1
            entry.used = next(self._clock)
            if not repeated and self._bound.get(key) is found:  # otherwise it was dropped meanwhile
                self._last = key, found
        return step

    def bind(
        self, key: StepKey, symbolic: SymbolicKey, at: Callable[[StepT], StepT]
    ) -> StepT | None:
        """Return `at(step)` for the first step whose guards accept the sizes, and count the call.

        From now on, `find` returns it for `key`. None if there is none.
        """
        sizes = dict(enumerate(symbolic.sizes))
        with self._lock:
            for entry in self._entries.get(symbolic.key, ()):
                if entry.guards is None or entry.guards.accept(sizes):
                    entry.calls += 1
                    entry.used = next(self._clock)
                    return self._remember(key, entry, at(entry.step))
        return None

    def keep(
        self,
        key: StepKey,
        step: StepT,
        symbolic: SymbolicKey | None = None,
        guards: SizeGuards | None = None,
        bound: StepT | None = None,
    ) -> None:
        """Add the step of a call and count the call; drop the least recently used step if full.

        With `symbolic` it serves all sizes that `guards` accept; `bound` is the step for this
        call's sizes.
        """
        with self._lock:
            # It may be of a step that is about to be dropped.
            self._last = None
            if symbolic is None:
                entry = _Entry(key, step, 1, next(self._clock))
                self._entries[key] = [entry]
            else:
                entry = _Entry(symbolic.key, step, 1, next(self._clock), symbolic.plan, guards)
                self._entries.setdefault(symbolic.key, []).append(entry)
            if len(self) > MOST_SIGNATURES:
                self._drop(min(self._all(), key=lambda entry: entry.used))
            self._remember(key, entry, step if bound is None else bound)
            warn = len(self) > self._expected and not self._warned
            self._warned = self._warned or warn
        if warn:
            _logger.warning("%s", self._warning())

    def clear(self) -> None:
        """Drop all steps."""
        with self._lock:
            self._entries.clear()
            self._bound.clear()
            self._last = None
            self._warned = False

    def signatures(self) -> list[JitSignature]:
        """Return all signatures in readable form, in the order in which they were compiled."""
        with self._lock:
            return [entry.words() for entry in self._all()]

    def _all(self) -> list[_Entry[StepT]]:
        return [entry for entries in self._entries.values() for entry in entries]

    def _remember(self, key: StepKey, entry: _Entry[StepT], step: StepT) -> StepT:
        self._bound[key] = entry, step
        # Evict the oldest bound step, which can be bound again cheaply.
        if len(self._bound) > MOST_SIGNATURES:
            del self._bound[next(key for key in self._bound if key not in self._entries)]
        return step

    def _drop(self, dropped: _Entry[StepT]) -> None:
        kept = [entry for entry in self._entries[dropped.key] if entry is not dropped]
        if kept:
            self._entries[dropped.key] = kept
        else:
            del self._entries[dropped.key]
        for key in [key for key, (entry, _) in self._bound.items() if entry is dropped]:
            del self._bound[key]

    def _warning(self) -> str:
        forms: dict[str, dict[str, None]] = {}
        for signature in self.signatures():
            for name, text in signature.arguments.items():
                forms.setdefault(name, {})[text] = None
        name, found = max(forms.items(), key=lambda item: len(item[1]))
        few = " and ".join(f"`{clipped(text, 40)}`" for text in list(found)[:2])
        return (
            f"`{self._function}` was captured and compiled {len(self)} times, argument"
            f" `{name}` in {len(found)} forms such as {few}: name the axes that change in"
            " `dynamic`, and pass numbers that change as tensors"
        )


def arguments_of(key: StepKey) -> dict[str, str]:
    """Return the arguments of a call in words, by name."""
    types = iter(key.types)
    pairs = zip(key.labels, key.structures, strict=True)
    return {label: show(structure, types) for label, structure in pairs}
