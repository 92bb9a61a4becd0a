"""Elementwise instructions that one reader follows become one kernel; others stay apart."""

import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.errors import ExecutionError, UnsupportedError
from gptrs.ir import dtypes, parse_program
from gptrs.ir.builder import Builder
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import Add, Neg, Pow, Tanh
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.passes.elementwise_groups import group

F32 = TensorType(dtypes.f32, (5,))
GELU = """ptir.v0.5
func @main(%x: f32[7], %bias: f32[7], %half: f32[7]) -> f32[7] {
  %0 = add %x, %bias : f32[7]
  %1 = mul %0, %half : f32[7]
  %2 = tanh %1 : f32[7]
  return %2
}
"""


def test_a_chain_is_one_call() -> None:
    executable = create(1).compile(parse_program(GELU), [InputRole.ARGUMENT] * 3)
    assert len(executable.schedule.calls) == 1
    x = np.linspace(-2, 2, 7, dtype=np.float32)
    (result,) = executable.run([x, x, np.full(7, 0.5, np.float32)])
    np.testing.assert_allclose(np.asarray(result), np.tanh(x), 1e-6)


def test_a_value_read_twice_or_returned_is_kept_in_memory() -> None:
    builder = Builder()
    x = builder.param(F32)
    shared = builder.emit(Tanh(), x)
    twice = builder.emit(Add(), builder.emit(Neg(), shared), shared)
    returned = builder.emit(Neg(), twice)
    program = builder.program(twice, returned)
    sizes = [len(unit.instructions) for unit in group(program.main.body)]
    assert sizes == [1, 2, 1]


def test_one_reader_may_use_a_value_on_both_sides() -> None:
    builder = Builder()
    exact = builder.emit(Neg(), builder.param(F32))
    program = builder.program(builder.emit(Add(), exact, exact))
    assert [len(unit.instructions) for unit in group(program.main.body)] == [2]


def test_long_and_wide_groups_are_cut() -> None:
    builder = Builder()
    total = builder.param(F32)
    for _ in range(40):
        total = builder.emit(Add(), total, builder.param(F32))
    units = group(builder.program(total).main.body)
    assert len(units) > 1
    assert all(len(unit.inputs) <= 6 for unit in units)
    assert sum(len(unit.instructions) for unit in units) == 40


def repeated(name: str, number: float, type_: str, count: int) -> str:
    """The text that repeats a number."""
    literal = number if type_ == "f32" else int(number)
    return (
        f"%{name}0 = constant {{value = splat({literal!r})}} : {type_}[]\n  "
        f"%{name} = broadcast_to %{name}0 {{shape = [{count}]}} : {type_}[{count}]"
    )


NUMBERS = {
    "za": (7, "si32"), "zb": (200, "si32"), "sa": (0.02, "f32"), "sb": (0.3, "f32"),
    "step": (0.25, "f32"), "middle": (12.0, "f32"), "low": (3.0, "f32"), "high": (255.0, "f32"),
}  # fmt: skip
SUM_OF_CODES = f"""ptir.v0.5
func @main(%a: ui8[640], %b: ui8[640]) -> ui8[640] {{
  {chr(10).join(repeated(name, *each, 640) for name, each in NUMBERS.items())}
  %0 = cast %a {{dtype = si32}} : si32[640]
  %1 = sub %0, %za : si32[640]
  %2 = cast %1 {{dtype = f32}} : f32[640]
  %3 = mul %2, %sa : f32[640]
  %4 = cast %b {{dtype = si32}} : si32[640]
  %5 = sub %4, %zb : si32[640]
  %6 = cast %5 {{dtype = f32}} : f32[640]
  %7 = mul %6, %sb : f32[640]
  %8 = add %3, %7 : f32[640]
  %9 = div %8, %step : f32[640]
  %10 = round_nearest_even %9 : f32[640]
  %11 = add %10, %middle : f32[640]
  %12 = clamp %11, %low, %high : f32[640]
  %13 = cast %12 {{dtype = ui8}} : ui8[640]
  return %13
}}
"""


def test_a_sum_of_codes_that_reads_eight_numbers_is_one_call() -> None:
    executable = create(1).compile(parse_program(SUM_OF_CODES), [InputRole.ARGUMENT] * 2)
    assert len(executable.schedule.calls) == 1
    a, b = np.random.default_rng(0).integers(0, 256, (2, 640)).astype(np.uint8)
    x = (a - np.float32(7)) * np.float32(0.02) + (b - np.float32(200)) * np.float32(0.3)
    want = np.clip(np.rint(x / np.float32(0.25)) + 12, 3, 255).astype(np.uint8)
    np.testing.assert_array_equal(np.asarray(executable.run([a, b])[0]), want)


