"""Runs a model on `ref` again and again while its file of weights is cut, sooner or later.

Run as `python cut_in_a_step.py MODEL FILE BUDGET`; prints, as JSON, what came of each step.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import gptrs
from gptrs.errors import ModelError
from gptrs_backend_ref.backend import PreparedInstruction

MOMENTS = (0, 1, 20, 60)
"""How many instructions run before the file is cut."""


def main() -> None:
    """Load the model for each moment, and cut its file in the first step, or in the second."""
    model, file, budget = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    data = file.read_bytes()
    outcomes: list[str] = []
    for warm in (False, True):
        for moment in MOMENTS:
            outcomes.append(step(model, file, budget, moment, warm))
            file.write_bytes(data)
    print(json.dumps(outcomes))


def step(model: str, file: Path, budget: str, moment: int, warm: bool) -> str:
    """Run a step in which the file is cut; return the error."""
    loaded = gptrs.load_model(model, "ref", weight_budget=budget)
    if warm:
        loaded.forward(np.array([[1, 2, 3]]))
    run, left = PreparedInstruction.run, moment

    def cutting(
        self: PreparedInstruction, operands: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        nonlocal left
        left -= 1
        if left == -1:
            os.truncate(file, 4096)
        return run(self, operands)

    PreparedInstruction.run = cutting
    try:
        loaded.forward(np.array([[4, 5, 6]]))
    except ModelError as error:
        return str(error)
    finally:
        PreparedInstruction.run = run
    return "a result"


if __name__ == "__main__":
    main()
