"""Every op of the conformance kit as an ONNX graph: read back by us, and run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests write ONNX models")

import gptrs_conformance.kit  # noqa: E402, F401 - registers the rows
import gptrs_onnx  # noqa: E402
from gptrs import functionals as F  # noqa: E402
from gptrs import get_backend  # noqa: E402
from gptrs.api import ExecutionError, UnsupportedError  # noqa: E402
from gptrs.api.models import jit, tensor  # noqa: E402
from gptrs.api.programs import (  # noqa: E402
    Builder,
    DType,
    Op,
    Program,
    TensorType,
    dtypes,
    run_program,
)
from gptrs.errors import GptrsError  # noqa: E402
from gptrs.functionals.matching import capture  # noqa: E402
from gptrs.ir import parse_program, print_program, specialize  # noqa: E402
from gptrs.ir.builder import copy_region  # noqa: E402
from gptrs.ir.ops.elementwise import Cast  # noqa: E402
from gptrs_conformance.op_case import ROWS, OpCase, cases, legal_dtypes  # noqa: E402
from gptrs_conformance.op_runner import program_of  # noqa: E402
from gptrs_conformance.program_generator import random_inputs  # noqa: E402
from gptrs_conformance.program_generator.symbols import with_symbols  # noqa: E402
from gptrs_runtime.outgoing_model import outgoing_program  # noqa: E402

try:
    import onnxruntime
except ImportError:
    onnxruntime = None

NEVER = {"rng_uniform", "rng_normal"}
"""Ops that no ONNX graph has."""
APPROXIMATED = {"expm1", "log1p"}
"""Ops that ONNX lacks, written as formulas that are accurate to a few units in the last place."""
UNSAID = {"reduce", "reduce_window", "cumulative", "scatter_reduce", "segment_reduce"}
"""Ops in which ONNX Runtime lets products of integers overflow in its own way."""
SAMPLE = 2
"""Cases of an op and type in the quick tests."""
ALL_IN_SAMPLE = {"call", "composite"}
"""Ops that have no other cases."""
OPS = sorted(ROWS, key=lambda op: op.name)
NARROW = (dtypes.bf16, dtypes.f8e4m3, dtypes.f8e5m2, dtypes.si4, dtypes.ui4)
"""Types that NumPy arrays of ONNX Runtime cannot have: they become others in the graph."""


def chosen(op: type[Op], others: bool) -> Iterator[OpCase]:
    """Yield cases of each type: the sample, or the `others`."""
    for dtype in legal_dtypes(op):
        found = [case for case in cases(op, dtype) if case.error is None]
        sample = range(len(found))[:: max(len(found) // SAMPLE, 1)][:SAMPLE]
        yield from (case for place, case in enumerate(found) if (place in sample) != others)


def proto_of(program: Program) -> onnx.ModelProto | None:
    """Return the program as a sound model, None if it was refused by the name of an op."""
    try:
        made = gptrs_onnx.to_proto(outgoing_program(program, "case"))
    except UnsupportedError as error:
        if str(error).startswith("`"):
            return None
        raise
    onnx.checker.check_model(made, full_check=True)
    return made


def wide(dtype: DType) -> DType:
    if dtype not in NARROW:
        return dtype
    return dtypes.f32 if dtype.is_float else dtypes.si32


def widened(case: OpCase) -> Program:
    """Return the program with operands and results in types that NumPy arrays have."""
    builder = Builder(case.functions)
    operands = []
    for array in case.inputs:
        type_ = TensorType.of(array)
        operand = builder.param(type_.with_dtype(wide(type_.dtype)))
        operands.append(
            operand if operand.type == type_ else builder.emit(Cast(type_.dtype), operand)
        )
    regions = [copy_region(region) for region in case.regions]
    results = builder.emit_many(case.op, operands, regions).results
    return builder.program(
        *(
            value
            if wide(value.type.dtype) is value.type.dtype
            else builder.emit(Cast(wide(value.type.dtype)), value)
            for value in results
        )
    )


def same(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Return whether the bits are the same; all NaNs are one."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    if TensorType.of(found).dtype.is_float:
        strange = np.isnan(found.astype(np.float64))
        if not np.array_equal(strange, np.isnan(wanted.astype(np.float64))):
            return False
        found, wanted = found[~strange], wanted[~strange]
    if TensorType.of(found).dtype.bits == 4:
        return np.array_equal(found.astype(np.int64), wanted.astype(np.int64))
    return found.tobytes() == wanted.tobytes()


def run_elsewhere(proto: onnx.ModelProto, inputs: list[np.ndarray]) -> list[np.ndarray] | None:
    """Return what ONNX Runtime computes, None where it has no kernel."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    names = [each.name for each in proto.graph.input]
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        found = session.run(None, dict(zip(names, inputs, strict=True)))
        return [np.asarray(each) for each in found]
    except Exception as error:
        lacking = ("NOT_IMPLEMENTED", "not currently registered or supported", "type inference")
        # Of empty tensors: a scan over nothing, no updates of a scatter.
        lacking += ("dim0_offset < dim0_size", "Indices vs updates dimensions differs")
        if any(word in str(error) for word in lacking):
            return None
        raise


