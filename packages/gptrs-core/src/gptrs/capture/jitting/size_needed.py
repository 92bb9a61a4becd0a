"""The error for code that needs the number behind a `dynamic` axis while it is captured."""

from __future__ import annotations

import traceback
from pathlib import Path

from gptrs.capture.jitting.dynamic_axes import AxisPlan
from gptrs.errors import UsageError
from gptrs.ir.symbolic_dim import UnknownSizeError

_CORE = Path(__file__).parents[2]


def size_needed(error: UnknownSizeError, function: str, plan: AxisPlan) -> UsageError:
    """Return `error` with the line of the function's code that asked, and the axis in question."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _CORE not in Path(frame.filename).parents]
    frame = (own or frames)[-1]
    places = ", ".join(plan.place(number) for number in sorted(error.symbols))
    return UsageError(
        f"`{function}` needs the number behind {places} at {frame.filename}:{frame.lineno},"
        f" `{frame.line}`: {plan.named(error.question)}",
        hint="leave the axis out of `dynamic`, or compute by +, -, * and comparisons alone",
    )
