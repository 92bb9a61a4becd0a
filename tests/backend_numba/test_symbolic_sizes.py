"""One executable for all sizes gives the bits of programs that are compiled for each of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest

from backend_numba.symbolic_programs import FAMILIES
from gptrs.backend.contract import InputRole, KernelRun
from gptrs.errors import ExecutionError, UsageError
from gptrs.ir import Program, parse_program
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.specialize import specialize, symbols
from gptrs.ir.symbolic_dim import evaluated
from gptrs_backend_numba.backend import NumbaBackend, create
from gptrs_backend_numba.codegen import compiled
from gptrs_backend_numba.codegen.compiled import WantedKernel, missing_kernels
from gptrs_backend_numba.compiler import EachSize
from gptrs_backend_numba.run.assembly import Sizes
from gptrs_backend_numba.run.executable import NumbaExecutable
from gptrs_backend_numba.run.input_binding import InputBinding

SIZES = (1, 2, 3, 7, 15, 16, 17, 31, 100, 700)


@cache
def backend() -> NumbaBackend:
    return create(2)


def parsed(text: str) -> Program:
    with deciding(SizeGuards({0: 9, 1: 9})):
        return parse_program("ptir.v0.5" + text)


@cache
def program_of(family: str) -> Program:
    return parsed(FAMILIES[family])


class Compiled:
    """The executables of a program, each with the guards of its sizes."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.roles = [
            InputRole.PARAMETER if name.startswith("w") else InputRole.ARGUMENT
            for name in program.inputs
        ]
        self.executables: list[tuple[SizeGuards, NumbaExecutable]] = []

    def run(self, sizes: dict[int, int], inputs: list[np.ndarray]) -> list[np.ndarray]:
        executable = next((e for guards, e in self.executables if guards.accept(sizes)), None)
        if executable is None:
            guards = SizeGuards(sizes)
            executable = backend().compile_symbolic(self.program, self.roles, guards)
            self.executables.append((guards, executable))
            assert guards.accept(sizes)
        return [np.asarray(each) for each in executable.run(inputs)]