def check(op: type[Op], others: bool) -> None:
    ref = get_backend("ref")
    seen = written = 0
    for case in chosen(op, others):
        seen += 1
        program = program_of(case)
        proto = proto_of(program)
        if proto is None:
            continue
        written += 1
        what = f"{op.name}, {case.label}, {[str(TensorType.of(each)) for each in case.inputs]}"
        wanted = run_program(program, dict(zip(program.inputs, case.inputs, strict=True)), ref)
        try:
            again = gptrs_onnx.from_proto(proto, ref)(*case.inputs)
        except ExecutionError:  # of the way that is not taken, which reads values around it
            assert op.name == "cond", what
            continue
        if op.name in APPROXIMATED:
            for found, expected in zip(again.values(), case.expected, strict=True):
                problem = case.tolerance.mismatch(found, expected, TensorType.of(found).dtype)
                assert not problem, (what, problem)
        else:
            assert all(map(same, again.values(), wanted)), (what, again, wanted)
        if onnxruntime is not None:
            require_agreement(case, what)
    assert seen
    if not others:
        assert bool(written) == (op.name not in NEVER)


@np.errstate(over="ignore")  # of results that are wider than their type
def require_agreement(case: OpCase, what: str) -> None:
    proto = proto_of(widened(case))
    if proto is None or any(TensorType.of(each).dtype.is_complex for each in case.inputs):
        return
    inputs = [each.astype(wide(TensorType.of(each).dtype).numpy) for each in case.inputs]
    results = run_elsewhere(proto, inputs)
    if results is None:
        return
    types = [value.type for value in program_of(case).main.body.results]
    for found, expected, type_ in zip(results, case.expected, types, strict=True):
        narrow = np.asarray(found).astype(type_.dtype.numpy)
        if type_.dtype in (dtypes.f8e4m3, dtypes.f8e5m2):
            # Beyond the largest it gives NaN or infinity, in its own way.
            known = np.isfinite(np.asarray(expected, np.float64))
            narrow = np.where(known, narrow, np.asarray(expected).astype(narrow.dtype))
        problem = case.tolerance.mismatch(narrow, expected, type_.dtype)
        if problem and type_.dtype.is_float:
            # Other sums, other functions: within rounding of the type, at the scale of the results.
            scale = np.nanmax(np.abs(expected), initial=1, where=np.isfinite(expected))
            bound = 64 * 2.0 ** -{"f64": 46, "f32": 24, "f16": 11}.get(type_.dtype.name, 8) * scale
            rounded = expected.astype(type_.dtype.numpy).astype(np.float64)
            if np.allclose(narrow.astype(np.float64), rounded, 0, bound, equal_nan=True):
                continue
        overflowed = type_.dtype.is_integer and case.op.name in UNSAID
        assert not problem or overflowed, (what, problem, case.inputs)


@pytest.mark.long
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_what_is_written_computes_the_same(op: type[Op]) -> None:
    check(op, others=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "op", [op for op in OPS if op.name not in ALL_IN_SAMPLE], ids=lambda op: op.name
)
def test_what_is_written_computes_the_same_in_other_cases(op: type[Op]) -> None:
    check(op, others=True)


