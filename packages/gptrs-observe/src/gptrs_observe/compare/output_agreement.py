"""How far the outputs of an imported model are from those expected."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gptrs.errors import ModelError, UsageError
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import listed
from gptrs_observe.compare.agreement import Agreement, agreement


def output_agreements(
    ours: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> tuple[Agreement, ...]:
    """Compare outputs by name, those of `expected`.

    Integers that differ are infinitely far apart relative to their range. UsageError where nothing
    is expected, or of an output that there is not; ModelError where shapes or kinds of elements
    differ.
    """
    unknown = [name for name in expected if name not in ours]
    if unknown or not expected:
        raise UsageError(
            f"no output is called {listed(unknown)}" if unknown else "nothing is expected",
            hint=f"the outputs are {listed(ours, most=8)}",
        )
    return tuple(_agreement(name, ours[name], wanted) for name, wanted in expected.items())


def _agreement(name: str, ours: np.ndarray, theirs: np.ndarray) -> Agreement:
    exact = theirs.dtype.kind in "iub"
    if exact != (ours.dtype.kind in "iub") or ours.shape != theirs.shape:
        raise ModelError(
            f"`{name}` cannot be compared: `{TensorType.of(ours)}` here,"
            f" `{TensorType.of(theirs)}` expected"
        )
    if not theirs.size:
        return Agreement(name, str(TensorType.of(ours)), 0.0, 0.0, 0.0)
    found = agreement(name, ours, theirs)
    if not exact:
        return found
    return Agreement(name, found.type, found.max_error, found.mean_error, 0.0)
