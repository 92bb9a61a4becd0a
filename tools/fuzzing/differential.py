"""Optimizes random programs and runs both forms on the reference backend, bit against bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from gptrs.backend.contract import InputRole
from gptrs.ir import Program, dtypes, print_program, verify
from gptrs.optimizer import recording
from gptrs.optimizer.pipeline import PassRun, Pipeline, instruction_count
from gptrs_backend_ref.backend import create
from gptrs_conformance.program_generator import random_inputs
from gptrs_conformance.program_generator.dice import Dice
from optimizer.bait.rewrite_bait import baited_program

REF = create(None)
"""What says which results are right."""
SIZES = (3, 6, 10, 16, 24, 40)
BAIT_WEIGHTS = (0, 10, 40, 100)


@dataclass
class Tally:
    """What came of some programs."""

    programs: int = 0
    smaller: int = 0
    """How many of them lost instructions."""
    fired: Counter[str] = field(default_factory=Counter[str])
    """How often each rewrite was applied."""
    changed: Counter[str] = field(default_factory=Counter[str])
    """How many programs each pass changed."""
    flaws: dict[int, str] = field(default_factory=dict[int, str])
    """What is wrong, by seed."""

    def add(self, other: Tally) -> None:
        """Count what `other` counted."""
        self.programs += other.programs
        self.smaller += other.smaller
        self.fired.update(other.fired)
        self.changed.update(other.changed)
        self.flaws.update(other.flaws)


def examine(seeds: Iterable[int]) -> Tally:
    """Optimize and compare the program of each seed, every pass checked by the verifier."""
    tally = Tally()
    with recording() as journal:
        for seed in seeds:
            program = program_of(seed)
            tally.programs += 1
            try:
                runs: list[PassRun] = []
                pipeline = Pipeline(verify=True, evaluate=evaluate, observe=runs.append)
                optimized = pipeline.run(program)
                tally.changed.update({run.name for run in runs if run.changed})
                tally.smaller += instruction_count(optimized) < instruction_count(program)
                flaw = difference(program, optimized, seed)
            except Exception as error:
                flaw = f"{type(error).__name__}: {error}"
            if flaw is not None:
                tally.flaws[seed] = f"{flaw}\n{print_program(program)}"
    tally.fired = journal.fired
    return tally


def program_of(seed: int) -> Program:
    """The program of a seed: of any size, with few or many instances of what rewrites look for."""
    dice = Dice(seed)
    return baited_program(seed, dice.pick(SIZES), dice.pick(BAIT_WEIGHTS))


def difference(program: Program, optimized: Program, seed: int) -> str | None:
    """What another result the optimized program gives for the inputs of a seed; None if none."""
    inputs = random_inputs(program, seed)
    before, after = run(program, inputs), run(optimized, inputs)
    verify(optimized)
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if not _same(old, new):
            return f"result {number} was\n{old!r}\nand is\n{new!r}\nin\n{print_program(optimized)}"
    return None


def run(program: Program, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The results of `program` as it is on the reference backend, in the order of return."""
    executable = REF.compile(program, [InputRole.ARGUMENT] * len(inputs))
    results = executable.run([REF.to_device(array) for array in inputs.values()])
    return [REF.to_host(result) for result in results]


def evaluate(program: Program) -> list[np.ndarray]:
    """The results of a program without parameters."""
    return run(program, {})


def _same(old: np.ndarray, new: np.ndarray) -> bool:
    """Whether all bits are the same, but for those of NaN, which PTIR leaves open."""
    if old.dtype != new.dtype or old.shape != new.shape:
        return False
    return old.tobytes() == new.tobytes() or _with_plain_nan(old) == _with_plain_nan(new)


def _with_plain_nan(array: np.ndarray) -> bytes:
    if dtypes.from_numpy(array.dtype).is_complex:
        array = array.view(array.real.dtype)
    if dtypes.from_numpy(array.dtype).is_float:
        with np.errstate(invalid="ignore"):
            number = array == array
        array = np.where(number, array, np.array(np.nan, array.dtype))
    return array.tobytes()