DIVISIONS = {"div", "rem"}
"""Ops that crash ONNX Runtime for integers that are 0."""
FREE_TYPES = (dtypes.f32, dtypes.si32, dtypes.i1)


def free_programs(op: type[Op], step: int) -> Iterator[tuple[Program, int]]:
    """Yield programs for all sizes out of every `step`-th case: one of its sizes is a symbol."""
    for dtype in set(legal_dtypes(op)).intersection(FREE_TYPES):
        if op.name in DIVISIONS and dtype.is_integer:
            continue
        for case in [case for case in cases(op, dtype) if case.error is None][::step]:
            program = program_of(case)
            body = program.main.body
            types = [value.type for value in (*body.params, *body.results)]
            if any(wide(type_.dtype) is not type_.dtype for type_ in types):
                continue
            dims = {dim for value in body.params for dim in value.type.shape}
            for size in sorted(dim for dim in dims if dim >= 2):
                symbolic, _ = with_symbols(program, (size,))
                if all(made.op.name != op.name for made in symbolic.main.body.instructions):
                    continue
                try:  # for all sizes, not for some of them
                    yield parse_program(print_program(symbolic)), size
                except GptrsError:
                    continue


def check_free(op: type[Op], step: int) -> None:
    """Compare a written program with ours at the size that it was made of, at others, and at 1."""
    ref = get_backend("ref")
    for program, size in free_programs(op, step):
        proto = proto_of(program)
        for given in () if proto is None else (size, size + 1, 1):
            special = specialize(program, {0: given})
            named = random_inputs(special, given)
            with np.errstate(all="ignore"):
                try:
                    wanted = run_program(special, named, ref)
                except ExecutionError:
                    continue
            results = run_elsewhere(proto, list(named.values()))
            for found, expected in zip(results or (), wanted, strict=results is not None):
                if op.name == "reduce_window" and not expected.size:
                    continue  # ONNX Runtime rounds towards 0: a window beyond the end counts as one
                what = f"{given}:\n{print_program(program)}"
                assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
                if op.name == "reduce_window" and found.dtype.kind == "f":
                    # ONNX says nothing of NaN in `MaxPool`, and ONNX Runtime passes over it.
                    is_said = ~np.isnan(expected)
                    found, expected = found[is_said], expected[is_said]
                if found.dtype.kind == "f" or op.name not in UNSAID:
                    np.testing.assert_allclose(found, expected, 1e-3, 1e-3, err_msg=what)


@pytest.mark.skipif(onnxruntime is None, reason="a peer that runs the file")
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_what_is_written_with_a_free_size_computes_the_same_or_is_refused(op: type[Op]) -> None:
    check_free(op, 7)


@pytest.mark.exhaustive
@pytest.mark.skipif(onnxruntime is None, reason="a peer that runs the file")
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_all_that_is_written_with_a_free_size_computes_the_same(op: type[Op]) -> None:
    check_free(op, 1)


IMAGES, ROWS_OF_SIX = ("n", 8, 8, 4), ("n", 6)
FUNCTIONALS: dict[str, tuple[Callable[..., Any], list[tuple[int | str, ...]]]] = {
    "conv2d": (lambda x, k: F.conv2d(x, k, stride=(2, 2)), [IMAGES, (3, 4, 3, 3)]),
    "depthwise_conv2d": (F.depthwise_conv2d, [IMAGES, (4, 1, 3, 3)]),
    "max_pool": (lambda x: F.max_pool(x, (2, 2)), [IMAGES]),
    "average_pool": (
        lambda x: F.average_pool(x, (3, 3), stride=(2, 2), padding=((1, 1), (1, 1))), [IMAGES],
    ),
    "average_pool of all": (lambda x: F.average_pool(x, (8, 8)), [IMAGES]),
    "softmax": (lambda x: F.softmax(x, 0), [ROWS_OF_SIX]),
    "layer_norm without bias": (F.layer_norm, [ROWS_OF_SIX, (6,)]),
    "group_norm": (lambda x: F.group_norm(x, 2), [IMAGES]),
    "products": (lambda x: F.tril(F.matmul(x, F.transpose(x, (1, 0)))), [ROWS_OF_SIX]),
    "cumprod": (lambda x: F.cumprod(x, 0), [ROWS_OF_SIX]),
    "argmax": (lambda x: F.argmax(x, 0), [ROWS_OF_SIX]),
    "sort": (lambda x: F.sort(x, 0), [ROWS_OF_SIX]),
    "attention": (lambda q, k, v: F.attention(q, k, v, causal=True), [(2, "n", 2, 4)] * 3),
    "arange": (lambda x: x + F.reshape(F.arange(x.shape[0], dtype="f32"), (-1, 1)), [ROWS_OF_SIX]),
    "conv1d": (F.conv1d, [("n", 9, 4), (3, 4, 3)]),
}  # fmt: skip


