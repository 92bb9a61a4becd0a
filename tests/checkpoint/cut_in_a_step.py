"""Runs a model on `ref` again and again while its file of weights is cut, sooner or later.

Run as `python cut_in_a_step.py MODEL FILE BUDGET`; prints, as JSON, what came of each step.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

import gptrs
from gptrs.errors import ModelError
from gptrs_backend_ref import backend
from gptrs_backend_ref.backend import PreparedInstruction

MOMENTS = (0, 1, 20, 60)
"""How many instructions run before the file is cut."""


def main() -> None:
    """Load the model for each moment, and cut its file in the first step, or in the second."""
    model, file, budget = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    data = file.read_bytes()
    outcomes: list[str] = []
    moments: list[int] = []
    backend._step = cutting(file, moments, backend._step)
    for warm in (False, True):
        for moment in MOMENTS:
            outcomes.append(step(model, moments, budget, moment, warm))
            file.write_bytes(data)
    print(json.dumps(outcomes))


def cutting(
    file: Path, moments: list[int], step_of: Callable[..., PreparedInstruction]
) -> Callable[..., PreparedInstruction]:
    """Return `step_of` whose kernels count down the one of `moments`, and cut the file at 0."""

    def prepared(*args: object) -> PreparedInstruction:
        made = step_of(*args)

        def kernel(*args: Any, **bodies: Any) -> np.ndarray | tuple[np.ndarray, ...]:
            if moments:
                if moments[0] == 0:
                    os.truncate(file, 4096)
                moments[0] -= 1
            return made.kernel(*args, **bodies)

        return replace(made, kernel=kernel)

    return prepared


def step(model: str, moments: list[int], budget: str, moment: int, warm: bool) -> str:
    """Run a step in which the file is cut; return the error."""
    loaded = gptrs.load_model(model, "ref", weight_budget=budget)
    if warm:
        loaded.forward(np.array([[1, 2, 3]]))
    moments[:] = [moment]
    try:
        loaded.forward(np.array([[4, 5, 6]]))
    except ModelError as error:
        return str(error)
    finally:
        moments.clear()
    return "a result"


if __name__ == "__main__":
    main()
