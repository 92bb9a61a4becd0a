"""Learning rates by step: functions of the number of updates made so far, part of the program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Literal

from gptrs import functionals as F
from gptrs.api.models import Tensor

Schedule = Callable[[Tensor], Tensor | float]
"""The learning rate f32 [] after `count` updates, f32 []; the first update has `count` 0."""
Form = Literal["constant", "linear", "cosine", "inverse_sqrt"]
_TIMESCALE: Final = 10_000
FORMS: Final[tuple[Form, ...]] = ("constant", "linear", "cosine", "inverse_sqrt")


def constant(rate: float) -> Schedule:
    """Return a schedule with a constant rate."""
    return lambda count: rate


def linear(start: float, end: float, steps: int) -> Schedule:
    """Return the straight line from `start` at 0 to `end` at `steps`, and `end` after it."""
    return lambda count: start + (end - start) * F.minimum(count / max(steps, 1), 1.0)


def cosine(rate: float, steps: int, least: float = 0.0) -> Schedule:
    """Return half a cosine from `rate` to `least` at `steps` (Loshchilov and Hutter 2017)."""

    def at(count: Tensor) -> Tensor:
        share = F.minimum(count / max(steps, 1), 1.0)
        return least + (rate - least) * 0.5 * (1.0 + F.cos(share * math.pi))

    return at


def inverse_sqrt(rate: float, steps: int) -> Schedule:
    """Return `rate * sqrt(steps / (steps + count))`: half of `rate` after 3 times `steps`."""
    return lambda count: rate * F.rsqrt(1.0 + count / max(steps, 1))


def warmed(schedule: Schedule, steps: int, rate: float) -> Schedule:
    """Return `schedule` after a warm-up of `steps` updates that rises linearly to `rate`.

    Update n of these, from 0, has `rate * (n + 1) / (steps + 1)`, as in nanoGPT: the first update
    of a line from 0 would change nothing.
    """
    if not steps:
        return schedule

    def at(count: Tensor) -> Tensor:
        rising = rate * (count + 1.0) / (steps + 1.0)
        return F.where(count < steps, rising, schedule(F.maximum(count - steps, 0.0)))

    return at


def schedule_of(form: Form, rate: float, steps: int, warmup: int, least: float = 0.0) -> Schedule:
    """Return the schedule of a run of `steps` updates, whose first `warmup` rise to `rate`.

    The time scale of `inverse_sqrt` is the warm-up, without one 10,000 updates, as in transformers.
    """
    rest = max(steps - warmup, 1)
    after: Schedule = {
        "constant": lambda: constant(rate),
        "linear": lambda: linear(rate, least, rest),
        "cosine": lambda: cosine(rate, rest, least),
        "inverse_sqrt": lambda: inverse_sqrt(rate, warmup or _TIMESCALE),
    }[form]()
    return warmed(after, warmup, rate)