@pytest.mark.skipif(onnxruntime is None, reason="a peer that runs the file")
@pytest.mark.parametrize("name", FUNCTIONALS)
def test_what_models_call_is_written_for_all_sizes_of_a_batch(name: str) -> None:
    function, shapes = FUNCTIONALS[name]

    def called(arguments: tuple[Any, ...]) -> Any:
        return function(*arguments)

    def arrays(n: int) -> list[np.ndarray]:
        rng = np.random.default_rng(n)
        sizes = [[n if isinstance(dim, str) else dim for dim in shape] for shape in shapes]
        return [rng.standard_normal(shape).astype(np.float32) for shape in sizes]

    axes = tuple(tuple(d if isinstance(d, str) else None for d in shape) for shape in shapes)
    lower = jit(called, dynamic={"arguments": axes}).lower
    proto = proto_of(lower(tuple(map(tensor, arrays(3)))))
    assert proto is not None
    for n in (3, 5, 1):
        inputs = arrays(n)
        results = run_elsewhere(proto, inputs)
        assert results is not None
        wanted = called(tuple(map(tensor, inputs))).numpy()
        assert results[0].shape == wanted.shape
        np.testing.assert_allclose(results[0], wanted, 1e-3, 1e-4, err_msg=str(n))


def test_an_op_that_asks_for_a_free_size_is_refused_by_name() -> None:
    program = parse_program("""ptir.v0.5
func @main(%x: f32[?0]) -> f32[?0+4] {
  %0 = pad %x {low = [-5], high = [9]} : f32[?0+4]
  return %0
}
""")
    with pytest.raises(UnsupportedError, match=r"`pad` cannot .* sizes are free.* `\?0` < 5"):
        gptrs_onnx.to_proto(outgoing_program(program, "trimmed"))


@pytest.mark.skipif(onnxruntime is None, reason="ONNX Runtime runs what is written")
@pytest.mark.parametrize("kind", ["i1", "f32", "none"])
def test_attention_of_queries_that_see_nothing(kind: str) -> None:
    """They give 0 by a guard behind `Softmax`; one with a NaN among its scores gives NaN."""
    random = np.random.default_rng(3)
    query, key = (random.standard_normal((1, 2, size, 8)).astype(np.float32) for size in (5, 4))
    query[0, 1, 3, 0] = np.nan
    seen = random.random((5, 4)) < 0.6
    seen[1], seen[3], seen[4, 1:] = False, True, False
    mask = {"i1": [seen], "f32": [np.where(seen, np.float32(0.5), np.float32(-np.inf))], "none": []}
    arrays = [query, key, *mask[kind]]
    types = {name: TensorType.of(each) for name, each in zip("qkm", arrays, strict=False)}
    program = capture(lambda q, k, m=None: F.attention(q, k, k, m), types)
    proto = proto_of(program)
    assert proto is not None
    assert [node.op_type for node in proto.graph.node].count("Softmax") == 1
    inputs = dict(zip(program.inputs, arrays, strict=True))
    wanted = run_program(program, inputs, get_backend("ref"))
    written = run_elsewhere(proto, arrays)
    assert written is not None
    np.testing.assert_allclose(written[0], wanted[0], atol=1e-6, rtol=1e-5)
    assert (written[0][0, :, 1] == 0).all() == (kind != "none")
