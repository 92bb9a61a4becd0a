"""The policy `benchmark`: the implementation that was fastest on operands of this kind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import cast

from gptrs.capture.backend_choice import chosen_backend
from gptrs.capture.caching.entry_key import entry_key
from gptrs.capture.caching.optimized_programs import optimized_programs
from gptrs.capture.caching.source_identity import package_of
from gptrs.capture.compilation import settings_for
from gptrs.capture.events import trace
from gptrs.capture.events.trace import ImplementationChoice
from gptrs.capture.graph import common_backend
from gptrs.capture.jitting.plain_structure import NotPlainError, plain_structure
from gptrs.capture.jitting.pytree import Structure, flatten
from gptrs.capture.jitting.pytree_nodes import Refusal
from gptrs.capture.tensor import Tensor
from gptrs.errors import GptrsError
from gptrs.functionals.dispatch.active_overrides import Arguments, Keywords
from gptrs.functionals.dispatch.implementation_timing import FunctionalCall, find_fastest
from gptrs.functionals.dispatch.registry import (
    PORTABLE,
    Implementation,
    find_implementation,
    implementation_names,
)
from gptrs.ir.size_guards import example_sizes
from gptrs.ir.symbolic_dim import SymbolicDim, UnknownSizeError, evaluated
from gptrs.memory_cache import MemoryCache
from gptrs.spans import span

_LOG = logging.getLogger("gptrs")
_SIZES = (2, 17, 257)
"""Symbolic sizes from which on implementations are timed anew: one token, a few texts, a prompt, a
long one. Each is a guard of the program that is captured."""


_decisions: dict[str, MemoryCache[Hashable, ImplementationChoice]] = {}
"""The fastest implementation by functional and kind of call."""
_said: set[str] = set()
"""Functionals for which it was logged that a call could not be timed."""


def run_fastest(functional: str, entries: int, args: Arguments, kwargs: Keywords) -> object:
    """Return the result of the implementation that is fastest on operands like these.

    The first call of a kind runs all that take it; the decision holds for calls with the same
    element types, shapes, other arguments and backend, and is kept for the last `entries` kinds,
    and on disk for later processes. Symbolic sizes are of one kind from one of `_SIZES` to the
    next, and have their example sizes in the race. Operands without a value, those of a capture,
    are timed with random ones; where these are integers, which may be indices, the portable
    implementation is used.
    """
    portable = find_implementation(functional, PORTABLE)
    given, sizes = (args, dict(kwargs)), example_sizes()
    operands: list[Tensor] = []
    try:
        structure = flatten(_mapped(given, lambda dim: evaluated(dim, sizes)), operands)
        kind = flatten(_mapped(given, _size_class), [])
        types = tuple(map(_operand_kind, operands))
        shapes = [tuple(evaluated(size, sizes) for size in x.shape) for x in operands]
    except Refusal as refusal:
        _say_once(functional, f"it cannot tell {refusal.problem} from others")
        return portable.run(args, kwargs)
    except (UnknownSizeError, KeyError):
        _say_once(functional, "no example of its sizes is known")
        return portable.run(args, kwargs)
    engine = common_backend([x.source for x in operands], functional) or chosen_backend()
    call = FunctionalCall(functional, args, kwargs, structure, operands, engine, shapes)
    return _fastest(call, kind, types, portable, entries).run(args, kwargs)


def choices() -> list[ImplementationChoice]:
    """Return all decisions that are remembered, of this process and on disk."""
    made = [choice for each in _decisions.values() for choice in each.values()]
    found = {(each.functional, each.operands, each.backend): each for each in made}
    for each in optimized_programs().choices():
        found.setdefault((each.functional, each.operands, each.backend), each)
    return sorted(found.values(), key=lambda each: (each.functional, each.operands, each.backend))


def _mapped(value: object, change: Callable[[int], object]) -> object:
    """Return `value` with `change` of each symbolic size in tuples, lists and dicts."""
    if isinstance(value, SymbolicDim):
        return change(cast("int", value))
    if type(value) in (tuple, list):
        items = [_mapped(item, change) for item in cast("Sequence[object]", value)]
        return tuple(items) if type(value) is tuple else items
    if type(value) is dict:
        named = cast("Mapping[str, object]", value)
        return {name: _mapped(item, change) for name, item in named.items()}
    return value


def _size_class(size: int) -> str:
    """Return the range of `_SIZES` that a symbolic size is in, which becomes a guard."""
    low = 1
    for bound in _SIZES:
        if not size >= bound:
            return f"{low}" if bound == low + 1 else f"{low}..{bound - 1}"
        low = bound
    return f"{low}.."


def _operand_kind(operand: Tensor) -> str:
    sizes = [_size_class(n) if isinstance(n, SymbolicDim) else str(n) for n in operand.shape]
    return f"{operand.dtype}[{', '.join(sizes)}]"


def _fastest(
    call: FunctionalCall,
    structure: Structure,
    types: tuple[str, ...],
    portable: Implementation,
    entries: int,
) -> Implementation:
    names = implementation_names(call.functional)
    rivals = [name for name in names if name != PORTABLE]
    if not rivals:
        return portable
    kind = (structure, types, call.abstract, call.engine, names)
    decisions = _decisions.get(call.functional)
    if decisions is None:
        decisions = _decisions.setdefault(call.functional, MemoryCache(entries))
    decisions.capacity = entries
    known = decisions.find(kind)
    if known is None:
        key = _key(call, structure, types, names)
        known = None if key is None else optimized_programs().find_choice(key)
        if known is None:
            operands = call.sample_operands()
            if operands is None:
                reason = "the values of integer operands are not known in a capture"
                _say_once(call.functional, reason)
                return portable
            with span("choose implementation", call.functional):
                seconds = find_fastest(call, portable, rivals, operands)
            if seconds is None:
                return portable
            name = min(seconds, key=lambda each: seconds[each])
            known = ImplementationChoice(
                call.functional, name, types, call.engine.name, tuple(seconds.items())
            )
            if key is not None:
                optimized_programs().keep_choice(key, known)
        known = decisions.keep(kind, known)
        _tell(known)
    elif any(call.abstract):
        _tell(known)
    fastest = find_implementation(call.functional, known.implementation)
    # It took the sizes that were timed, and may decline others of their class.
    return portable if fastest.refusal(call.args, call.kwargs) is not None else fastest


def _tell(choice: ImplementationChoice) -> None:
    for sink in trace.sinks():
        sink.after_choice(choice)


def _key(
    call: FunctionalCall, structure: Structure, types: tuple[str, ...], names: tuple[str, ...]
) -> str | None:
    """Return the name of a decision on disk; None where all that decides it is not known."""
    try:
        functions = [find_implementation(call.functional, name).function for name in names]
        plain = plain_structure(structure)
    except (NotPlainError, GptrsError):  # one that is broken is left out, and told of, by the race
        return None
    packages = {package_of(str(getattr(each, "__module__", ""))) for each in functions}
    threads: object = getattr(call.engine, "threads", None)
    engine = (call.engine.precision, threads)
    settings = settings_for(call.engine)
    known = (call.functional, plain, types, call.abstract, engine, settings, names)
    return entry_key(known, call.engine, packages)


def _say_once(functional: str, reason: str) -> None:
    if functional not in _said:
        _said.add(functional)
        _LOG.info("`benchmark` of `%s` uses `%s` for a call: %s", functional, PORTABLE, reason)