def inputs_of(program: Program, sizes: dict[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays: list[np.ndarray] = []
    for param in program.main.body.params:
        shape = tuple(evaluated(dim, sizes) for dim in param.type.shape)
        if param.type.dtype.is_integer:
            arrays.append(rng.integers(0, 30, shape).astype(param.type.dtype.numpy))
        else:
            arrays.append(rng.standard_normal(shape).astype(param.type.dtype.numpy))
    return arrays


def assert_same_bits(compiled: Compiled, sizes: dict[int, int]) -> None:
    program = compiled.program
    inputs = inputs_of(program, sizes)
    special = backend().compile(specialize(program, sizes), compiled.roles)
    wanted = special.run([each.copy() for each in inputs])
    for _ in range(2):
        found = compiled.run(sizes, inputs)
        for place, (have, want) in enumerate(zip(found, wanted, strict=True)):
            expected = np.asarray(want)
            assert (have.shape, have.dtype) == (expected.shape, expected.dtype)
            assert have.tobytes() == expected.tobytes(), f"result {place} for {sizes}"


@pytest.mark.sample(5)
@pytest.mark.parametrize("family", FAMILIES)
def test_results_have_the_bits_of_programs_for_these_sizes(family: str) -> None:
    program = program_of(family)
    compiled = Compiled(program)
    numbers = symbols(program)
    # A convolution is compiled for each size.
    for size in SIZES[:2] if family == "convolution" else SIZES:
        assert_same_bits(compiled, dict.fromkeys(numbers, size))
        assert_same_bits(compiled, {n: SIZES[(SIZES.index(size) + 3 * n) % 8] for n in numbers})


@pytest.mark.parametrize("family", ["elementwise", "layout", "lines", "creation", "loops"])
def test_one_executable_serves_all_sizes(family: str) -> None:
    compiled = Compiled(program_of(family))
    for size in (37, *SIZES):
        compiled.run({0: size}, inputs_of(compiled.program, {0: size}))
    assert len(compiled.executables) == 1


def test_products_have_few_classes_of_rows() -> None:
    text = """
func @main(%x: f32[?0, 96], %w: f32[96, 40]) -> f32[?0, 40] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[?0, 40]
  return %0
}"""
    compiled = Compiled(parsed(text))
    rng = np.random.default_rng(0)
    for size in (1, *map(int, rng.integers(1, 700, 100))):
        assert_same_bits(compiled, {0: size})
    assert len(compiled.executables) <= 3  # one row, and where there is AMX, few and many


def test_an_index_out_of_range_is_named_with_the_sizes_of_the_run() -> None:
    compiled = Compiled(
        parsed("""
func @main(%p: f32[?0, 2], %i: si64[?1]) -> f32[?1, 2] {
  %0 = take %p, %i : f32[?1, 2]
  return %0
}""")
    )
    table = np.zeros((6, 2), np.float32)
    compiled.run({0: 6, 1: 3}, [table, np.array([0, 5, 1])])
    with pytest.raises(
        ExecutionError, match=r"f32\[4, 2\], si64\[2\]: index 5 .* for axis 0 of size 4"
    ):
        compiled.run({0: 4, 1: 2}, [table[:4], np.array([0, 5])])
    (rows,) = compiled.run({0: 6, 1: 1}, [table, np.array([5])])
    assert rows.shape == (1, 2)


def test_inputs_that_disagree_are_refused_and_leave_the_executable_usable() -> None:
    compiled = Compiled(
        parsed("""
func @main(%x: f32[?0, 4], %y: f32[?0, 4]) -> f32[?0, 4] {
  %0 = add %x, %y : f32[?0, 4]
  return %0
}""")
    )
    ones = [np.ones((n, 4), np.float32) for n in range(4)]
    compiled.run({0: 3}, [ones[3], ones[3]])
    executable = compiled.executables[0][1]
    with pytest.raises(UsageError, match=r"input 1 must be `f32\[\?0, 4\]` with \?0 = 2, got"):
        executable.run([ones[2], ones[3]])
    with pytest.raises(UsageError, match=r"input 0 must be .* with \?0 >= 1, got `f32\[0, 4\]`"):
        executable.run([ones[0], ones[0]])
    (found,) = executable.run([ones[2], ones[2]])
    np.testing.assert_array_equal(np.asarray(found), 2 * ones[2])


def test_donated_memory_of_symbolic_size_is_updated_in_place() -> None:
    program = parsed("""
func @main(%x: f32[?0, 4], %u: f32[1, 4], %s: si32[2]) -> f32[?0, 4] {
  %0 = dynamic_update_slice %x, %u, %s : f32[?0, 4]
  return %0
}""")
    roles = [InputRole.DONATED, InputRole.ARGUMENT, InputRole.ARGUMENT]
    executable = backend().compile_symbolic(program, roles, SizeGuards({0: 9}))
    row, start = np.full((1, 4), 7, np.float32), np.array([1, 0], np.int32)
    for size in (9, 2, 2, 5):
        given = np.ones((size, 4), np.float32)
        found = np.asarray(executable.run([given, row, start])[0])
        assert np.shares_memory(found, given)
        assert found[:, 0].tolist() == [1, 7, *[1] * (size - 2)]


def test_a_new_size_moves_only_what_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pools of a cache stay when the rows of a step change, and each shape is computed once.

    All are too large to be copied.
    """
    program = parsed("""
func @main(%x: f32[?0, 256], %y: f32[?0, 256], %w: f32[?1, 256]) -> (f32[?0, 256], f32[?1, 256]) {
  %0 = add %x, %y : f32[?0, 256]
  %1 = add %w, %w : f32[?1, 256]
  return %0, %1
}""")
    roles = [InputRole.ARGUMENT, InputRole.ARGUMENT, InputRole.PARAMETER]
    executable = backend().compile_symbolic(program, roles, SizeGuards({0: 40, 1: 50}))
    pool = np.ones((50, 256), np.float32)
    placed: list[int] = []
    place, shapes = InputBinding._placed, list[object]()
    compute = Sizes._evaluated
    monkeypatch.setattr(
        InputBinding, "_placed", lambda self, at, array: placed.append(at) or place(self, at, array)
    )
    executable.run([np.ones((40, 256), np.float32)] * 2 + [pool])
    monkeypatch.setattr(
        Sizes, "_evaluated", lambda self, shape: shapes.append(shape) or compute(self, shape)
    )
    rows = np.full((70, 256), 3, np.float32)
    found = [np.asarray(each) for each in executable.run([rows, rows, pool])]
    assert placed == [2]  # in the first run; of arguments calls read the arrays themselves
    assert len(shapes) == 2
    np.testing.assert_array_equal(found[0], 2 * rows)
    np.testing.assert_array_equal(found[1], 2 * pool)


def test_a_second_size_has_the_kernels_of_others_compiled_beside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if no store had any kernel; none is compiled."""
    beside: set[str] = set()

    def ask(kernels: Iterable[WantedKernel]) -> None:
        beside.update(kernel.key for kernel in kernels)

    monkeypatch.setattr(compiled, "_KERNELS", {})
    monkeypatch.setattr(compiled, "_kept", lambda key, function: None)
    compiler = "gptrs_backend_numba.compiler"
    monkeypatch.setattr(f"{compiler}.compile_together", lambda kernels: None)
    monkeypatch.setattr(f"{compiler}.compile_beside", ask)
    monkeypatch.setattr(f"{compiler}.compiles_beside", lambda: True)
    guards = SizeGuards({0: 1, 1: 32, 2: 32})
    with deciding(guards):
        program = parse_program("""ptir.v0.5
func @main(%x: f32[?0, 16, ?1, ?2], %w: f32[144, 16]) -> f32[?0, ?1, ?2, 16] {
  %0 = transpose %x {permutation = [0, 2, 3, 1]} : f32[?0, ?1, ?2, 16]
  %1 = custom_call %0, %w {target = "gptrs.numba.conv2d.f32.v1",
    results = [f32[?0, ?1, ?2, 16]], attrs = {window = [3, 3], stride = [1, 1],
    padding = [1, 1, 1, 1], dilation = [1, 1], scale = false, shift = false, residual = false,
    activation = "none"}} : f32[?0, ?1, ?2, 16]
  %2 = add %0, %1 : f32[?0, ?1, ?2, 16]
  return %2
}""")
    each = EachSize(program, [InputRole.ARGUMENT, InputRole.PARAMETER], 2, guards)

    def needed(batch: int, height: int, width: int) -> set[str]:
        with missing_kernels():  # none is called, so what is missing may remain so
            with missing_kernels() as missing:
                each.lower(specialize(program, {0: batch, 1: height, 2: width}))
            return {*missing}

    needed(1, 32, 32)
    assert not beside
    known = needed(1, 60, 44)
    assert not beside <= known
    for sizes in ((3, 17, 9), (2, 70, 91), (5, 100, 100), (1, 7, 8)):
        assert needed(*sizes) <= beside | known


def test_profiles_show_the_sizes_of_the_run() -> None:
    program = program_of("integer products")
    executable = backend().compile_symbolic(program, [InputRole.ARGUMENT] * 2, SizeGuards({0: 9}))
    for size in (9, 4):
        shown: list[KernelRun] = []
        executable.run_profiled(inputs_of(program, {0: size}), shown.append)
        packed, product = shown
        assert packed.operands.startswith(f"si32[{size}, 9] -> si32[")
        assert product.operands.endswith(f"-> si32[{size}, 4]")
        assert "f32" not in product.operands


def test_values_of_different_lifetimes_share_memory() -> None:
    text = "\nfunc @main(%x: f32[?0, 64]) -> f32[64, ?0] {\n  %t0 = neg %x : f32[?0, 64]\n"
    for at in range(10):
        text += f"  %s{at} = reverse %t{at} {{axes = [0]}} : f32[?0, 64]\n"
        text += f"  %t{at + 1} = neg %s{at} : f32[?0, 64]\n"
    text += "  %y = transpose %t10 {permutation = [1, 0]} : f32[64, ?0]\n  return %y\n}"
    guards = SizeGuards({0: 9})
    executable = backend().compile_symbolic(parsed(text), [InputRole.ARGUMENT], guards)
    assert isinstance(executable, NumbaExecutable)
    assert evaluated(executable.schedule.scratch, {0: 100}) == 2 * 100 * 64 * 4