@pytest.mark.paths
@pytest.mark.parametrize("kind", ["si8", "ui8"])
@pytest.mark.parametrize("middle", [None, -5.0, 0.5])
@pytest.mark.parametrize("step", [None, 0.1, 3.0, 1e-29, 7e29, 1e-40, -2.0])
def test_codes_are_rounded_as_their_ops_say(
    kind: str, middle: float | None, step: float | None
) -> None:
    """One function computes what five ops say: at ties, beyond the limits, for infinities, NaN."""
    random = np.random.default_rng(1)
    size = np.float32(1.0 if step is None else abs(step))
    x = np.concatenate(
        [
            np.arange(-600, 600, dtype=np.float32) / 2 * size,
            (random.standard_normal(4096) * 100).astype(np.float32) * size,
            np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, -0.0, 0.0], np.float32),
        ]
    )
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(np.inf))])
    low, high = (-128.0, 127.0) if kind == "si8" else (0.0, 250.0)
    shape = f"f32[{len(x)}]"
    lines: list[str] = []
    last = "%x"
    for name, number in (("step", step), ("middle", middle), ("low", low), ("high", high)):
        if number is not None:
            lines.append(repeated(name, number, "f32", len(x)))
    if step is not None:
        lines.append(f"%q = div %x, %step : {shape}")
        last = "%q"
    lines.append(f"%r = round_nearest_even {last} : {shape}")
    if middle is not None:
        lines.append(f"%m = add %middle, %r : {shape}")
    lines.append(f"%c = clamp {'%r' if middle is None else '%m'}, %low, %high : {shape}")
    lines.append(f"%y = cast %c {{dtype = {kind}}} : {kind}[{len(x)}]")
    text = "\n  ".join(lines)
    program = parse_program(
        f"ptir.v0.5\nfunc @main(%x: {shape}) -> {kind}[{len(x)}] {{\n  {text}\n  return %y\n}}\n"
    )
    (found,) = create(1).compile(program, [InputRole.ARGUMENT]).run([x])
    with np.errstate(all="ignore"):
        want = np.rint(x if step is None else x / np.float32(step)) + np.float32(middle or 0)
        want = np.clip(want, np.float32(low), np.float32(high))
        want = np.where(np.isnan(want), 0, want).astype(np.int8 if kind == "si8" else np.uint8)
    np.testing.assert_array_equal(np.asarray(found).view(want.dtype), want)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0, -1.0])
def test_constant_powers(exponent: float) -> None:
    text = f"""ptir.v0.5
    func @main(%x: f32[6]) -> f32[6] {{
      %0 = constant {{value = splat({exponent})}} : f32[6]
      %1 = pow %x, %0 : f32[6]
      return %1
    }}
    """
    x = np.array([0.0, -0.0, 1.5, 1e20, np.inf, np.nan], np.float32)
    (result,) = create(1).compile(parse_program(text), [InputRole.ARGUMENT]).run([x])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(np.asarray(result), x ** np.float32(exponent), 3e-7)


def test_powers_of_different_constants_do_not_share_a_kernel() -> None:
    builder = Builder()
    x, y = builder.param(F32), builder.param(F32)
    executable = create(1).compile(
        builder.program(builder.emit(Pow(), x, y)), [InputRole.ARGUMENT] * 2
    )
    for exponent in (2.0, 3.0):
        base = np.full(5, 3, np.float32)
        (result,) = executable.run([base, np.full(5, exponent, np.float32)])
        np.testing.assert_allclose(np.asarray(result), 3**exponent)


def test_division_by_zero_inside_a_group_is_an_error() -> None:
    text = """ptir.v0.5
    func @main(%x: si32[3], %y: si32[3]) -> si32[3] {
      %0 = div %x, %y : si32[3]
      %1 = neg %0 : si32[3]
      return %1
    }
    """
    executable = create(1).compile(parse_program(text), [InputRole.ARGUMENT] * 2)
    x = np.array([7, -7, 3], np.int32)
    (result,) = executable.run([x, np.array([2, 2, -1], np.int32)])
    assert np.asarray(result).tolist() == [-3, 3, 3]
    with pytest.raises(ExecutionError, match=r"`div` of integers by zero, of si32\[3\], si32\[3\]"):
        executable.run([x, np.array([1, 0, 1], np.int32)])


def test_what_is_missing_is_named_before_anything_runs() -> None:
    builder = Builder()
    x = builder.param(TensorType(dtypes.f32, (2,)))
    unknown = [CustomCall(target, results=(x.type,)) for target in ("our.odd.v1", "their.odd.v1")]
    program = builder.program(*(builder.emit(op, x) for op in unknown))
    with pytest.raises(UnsupportedError, match=r"target `our.odd.v1` .*target `their.odd.v1`"):
        create(1).compile(program, [InputRole.ARGUMENT])
