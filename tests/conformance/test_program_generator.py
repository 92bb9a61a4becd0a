"""Generated programs are valid, run anywhere without an error, and leave nothing of PTIR out."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from gptrs.backend.contract import Backend, InputRole
from gptrs.functionals.dispatch.registry import composite_names
from gptrs.ir import OPS, Instruction, Program, dtypes, print_program, verify
from gptrs.ir.ops.custom_call import Composite
from gptrs.ir.ops.elementwise import Neg
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.op_case import ROWS
from gptrs_conformance.program_generator import (
    EMITTERS,
    disagreement,
    programs_covering,
    random_inputs,
    random_program,
)
from gptrs_conformance.program_generator.draft import Draft

SEEDS = range(150)

FINGERPRINT = """
import hashlib
from gptrs.ir import print_program
from gptrs_conformance.program_generator import random_inputs, random_program
for seed in range(5):
    program = random_program(seed)
    inputs = b"".join(array.tobytes() for array in random_inputs(program, seed).values())
    print(hashlib.sha256(print_program(program).encode() + inputs).hexdigest())
"""


def instructions(program: Program) -> Iterator[Instruction]:
    for function in program.functions:
        yield from function.body.walk()


def key_of(instruction: Instruction) -> tuple[str, str]:
    operands = [value.type for value in instruction.operands]
    results = [value.type for value in instruction.results]
    return instruction.op.name, instruction.op.key_dtype(operands, results).name


def run(ref: Backend, program: Program, seed: int) -> list[np.ndarray]:
    inputs = random_inputs(program, seed)
    executable = ref.compile(program, [InputRole.ARGUMENT] * len(inputs))
    return [ref.to_host(result) for result in executable.run(list(inputs.values()))]


@pytest.fixture(scope="module")
def ref() -> Backend:
    reference = pytest.importorskip("gptrs_backend_ref.backend", reason="runs programs on it")
    return reference.create(None)


def test_extra_steps_are_mixed_in_by_weight():
    def negated(draft: Draft) -> None:
        x = draft.mild(dtypes.f32)
        draft.emit(Neg(), x, facts=draft.facts[x])

    def negations(program: Program) -> int:
        return sum(isinstance(step.op, Neg) for step in instructions(program))

    plain = random_program(3, size=60)
    unweighted = random_program(3, size=60, extra_steps=[negated])
    assert print_program(unweighted) == print_program(plain)
    mixed = random_program(3, size=60, extra_steps=[negated], extra_weight=190)
    verify(mixed)
    assert negations(mixed) >= 15 > negations(plain)


def test_every_op_of_today_has_an_emitter_of_its_own():
    assert {op.name for op in EMITTERS} == set(OPS) - {"custom_call"}


def test_an_op_without_an_emitter_is_written_from_its_cases(ref: Backend, monkeypatch):
    for name in ("tanh", "sort", "quantize", "iota"):
        monkeypatch.delitem(EMITTERS, OPS[name])
    found = set()
    for seed, program in enumerate(programs_covering(4)):
        verify(program)
        found.update(map(key_of, instructions(program)))
        run(ref, program, seed)
    wanted = {(name, d.name) for name in ("tanh", "sort", "quantize") for d in ROWS[OPS[name]]}
    assert wanted - found == set()


def test_covering_programs_have_every_op_on_every_type_that_it_takes(ref: Backend):
    """The legal types are those for which the conformance kit has rows."""
    found: set[tuple[str, str]] = set()
    for seed, program in enumerate(programs_covering(3)):
        verify(program)
        found.update(map(key_of, instructions(program)))
        run(ref, program, seed)
    wanted = {(op.name, dtype.name) for op, makers in ROWS.items() for dtype in makers}
    assert wanted - found == set()


def test_random_programs_are_valid_and_run_on_any_inputs(ref: Backend):
    for seed in SEEDS:
        program = random_program(seed)
        verify(program)
        for inputs in (seed, seed + 1000):
            results = run(ref, program, inputs)
            for found, value in zip(results, program.main.body.results, strict=True):
                assert TensorType.of(found) == value.type, print_program(program)


def test_random_programs_have_all_shapes_attributes_and_structure():
    values = 0
    shapes: Counter[str] = Counter()
    attributes: dict[tuple[str, str], set[object]] = {}
    most_results = nested = dead = 0
    for seed in SEEDS:
        program = random_program(seed)
        read = {value for step in instructions(program) for value in step.operands}
        read.update(value for function in program.functions for value in function.body.results)
        read.update(
            value for step in instructions(program) for region in step.regions
            for value in region.results
        )  # fmt: skip
        for step in instructions(program):
            values += len(step.results)
            most_results = max(most_results, len(step.results))
            nested += any(inner.regions for region in step.regions for inner in region.walk())
            dead += not read.intersection(step.results)
            for name in step.op.attribute_types:
                value = getattr(step.op, name)
                attributes.setdefault((step.op.name, name), set()).add(
                    repr(value) if isinstance(value, float) else value
                )
            for result in step.results:
                shape = result.type.shape
                shapes.update(
                    [f"rank {len(shape)}", *(f"dim {dim}" for dim in set(shape) & {0, 1, 7})]
                )
    for what in (*(f"rank {rank}" for rank in range(6)), "dim 0", "dim 1", "dim 7"):
        assert shapes[what] >= values / 500, what
    assert most_results >= 3
    assert nested >= 5
    assert values / 50 <= dead <= values / 2
    constant = {key for key, found in attributes.items() if len(found) < 2}
    assert constant == set(), "attributes that never vary"


def test_random_programs_call_functionals_whose_composites_backends_claim():
    kinds = Counter(
        made.op.kind
        for seed in SEEDS
        for made in instructions(random_program(seed))
        if isinstance(made.op, Composite)
    )
    names = {kind.removesuffix(".v1") for kind in kinds if "/" not in kind}
    assert names & set(composite_names()) == {
        *("softmax", "safe_softmax", "gelu", "layer_norm", "rms_norm", "linear", "attention"),
        *("conv2d", "depthwise_conv2d"),
    }


def test_rules_are_kept():
    names = ("add", "constant", "reduce", "transpose", "cond", "compare")
    types = (dtypes.f32, dtypes.si32, dtypes.i1)
    for seed in range(20):
        program = random_program(seed, ops=names, dtypes=types)
        assert {step.op.name for step in instructions(program)} <= set(names)
        assert {v.type.dtype for step in instructions(program) for v in step.results} <= set(types)
        flat = random_program(seed, control_flow=False)
        assert len(flat.functions) == 1
        assert not any(step.regions for step in instructions(flat))
    for seed in range(10):
        small = random_program(seed, accepts=lambda op, operands, results: op.name == "tanh")
        assert {step.op.name for step in instructions(small)} <= {"tanh"}


def test_a_size_is_asked_for():
    for size in (0, 1, 10, 100):
        lengths = [len(random_program(seed, size=size).main.body.instructions) for seed in range(9)]
        assert size <= min(lengths)
        assert max(lengths) <= size + 12


@pytest.mark.sample(1)
@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_a_seed_fixes_program_and_inputs_in_every_process(hash_seed: str):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", FINGERPRINT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    here = []
    for seed in range(5):
        program = random_program(seed)
        inputs = b"".join(array.tobytes() for array in random_inputs(program, seed).values())
        here.append(hashlib.sha256(print_program(program).encode() + inputs).hexdigest())
    assert done.stdout.split() == here
    assert len(set(here)) == 5


def test_inputs_have_special_values():
    program = random_program(0, size=0, dtypes=[dtypes.f32])
    found = [array for seed in range(200) for array in random_inputs(program, seed).values()]
    flat = np.concatenate([array.reshape(-1) for array in found])
    assert np.isnan(flat).any()
    assert {np.inf, -np.inf, np.finfo(np.float32).max} <= set(flat)
    assert np.signbit(flat[flat == 0]).any()


def test_disagreements_are_seen():
    one = np.array([1.0, np.nan, -0.0], np.float32)
    type_ = TensorType.of(one)
    assert disagreement(one, -one * np.float32(-1), type_) is None
    assert "1.0099" in str(disagreement(np.array([1.01, np.nan, 0], np.float32), one, type_))
    assert "nan" in str(disagreement(np.array([1, 2, 0], np.float32), one, type_))
    assert "f32[2]" in str(disagreement(one[:2], one, type_))
    three = np.array([3], np.int32)
    assert "3" in str(disagreement(three - 1, three, TensorType.of(three)))
