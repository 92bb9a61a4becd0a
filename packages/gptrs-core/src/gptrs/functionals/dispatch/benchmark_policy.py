"""The policy `benchmark`: use the implementation that was fastest on operands of the same kind."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import Context, copy_context
from typing import cast

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs.capture import events
from gptrs.capture.caching.optimized_programs import optimized_programs
from gptrs.capture.caching.program_key import entry_key
from gptrs.capture.caching.source_identity import package_of
from gptrs.capture.compilation import settings_for
from gptrs.capture.events import ImplementationChoice
from gptrs.capture.execute import chosen_backend, use_backend
from gptrs.capture.graph import common_backend
from gptrs.capture.jitting.captured_function import NotPlainError, plain_structure
from gptrs.capture.jitting.jit import jit
from gptrs.capture.jitting.pytree import Refusal, Structure, flatten, rebuild
from gptrs.capture.tensor import Tensor, flush
from gptrs.errors import GptrsError
from gptrs.functionals.dispatch.active_overrides import ACTIVE, Arguments, Keywords, entered
from gptrs.functionals.dispatch.registry import (
    PORTABLE,
    Implementation,
    find_implementation,
    implementation_names,
)
from gptrs.ir.dtypes import DType
from gptrs.ir.size_guards import example_sizes
from gptrs.ir.symbolic_dim import SymbolicDim, UnknownSizeError, evaluated
from gptrs.ir.tensor_type import TensorType
from gptrs.memory_cache import MemoryCache
from gptrs.spans import span

# Errors of arrays, and whether they are within the tolerance of their type.


def absolute_errors(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return `|found - expected|` in f64: 0 where both are the same infinity or both are NaN.

    Infinite where one number is NaN or infinite and the other is not the same.
    """
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    actual, wanted = found.astype(wide), expected.astype(wide)
    same = (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):  # inf - inf
        distance = np.abs(actual - wanted)
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def disagreement(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str | None:
    """Describe how results differ from the expected ones, None if they agree.

    Integers must be equal. Floats must agree in half of their digits: the error may be the square
    root of the machine epsilon, relative to the element plus the largest element. NaN and
    infinities must match.
    """
    if len(found) != len(expected):
        return f"it gives {len(found)} results instead of {len(expected)}"
    for result, wanted in zip(found, expected, strict=True):
        type_, due = TensorType.of(result), TensorType.of(wanted)
        if type_ != due:
            return f"it gives `{type_}` instead of `{due}`"
        if not _agree(result, wanted, due.dtype):
            return f"its `{type_}` is not that of the portable implementation"
    return None


def _agree(found: np.ndarray, expected: np.ndarray, dtype: DType) -> bool:
    if not (dtype.is_float or dtype.is_complex):
        return np.array_equal(found, expected)
    tolerance = _machine_epsilon(dtype) ** 0.5
    size = np.abs(expected.astype(np.complex128 if dtype.is_complex else np.float64))
    size[~np.isfinite(size)] = 0
    peak = size.max(initial=0.0)
    return bool((absolute_errors(found, expected) <= tolerance * (size + peak)).all())


def _machine_epsilon(dtype: DType) -> float:
    one = np.abs(np.ones((), dtype.numpy))  # a real number even for complex types
    return float(np.abs(np.nextafter(one, one + one) - one))


# Runs the implementations of a functional on the operands of a call and finds the fastest.


RUNS = 5
"""Timed runs of an implementation, after an untimed one; the fastest counts."""
BUDGET_S = 0.5
"""No further run starts after this many seconds of timed runs."""
_SEED = 2025
_LOG = logging.getLogger("gptrs")


class FunctionalCall(Struct, frozen=True):
    """A call of a functional: its arguments, also flattened, and the backend they run on."""

    functional: str
    args: Arguments
    kwargs: Keywords
    structure: Structure
    operands: Sequence[Tensor]
    engine: Backend
    shapes: Sequence[tuple[int, ...]]
    """The shapes of operands in the race: numbers for symbols, as `structure` has them."""

    @property
    def abstract(self) -> tuple[bool, ...]:
        """Which operands depend on placeholders and so have no value."""
        return tuple(operand.source.abstract for operand in self.operands)

    def run(self, implementation: Implementation, operands: Iterator[Tensor]) -> list[Tensor]:
        """Return the results of an implementation with `operands` instead of the call's."""
        args, kwargs = cast("tuple[Arguments, Keywords]", rebuild(self.structure, operands))
        results: list[Tensor] = []
        flatten(implementation.run(args, kwargs), results)
        return results

    def sample_operands(self) -> list[Tensor] | None:
        """Return operands with values, random floats for abstract ones; None if integers are
        abstract.

        An integer may be an index or a length, which random values cannot replace.
        """
        missing = [x for x in self.operands if x.source.abstract]
        if any(x.dtype.is_integer for x in missing):
            return None
        generator = np.random.default_rng(_SEED)
        return [
            _random_like(x, shape, generator) if x.source.abstract else x
            for x, shape in zip(self.operands, self.shapes, strict=True)
        ]


def find_fastest(
    call: FunctionalCall, portable: Implementation, names: Sequence[str], operands: Sequence[Tensor]
) -> dict[str, float] | None:
    """Return the seconds of `portable` and of the implementations called `names` on `operands`.

    None if the portable one fails, since it is the reference. Implementations that decline the call
    are left out, and with a warning those that fail or disagree.
    """
    active = ACTIVE.get()
    # `declines` sees the call itself, with symbolic sizes that guards decide.
    asked = copy_context()

    def race() -> dict[str, float] | None:
        with entered(active), use_backend(call.engine):
            return _race(call, portable, names, operands, asked)

    # In a separate context: within a capture, the timed ops would become part of it.
    return Context().run(race)


def _race(
    call: FunctionalCall,
    portable: Implementation,
    names: Sequence[str],
    operands: Sequence[Tensor],
    asked: Context,
) -> dict[str, float] | None:
    flush(operands)
    try:
        expected, least = _timed(call, portable, operands)
    except Exception:  # the call itself is about to say it
        return None
    seconds = {portable.name: least}
    for name in names:
        try:
            seconds[name] = _rival(call, name, operands, expected, asked)
        except _LeftOutError as error:
            if error.reason is not None:
                _LOG.warning("`benchmark` of `%s` leaves out %s", call.functional, error.reason)
    return seconds


class _LeftOutError(Exception):
    """An implementation is excluded; `reason` is None if it declined the call."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason)
        self.reason = reason


def _rival(
    call: FunctionalCall,
    name: str,
    operands: Sequence[Tensor],
    expected: Sequence[np.ndarray],
    asked: Context,
) -> float:
    """Return the seconds of an implementation that agrees with the portable one."""
    try:
        rival = find_implementation(call.functional, name)
        declined = asked.run(rival.refusal, call.args, call.kwargs) is not None
        found, seconds = ([], 0.0) if declined else _timed(call, rival, operands)
    except Exception as error:  # whatever a plugin may raise
        message = " ".join(str(error).split())
        raise _LeftOutError(f"`{name}`: {type(error).__name__}: {message}") from error
    if declined:
        raise _LeftOutError(None)
    problem = disagreement(found, expected)
    if problem is not None:
        raise _LeftOutError(f"`{name}`: {problem}")
    return seconds


def _timed(
    call: FunctionalCall, implementation: Implementation, operands: Sequence[Tensor]
) -> tuple[list[np.ndarray], float]:
    """Return the results of an implementation, and the seconds of its fastest run."""
    step = _step(call, implementation, operands)
    values = _values(step)  # compiles
    least, spent, runs = float("inf"), 0.0, 0
    while runs < RUNS and spent < BUDGET_S:
        started = time.perf_counter()
        _values(step)
        seconds = time.perf_counter() - started
        least, spent, runs = min(least, seconds), spent + seconds, runs + 1
    return values, least


def _values(step: Callable[[], list[Tensor]]) -> list[np.ndarray]:
    results = step()
    flush(results)
    return [result.numpy() for result in results]


def _step(
    call: FunctionalCall, implementation: Implementation, operands: Sequence[Tensor]
) -> Callable[[], list[Tensor]]:
    """Return a run like the call's: replayed if operands are abstract, else captured again."""
    abstract = call.abstract
    if not any(abstract):
        return lambda: call.run(implementation, iter(operands))

    def compute(*given: Tensor) -> list[Tensor]:
        samples = iter(given)
        mixed = [next(samples) if t else x for x, t in zip(operands, abstract, strict=True)]
        return call.run(implementation, iter(mixed))

    replayed = jit(compute)
    given = [x for x, t in zip(operands, abstract, strict=True) if t]
    return lambda: replayed(*given)


def _random_like(x: Tensor, shape: tuple[int, ...], generator: np.random.Generator) -> Tensor:
    if x.dtype.is_bool:
        return Tensor.of_array(np.ones(shape, np.bool_))
    normal = generator.standard_normal(shape)
    return Tensor.of_array(np.asarray(normal).astype(x.dtype.numpy))


_SIZES = (2, 17, 257)
"""Symbolic sizes from which implementations are timed again: one token, a few texts, a prompt, a
long prompt. The range of a size becomes a guard of the captured program.
"""


_decisions: dict[str, MemoryCache[Hashable, ImplementationChoice]] = {}
"""The fastest implementation by functional and kind of call."""
_said: set[str] = set()
"""Functionals whose untimed call has already been logged."""


def run_fastest(functional: str, entries: int, args: Arguments, kwargs: Keywords) -> object:
    """Return the result of the implementation that is fastest on operands like these.

    The first call of a kind runs all implementations that accept it. The decision holds for calls
    with the same element types, shapes, other arguments and backend; it is remembered for the last
    `entries` kinds, and on disk for later processes. Symbolic sizes between two of `_SIZES` are of
    one kind, and are timed at their example sizes. Operands without values, during a capture, are
    replaced by random ones; if they are integers, which may be indices, the portable implementation
    is used.
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
    """Return all stored decisions, of this process and on disk."""
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
    # It accepted the timed sizes, but may decline others of their class.
    return portable if fastest.refusal(call.args, call.kwargs) is not None else fastest


def _tell(choice: ImplementationChoice) -> None:
    for sink in events.sinks():
        sink.after_choice(choice)


def _key(
    call: FunctionalCall, structure: Structure, types: tuple[str, ...], names: tuple[str, ...]
) -> str | None:
    """Return the name of a decision on disk; None if a part of its key is unknown."""
    try:
        functions = [find_implementation(call.functional, name).function for name in names]
        plain = plain_structure(structure)
    except (NotPlainError, GptrsError):  # the race excludes and reports broken ones
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
