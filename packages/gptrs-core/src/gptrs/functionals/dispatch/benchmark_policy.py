"""The policy `benchmark`: the implementation that was fastest on operands of this kind."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import field

from gptrs.capture.backend_choice import chosen_backend
from gptrs.capture.graph import common_backend
from gptrs.capture.jitting.pytree import flatten
from gptrs.capture.jitting.pytree_nodes import Refusal
from gptrs.capture.tensor import Tensor
from gptrs.functionals.dispatch.active_overrides import Arguments, Keywords
from gptrs.functionals.dispatch.implementation_timing import FunctionalCall, find_fastest
from gptrs.functionals.dispatch.registry import (
    PORTABLE,
    Implementation,
    find_implementation,
    implementation_names,
)
from gptrs.quick_dataclass import dataclass

_LOG = logging.getLogger("gptrs")


@dataclass()
class _Decisions:
    """The fastest implementation by kind of call, least recently used first; for all threads."""

    _kept: OrderedDict[Hashable, Implementation] = field(
        default_factory=OrderedDict[Hashable, Implementation]
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, kind: Hashable) -> Implementation | None:
        with self._lock:
            if kind in self._kept:
                self._kept.move_to_end(kind)
            return self._kept.get(kind)

    def keep(self, kind: Hashable, fastest: Implementation, entries: int) -> Implementation:
        """Remember a decision; one that another thread came to meanwhile stands."""
        with self._lock:
            fastest = self._kept.setdefault(kind, fastest)
            while len(self._kept) > entries:
                self._kept.popitem(last=False)
            return fastest


_decisions: dict[str, _Decisions] = {}
_said: set[str] = set()
"""Functionals for which it was logged that a call could not be timed."""


def run_fastest(functional: str, entries: int, args: Arguments, kwargs: Keywords) -> object:
    """Return the result of the implementation that is fastest on operands like these.

    The first call of a kind runs all that take it; the decision holds for calls with the same
    element types, shapes, other arguments and backend, and is kept for the last `entries` kinds.
    Operands without a value, those of a capture, are timed with random ones; where these are
    integers, which may be indices, the portable implementation is used.
    """
    portable = find_implementation(functional, PORTABLE)
    operands: list[Tensor] = []
    try:
        structure = flatten((args, dict(kwargs)), operands)
    except Refusal as refusal:
        _say_once(functional, f"it cannot tell {refusal.problem} from others")
        return portable.run(args, kwargs)
    engine = common_backend([x.source for x in operands], functional) or chosen_backend()
    call = FunctionalCall(functional, args, kwargs, structure, operands, engine)
    return _fastest(call, portable, entries).run(args, kwargs)


def _fastest(call: FunctionalCall, portable: Implementation, entries: int) -> Implementation:
    names = implementation_names(call.functional)
    rivals = [name for name in names if name != PORTABLE]
    if not rivals:
        return portable
    types = tuple(x.type for x in call.operands)
    kind = (call.structure, types, call.abstract, call.engine, names)
    decisions = _decisions.setdefault(call.functional, _Decisions())
    known = decisions.find(kind)
    if known is not None:
        return known
    operands = call.sample_operands()
    if operands is None:
        _say_once(call.functional, "the values of integer operands are not known in a capture")
        return portable
    found = find_fastest(call, portable, rivals, operands)
    return portable if found is None else decisions.keep(kind, found, entries)


def _say_once(functional: str, reason: str) -> None:
    if functional not in _said:
        _said.add(functional)
        _LOG.info("`benchmark` of `%s` uses `%s` for a call: %s", functional, PORTABLE, reason)
