"""Large values live shortly: their last readers run early, and cheap ones are computed again."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.backend.contract import InputRole
from gptrs.capture.optimization import optimize
from gptrs.ir.program import Function, Program, Region, verify
from gptrs_backend_numba.passes import lifetimes
from gptrs_conformance.program_generator import random_inputs, random_program

WIDE = (256, 64)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetimes, "_LARGE", 1)
    monkeypatch.setattr(lifetimes, "_FAR", 8)
    monkeypatch.setattr(lifetimes, "_NEAR", 6)


def sparing(program: Program) -> Program:
    body = lifetimes.sparing(program.main.body)
    others = tuple(each for each in program.functions if each is not program.main)
    found = Program((*others, Function("main", body)))
    verify(found)
    return found


def kept(region: Region, loss_at: int) -> int:
    """Return how many wide values are made before an instruction and read behind it."""
    made = {v for each in region.instructions[:loss_at] for v in each.results}
    read = {v for each in region.instructions[loss_at:] for v in each.operands}
    return sum(v.type.shape == WIDE for v in made & read)


def test_a_gated_layer_keeps_two_wide_values_and_frees_them_with_its_gradients() -> None:
    def loss(weights: list[list[gptrs.Tensor]], x: gptrs.Tensor) -> gptrs.Tensor:
        for gate, up, down in weights:
            x = x + (F.silu(x @ gate) * (x @ up)) @ down
        return F.sum(x * x)

    rng = np.random.default_rng(0)
    shapes = ((16, 64), (16, 64), (64, 16))
    weights = [[rng.standard_normal(s).astype(np.float32) / 8 for s in shapes] for _ in range(4)]
    x = rng.standard_normal((256, 16)).astype(np.float32)
    reference = gptrs.get_backend("ref")
    captured = gptrs.jit(gptrs.value_and_grad(loss)).lower(weights, x)
    before = optimize(captured, reference, None, False, None).program
    after = sparing(before)

    def at_loss(program: Program) -> int:
        body = program.main.body
        made = (body.results[0] in each.results for each in body.instructions)
        return kept(body, [*made].index(True))

    # Five of each layer before; one of the last layer is read nearby.
    assert (at_loss(before), at_loss(after)) == (20, 9)
    _require_same(before, after, [*(w for layer in weights for w in layer), x])


def test_any_program_has_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetimes, "_FAR", 3)
    monkeypatch.setattr(lifetimes, "_SEVERAL", -1)
    changed = 0
    for seed in range(40):
        program = random_program(seed, size=40)
        found = sparing(program)
        changed += str(found) != str(program)
        _require_same(program, found, [*random_inputs(program, seed).values()])
    assert changed > 10


def _require_same(one: Program, other: Program, inputs: list[np.ndarray]) -> None:
    roles = [InputRole.ARGUMENT] * len(inputs)
    backend = gptrs.get_backend("ref")
    found = [backend.compile(each, roles).run(inputs) for each in (one, other)]
    for first, second in zip(*found, strict=True):
        assert np.asarray(first).tobytes() == np.asarray(second).tobytes()
