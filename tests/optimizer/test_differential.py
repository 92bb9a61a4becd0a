"""Random programs compute the same bits before and after each pass, and before and after all.

A few hundred of them; `make fuzz` has a hundred thousand.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from fuzzing.differential import difference, evaluate, examine
from gptrs.ir import Program, print_program, verify
from gptrs.optimizer import optimize, recording
from gptrs.optimizer.evaluation import CHEAP
from gptrs.optimizer.pass_base import Pass
from gptrs.optimizer.pipeline import SPECIALIZATION, known_passes
from gptrs_conformance.program_generator import random_program
from optimizer.bait.rewrite_bait import baited_program

pytestmark = pytest.mark.long

SEEDS = range(200)
FIRED_AT_LEAST = 10
BAIT_WEIGHT = 200
"""The weight of left-hand sides of rewrites in the generated programs, against 19 of all else."""
PASSES = known_passes(evaluate)


def size(program: Program) -> int:
    """How many instructions there are that take time: not those that a backend makes on the way."""
    walked = (step for function in program.functions for step in function.body.walk())
    return sum(not isinstance(step.op, CHEAP) for step in walked)


def assert_same_bits(program: Program, optimized: Program, seed: int) -> None:
    flaw = difference(program, optimized, seed)
    assert flaw is None, f"seed {seed}: {flaw}\n{print_program(program)}"


@pytest.mark.sample(4)
@pytest.mark.parametrize("first", range(0, 600, 100))
def test_programs_of_all_sizes_keep_every_bit(first: int):
    tally = examine(range(first, first + 100))
    assert tally.flaws == {}
    assert tally.programs == 100
    assert tally.smaller >= 50


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_the_pipeline_keeps_every_bit_and_every_rewrite_fires(half):
    smaller: Counter[str] = Counter()
    with recording() as journal:
        for seed in SEEDS[half::2]:
            program = baited_program(seed, size=100, weight=BAIT_WEIGHT)
            verify(program)
            optimized = optimize(program, verify=True, evaluate=evaluate)
            smaller["programs"] += size(optimized) < size(program)
            assert size(optimized) <= size(program)
            assert optimize(optimized, evaluate=evaluate) is optimized
            assert_same_bits(program, optimized, seed)
    expected = {rewrite.name for rewrite in SPECIALIZATION.rewrites}
    rare = {name: journal.fired[name] for name in expected if journal.fired[name] < FIRED_AT_LEAST}
    assert rare == {}
    assert smaller["programs"] >= len(SEEDS) // 4


@cache
def programs() -> list[Program]:
    """The same for all passes: to generate them takes longer than a pass."""
    plain = [random_program(seed, size=40) for seed in SEEDS[:40]]
    return plain + [baited_program(seed, size=80, weight=BAIT_WEIGHT) for seed in SEEDS[:30]]


@pytest.mark.sample(5)
@pytest.mark.parametrize("pass_", PASSES, ids=lambda pass_: pass_.name)
def test_each_pass_keeps_every_bit(pass_: Pass):
    changed = unstable = 0
    for seed, program in enumerate(programs()):
        after = pass_.apply(program)
        verify(after)
        changed += after is not program
        again = pass_.apply(after)
        verify(again)
        unstable += again is not after
        assert pass_.apply(again) is again
        assert_same_bits(program, again, seed)
    assert changed >= 8
    # Patches of a pad look through more values than a pattern reaches: that the last other reader
    # of one goes in the same sweep is seen in the next one, for which the pipeline has rounds.
    assert unstable <= 1


@pytest.mark.whole
@pytest.mark.parametrize("seed", SEEDS[:20])
def test_the_same_program_is_optimized_in_the_same_way(seed: int):
    first, second = (print_program(optimize(random_program(seed))) for _ in range(2))
    assert first == second
