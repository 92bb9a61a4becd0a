"""Random inputs for a program, special values among them."""

from __future__ import annotations

import numpy as np

from gptrs.ir.program import Program
from gptrs_conformance.program_generator.dice import Dice
from gptrs_conformance.program_generator.elements import Style, random_literal

STYLES: tuple[Style, ...] = ("ordinary", "special", "special", "mild")


def random_inputs(program: Program, seed: int) -> dict[str, np.ndarray]:
    """Return an array for each parameter of `@main` by the names of `program.inputs`.

    Floats include NaN, infinities, -0.0 and the largest and smallest numbers, integers their
    extremes. The same for the same seed on every platform.
    """
    dice = Dice(seed)
    return {
        name: random_literal(dice, param.type, dice.pick(STYLES)).array.copy()
        for name, param in program.inputs.items()
    }
