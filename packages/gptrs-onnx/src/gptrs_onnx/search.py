"""The facts and values with which a call's sizes convert, and the errors that ask for them.

No module of ONNX is imported here: a process that finds a file's program on disk needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, TypeAlias

import numpy as np

from gptrs.api import GptrsError, UnsupportedError
from gptrs.api.importers import clipped
from gptrs_onnx.size_facts import Facts, Refused

Origins: TypeAlias = frozenset[str]
"""Names of inputs of a graph."""
SMALL: Final = 4096
"""Most elements of a constant that is known; larger ones are weights."""
STATIC: Final = Facts(static=True)
_MOST_TRIES: Final = 32
"""Most conversions that look for facts, after which all sizes are numbers."""


def shown(name: object) -> str:
    """Return a name from a file as messages show it: escaped and shortened."""
    return clipped(str(name), 60)


class NeedsKnownError(Exception):
    """Sizes depend on the values of these inputs, which must be known before the conversion.

    `refused` is the node that would do without them with facts about sizes, if there is one.
    """

    refused: Refused | None = None
    node: object = None
    """The node of the file's graph whose conversion asks."""

    def __init__(self, origins: Origins, why: str, value: object = None) -> None:
        """Take the inputs; `value` of the graph is what is to be known, if it has a name."""
        super().__init__(why)
        self.origins = origins
        self.value = value


class UnmetNeedError(Exception):
    """Values must be known, and depend on too much data; `error` says so to users."""

    def __init__(self, need: NeedsKnownError, error: GptrsError) -> None:
        super().__init__(str(error))
        self.need = need
        self.error = error


class SymbolsRefusedError(Exception):
    """A conversion failed at a node while sizes were symbols: facts about them may help.

    `always`: whatever the sizes are; else for sizes like those of the call.
    """

    def __init__(self, refused: Refused, always: bool) -> None:
        super().__init__("a graph needs facts about its sizes")
        self.refused = refused
        self.always = always


class Search:
    """The facts and values of a call, and others to try when the conversion is refused."""

    def __init__(
        self, sizes: Mapping[int, int] | None, facts: Facts, known: dict[str, NeedsKnownError]
    ) -> None:
        self.sizes = sizes
        self.facts = facts
        self.known = known
        self.always = False
        """Whether symbols were refused for all sizes."""
        self._others: Iterator[tuple[Facts, Mapping[str, NeedsKnownError]]] = iter(())
        self._reached = 0
        self._tries = 0

    def refuse(self, refusal: SymbolsRefusedError) -> None:
        """Take the next facts after a refusal under symbols."""
        self.always = refusal.always
        # New facts are asked for only where the conversion came further: otherwise the last guess
        # did not help.
        if refusal.refused.nodes > self._reached:
            self._others = _alone(refusal.refused.candidates(self.facts, self.sizes or {}))
        self._next(refusal.refused.nodes)

    def ask(self, need: NeedsKnownError, given: Mapping[str, np.ndarray]) -> None:
        """Take the values that are needed, or facts that make them unnecessary."""
        asked = {name: need for name in need.origins if name not in self.known}
        if self.facts.static and not asked:
            raise refused_values(need) from None
        refused = need.refused
        if self.facts.static or (need.__cause__ is None and asked):
            self.known |= asked
        elif refused is None:
            self._next(self._reached)
        else:
            if refused.nodes > self._reached:
                small = asked if all(given[name].size <= SMALL for name in asked) else {}
                facts, sizes = self.facts, self.sizes or {}
                self._others = chain(
                    _alone(refused.equalities(facts, sizes)),
                    [(facts, small)] if small else [],
                    _alone(refused.candidates(facts, sizes)),
                )
            self._next(refused.nodes)

    def _next(self, reached: int) -> None:
        self._reached = max(self._reached, reached)
        self._tries += 1
        last = STATIC, dict[str, NeedsKnownError]()
        # All sizes as numbers always convert, at the price of a program for each size.
        self.facts, asked = next(self._others, last) if self._tries < _MOST_TRIES else last
        self.known |= asked


def _alone(several: Iterable[Facts]) -> Iterator[tuple[Facts, Mapping[str, NeedsKnownError]]]:
    """Yield facts that need no values."""
    return ((facts, {}) for facts in several)


_CUT: Final = (
    "cut the model before it, by `onnx.utils.extract_model`, and compute the rest in Python"
)


def refused_values(need: NeedsKnownError, name: str = "", size: int = 0) -> GptrsError:
    """Return the error for values that must be known, and are computed, or those of a large input.

    If they would only have helped, that is what went wrong without them.
    """
    if isinstance(need.__cause__, GptrsError):
        return need.__cause__
    if not name:
        problem = f"{need} depends on values that are computed from data"
        return UnsupportedError(problem, hint=_CUT)
    return UnsupportedError(
        f"{need} depends on the values of the input `{shown(name)}`, which has {size} elements",
        hint=f"sizes may depend on inputs of at most {SMALL} elements; {_CUT}",
    )
