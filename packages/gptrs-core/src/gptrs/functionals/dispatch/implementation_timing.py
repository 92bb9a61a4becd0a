"""Runs the implementations of a functional on the operands of a call and finds the fastest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context, copy_context
from typing import cast

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.capture.backend_choice import use_backend
from gptrs.capture.jitting.jit import jit
from gptrs.capture.jitting.pytree import Structure, flatten, rebuild
from gptrs.capture.tensor import Tensor, flush
from gptrs.functionals.dispatch.active_overrides import ACTIVE, Arguments, Keywords, entered
from gptrs.functionals.dispatch.agreement import disagreement
from gptrs.functionals.dispatch.registry import Implementation, find_implementation
from gptrs.quick_dataclass import dataclass

RUNS = 5
"""Timed runs of an implementation, after one that is not timed; the fastest counts."""
BUDGET_S = 0.5
"""Seconds of timed runs after which no other is begun."""
_SEED = 2025
_LOG = logging.getLogger("gptrs")


@dataclass(frozen=True)
class FunctionalCall:
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
        """Which operands depend on placeholders, so that they have no value."""
        return tuple(operand.source.abstract for operand in self.operands)

    def run(self, implementation: Implementation, operands: Iterator[Tensor]) -> list[Tensor]:
        """Return the results of an implementation with `operands` in place of the call's."""
        args, kwargs = cast("tuple[Arguments, Keywords]", rebuild(self.structure, operands))
        results: list[Tensor] = []
        flatten(implementation.run(args, kwargs), results)
        return results

    def sample_operands(self) -> list[Tensor] | None:
        """Return operands with values: random floats for abstract ones; None if integers are.

        An integer may be an index or a length, for which a random one will not do.
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

    None if the portable one fails, so that there is nothing to compare with. Leaves out those that
    decline the call and, with a warning, those that fail or give another result.
    """
    active = ACTIVE.get()
    # Implementations are asked about the call itself, whose symbolic sizes guards decide.
    asked = copy_context()

    def race() -> dict[str, float] | None:
        with entered(active), use_backend(call.engine):
            return _race(call, portable, names, operands, asked)

    # In a context of its own: in that of a capture, what is compiled would become part of it.
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
    """An implementation is left out of the race; `reason` is None if it declined the call."""

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
    """Return a run like that of the call: replayed if operands are abstract, else captured anew."""
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
