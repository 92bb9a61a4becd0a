"""Random programs compute the same bits before and after each pass, and before and after all."""

from __future__ import annotations

from collections import Counter

import pytest

from gptrs.ir import Program, print_program, verify
from gptrs.optimizer import optimize, recording
from gptrs.optimizer.pass_base import Pass
from gptrs.optimizer.pipeline import CANONICALIZATION, known_passes
from gptrs.testing.program_generator import random_inputs, random_program
from optimizer.reference import evaluate, run

SEEDS = range(400)
FIRED_AT_LEAST = 100
PASSES = known_passes(evaluate)


def size(program: Program) -> int:
    return sum(1 for function in program.functions for _ in function.body.walk())


def assert_same_bits(program: Program, optimized: Program, seed: int) -> None:
    inputs = random_inputs(program, seed)
    before = run(program, inputs)
    after = run(optimized, inputs)
    for position, (old, new) in enumerate(zip(before, after, strict=True)):
        same = old.dtype == new.dtype and old.shape == new.shape and old.tobytes() == new.tobytes()
        where = f"result {position} of seed {seed}"
        assert same, f"{where}:\n{print_program(program)}\n{print_program(optimized)}"


def test_the_pipeline_keeps_every_bit_and_every_rewrite_fires():
    smaller: Counter[str] = Counter()
    with recording() as journal:
        for seed in SEEDS:
            program = random_program(seed, size=40)
            verify(program)
            optimized = optimize(program, verify=True, evaluate=evaluate)
            smaller["programs"] += size(optimized) < size(program)
            assert size(optimized) <= size(program)
            assert optimize(optimized, evaluate=evaluate) is optimized
            assert_same_bits(program, optimized, seed)
    expected = {rewrite.name for rewrite in CANONICALIZATION.rewrites}
    assert {name for name in expected if journal.fired[name] < FIRED_AT_LEAST} == set()
    assert smaller["programs"] >= FIRED_AT_LEAST


@pytest.mark.parametrize("pass_", PASSES, ids=lambda pass_: pass_.name)
def test_each_pass_keeps_every_bit(pass_: Pass):
    changed = 0
    for seed in SEEDS[:100]:
        program = random_program(seed, size=40)
        after = pass_.apply(program)
        verify(after)
        changed += after is not program
        assert pass_.apply(after) is after
        assert_same_bits(program, after, seed)
    assert changed >= 30


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_the_same_program_is_optimized_in_the_same_way(seed: int):
    first, second = (print_program(optimize(random_program(seed))) for _ in range(2))
    assert first == second
