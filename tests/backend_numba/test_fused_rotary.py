"""Rotary embeddings become one kernel each, which gives the bits of the ops in its place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from gptrs import functionals as F
from gptrs.backend.contract import InputRole
from gptrs.capture.graph import Argument, GraphSlice
from gptrs.capture.tensor import Tensor
from gptrs.errors import UnsupportedError
from gptrs.ir import Program, parse_program
from gptrs.ir.ops.custom_call import Claimed, Composite, CustomCall, unclaimed
from gptrs.ir.ops.layout import Concat, Slice
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.type_text import parse_type
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.evaluation import evaluate
from gptrs_backend_numba.fusion.claims import claim
from gptrs_backend_numba.fusion.passes import FUSE
from gptrs_backend_numba.kernels.rotary import FLOATS
from gptrs_conformance.uses.rotary import turned

TYPES = ["f32 f32", "f64 f64", "f16 f16", "bf16 bf16", "f16 f32", "bf16 f32"]
"""Those of x and of the tables."""


def programs(function: Callable[..., Tensor], types: Sequence[str]) -> tuple[Program, Program]:
    """That of a function of tensors with this backend's fusions, and without.

    Rotations are written out, as in programs from outside.
    """
    leaves = [Argument(parse_type(text), place, None) for place, text in enumerate(types)]
    program = GraphSlice([function(*map(Tensor, leaves)).source]).lower(leaves)
    with_, without = (
        Pipeline(Inlining(taken), fuse=fuse, evaluate=evaluate, verify=True).run(program)
        for taken, fuse in ((claim_others, FUSE), (unclaimed, ()))
    )
    return with_, without


def claim_others(
    op: Composite, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> Claimed:
    return None if op.title == "rotary" else claim(op, operands, results)


def targets(program: Program) -> list[str]:
    ops = [made.op for made in program.main.body.instructions]
    return [op.target for op in ops if isinstance(op, CustomCall)]


def run(program: Program, arrays: Sequence[np.ndarray], threads: int = 1) -> np.ndarray:
    executable = create(threads).compile(program, [InputRole.ARGUMENT] * len(arrays))
    return np.array(executable.run(list(arrays))[0])


def numbers(types: Sequence[str], seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    kinds = [parse_type(text) for text in types]
    return [random.standard_normal(kind.shape).astype(kind.dtype.numpy) for kind in kinds]


def require_fused(
    function: Callable[..., Tensor], types: Sequence[str], calls: int = 1
) -> tuple[list[np.ndarray], np.ndarray]:
    """The operands, and the result that is the same without the kernel."""
    fused, plain = programs(function, types)
    dtype = types[0].split("[")[0]
    assert targets(fused) == [f"gptrs.numba.rotary.{dtype}.v1"] * calls
    ops = [made.op for made in fused.main.body.instructions]
    assert not any(isinstance(op, Slice | Concat) for op in ops)
    arrays = numbers(types)
    found = run(fused, arrays)
    assert found.tobytes() == run(plain, arrays).tobytes()
    return arrays, found


HALVES = (1, 3, 8, 21)


def _forms() -> Iterator[pytest.ParameterSet]:
    """Each type in each form; one of the four numbers of pairs is not exhaustive, in turn."""
    forms = itertools.product(TYPES, (False, True), (False, True))
    for place, (types, interleaved, each) in enumerate(forms):
        for turn, half in enumerate(HALVES):
            marks = [pytest.mark.exhaustive] if (place + place // 4 + turn) % len(HALVES) else []
            yield pytest.param(types, interleaved, each, half, marks=marks)


@pytest.mark.sample(8)
@pytest.mark.parametrize(("types", "interleaved", "each", "half"), list(_forms()))
def test_every_form_gives_the_bits_of_the_ops(
    types: str, interleaved: bool, each: bool, half: int
) -> None:
    dtype, wide = types.split()
    for (heads_axis, lead), kept in itertools.product([(1, (4, 5)), (2, (5, 4))], (0, 3)):
        x = f"{dtype}{[2, *lead, 2 * half + kept]}"
        table = f"{wide}{[*[2] * each, 5, half]}"

        def call(x: Tensor, cos: Tensor, sin: Tensor, axis: int = heads_axis) -> Tensor:
            return F.rotary(x, cos, sin, interleaved=interleaved, heads_axis=axis)

        require_fused(call, [x, table, table])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("batch", "heads", "length"), [(1, 1, 1), (1, 4, 1), (1, 1, 6), (3, 1, 1), (3, 4, 1), (3, 1, 6)]
)
@pytest.mark.parametrize("each", [False, True])
def test_axes_of_one(batch: int, heads: int, length: int, interleaved: bool, each: bool) -> None:
    types = [f"f32{[batch, heads, length, 10]}", *[f"f32{[*[batch] * each, length, 4]}"] * 2]
    (x, cos, sin), found = require_fused(
        lambda x, cos, sin: F.rotary(x, cos, sin, interleaved=interleaved), types
    )
    np.testing.assert_allclose(found, turned(x, cos, sin, interleaved), rtol=1e-5, atol=1e-6)


def test_heads_that_a_projection_left_behind_the_positions_are_read_where_they_are() -> None:
    types = ["f32[2, 7, 24]", "f32[7, 4]", "f32[7, 4]"]

    def split(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads = F.transpose(F.reshape(x, (2, 7, 3, 8)), (0, 2, 1, 3))
        return F.rotary(heads, cos, sin)

    (x, cos, sin), found = require_fused(split, types)
    heads = x.reshape(2, 7, 3, 8).swapaxes(1, 2)
    np.testing.assert_allclose(found, turned(heads, cos, sin, False), rtol=1e-5, atol=1e-6)
    executable = create(1).compile(programs(split, types)[0], [InputRole.ARGUMENT] * 3)
    assert len(executable.schedule.calls) == 1


def test_components_and_tables_that_lie_apart() -> None:
    types = ["f32[2, 3, 9, 6]", "f32[4, 6]", "f32[4, 6]"]

    def call(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        cos, sin = (F.transpose(table, (1, 0)) for table in (cos, sin))
        return F.rotary(F.transpose(x, (0, 1, 3, 2)), cos, sin)

    (x, cos, sin), found = require_fused(call, types)
    want = turned(np.swapaxes(x, 2, 3), cos.T, sin.T, False)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_query_and_key_share_their_tables() -> None:
    types = ["f32[1, 6, 5, 8]", "f32[1, 2, 5, 8]", "si64[5]"]

    def call(query: Tensor, key: Tensor, at: Tensor) -> Tensor:
        tables = F.rotary_tables(at, 8)
        return F.attention(F.rotary(query, *tables), F.rotary(key, *tables), key)

    fused, _ = programs(call, types)
    found = [target.split(".")[2] for target in targets(fused)]
    assert sorted(found) == ["attention", "rotary", "rotary"]


@pytest.mark.parametrize("interleaved", [False, True])
def test_what_is_not_finite_stays_in_its_pair(interleaved: bool) -> None:
    types = ["f32[1, 2, 3, 40]", "f32[3, 20]", "f32[3, 20]"]
    fused, plain = programs(lambda x, c, s: F.rotary(x, c, s, interleaved=interleaved), types)
    x, cos, sin = numbers(types)
    x[0, 0, 1, 4], x[0, 1, 2, 9] = np.nan, np.inf
    found = run(fused, [x, cos, sin])
    np.testing.assert_array_equal(found, run(plain, [x, cos, sin]))
    assert np.isfinite(found).sum() == found.size - 4


@pytest.mark.parametrize("interleaved", [False, True])
def test_any_number_of_threads_gives_the_same_bits(interleaved: bool) -> None:
    types = ["f32[3, 7, 101, 34]", "f32[101, 16]", "f32[101, 16]"]
    fused, plain = programs(lambda x, c, s: F.rotary(x, c, s, interleaved=interleaved), types)
    arrays = numbers(types)
    one = run(fused, arrays)
    assert one.tobytes() == run(plain, arrays).tobytes()
    for threads in (2, 3):
        assert one.tobytes() == run(fused, arrays, threads).tobytes()


def test_what_there_is_no_kernel_for_stays() -> None:
    def call(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return F.rotary(x, cos, sin)

    assert not targets(programs(call, ["f8e5m2[1, 2, 3, 8]", *["f8e5m2[3, 4]"] * 2])[0])
    assert not targets(programs(call, ["f32[1, 0, 3, 8]", *["f32[3, 4]"] * 2])[0])


def test_halves_turned_the_other_way_are_something_else() -> None:
    def backwards(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = (F.slice_axis(x, 3, start, 4) for start in (0, 4))
        cos, sin = (F.broadcast_to(table, (1, 2, 3, 4)) for table in (cos, sin))
        return F.concat(
            [F.sub(F.mul(a, sin), F.mul(b, cos)), F.add(F.mul(b, cos), F.mul(a, sin))], 3
        )

    assert not targets(programs(backwards, ["f32[1, 2, 3, 8]", *["f32[3, 4]"] * 2])[0])


def called(
    x: str, table: str, attrs: str = "interleaved = false", *, target: str = "f32", count: int = 2
) -> Program:
    params = ", ".join(f"%x{i}: {type_}" for i, type_ in enumerate([x, *[table] * count]))
    names = ", ".join(f"%x{i}" for i in range(count + 1))
    return parse_program(
        f"ptir.v0.5\nfunc @main({params}) -> {x} {{\n"
        f'  %0 = custom_call {names} {{target = "gptrs.numba.rotary.{target}.v1",'
        f" results = [{x}], attrs = {{{attrs}}}}} : {x}\n  return %0\n}}\n"
    )


ROWS, TABLE = "f32[1, 2, 3, 8]", "f32[1, 2, 3, 4]"


def test_a_call_in_text() -> None:
    x, cos, sin = arrays = numbers([ROWS, TABLE, TABLE])
    found = run(called(ROWS, TABLE), arrays)
    want = np.concatenate(
        [x[..., :4] * cos - x[..., 4:] * sin, x[..., 4:] * cos + x[..., :4] * sin], -1
    )
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "program",
    [
        called(ROWS, TABLE, ""),
        called(ROWS, TABLE, "interleaved = 1"),
        called(ROWS, TABLE, "heads = 1, interleaved = false"),
        called(ROWS, TABLE, count=1),
        called(ROWS, TABLE, target="f16"),
        called(ROWS, "f64[1, 2, 3, 4]"),
        called(ROWS, "f32[3, 4]"),
        called(ROWS, "f32[1, 1, 3, 4]"),
        called(ROWS, "f32[1, 2, 3, 5]"),
        called("f32[2, 3, 8]", "f32[2, 3, 4]"),
        called("f32[1, 0, 3, 8]", "f32[1, 0, 3, 4]"),
    ],
)
def test_calls_that_say_something_else_are_refused(program: Program) -> None:
    arrays = [
        np.zeros(param.type.shape, param.type.dtype.numpy) for param in program.main.body.params
    ]
    with pytest.raises(UnsupportedError):
        run(program, arrays)


def test_the_types_are_those_of_the_kernels() -> None:
    assert {text.split()[0] for text in TYPES} == {str(dtype) for dtype in FLOATS}
