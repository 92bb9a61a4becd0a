"""Attention with an additive mask, as exporters write it: fused, and against NumPy in f64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gptrs import functionals as F
from gptrs.backend.contract import InputRole
from gptrs.capture.graph import Argument, GraphSlice
from gptrs.capture.tensor import Tensor
from gptrs.ir import Program
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.type_text import parse_type
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.evaluation import evaluate
from gptrs_backend_numba.fusion.claims import claim
from gptrs_backend_numba.fusion.passes import FUSE
from gptrs_backend_numba.kernels.attention.geometry import GUARDS
from gptrs_backend_numba.kernels.attention.many_queries import BLOCK
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

CLAIMS = Inlining(claim)

KERNEL = "gptrs.numba.biased_attention.f32.v1"


def written(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, guard: str, scale: float = 1.0
) -> Tensor:
    """Attention in the ops of a file: keys come as [B, H, D, S], `scale` is on both sides."""
    scores = F.matmul(query * scale, key * scale) + bias
    shares = F.safe_softmax(scores) if guard == "blind" else F.softmax(scores, axis=-1)
    if guard == "nan":
        shares = F.where(shares != shares, 0.0, shares)
    return F.matmul(shares, value)


def program_of(shapes: Sequence[Sequence[int]], guard: str, scale: float = 1.0) -> Program:
    types = [parse_type(f"f32{list(shape)}") for shape in shapes]
    leaves = [Argument(type_, place, None) for place, type_ in enumerate(types)]
    query, key, value, bias = map(Tensor, leaves)
    result = written(query, key, value, bias, guard, scale)
    program = GraphSlice([result.source]).lower(leaves)
    return Pipeline(inlining=CLAIMS, fuse=FUSE, evaluate=evaluate, verify=True).run(program)


def targets(program: Program) -> list[str]:
    ops = [made.op for made in program.main.body.instructions]
    return [op.target for op in ops if isinstance(op, CustomCall)]


def attend(arrays: Sequence[np.ndarray], guard: str, threads: int = 1) -> np.ndarray:
    program = program_of([array.shape for array in arrays], guard, 0.5)
    assert targets(program) == [KERNEL]
    executable = create(threads).compile(program, [InputRole.ARGUMENT] * len(arrays))
    return np.asarray(executable.run(list(arrays))[0])


def wanted(arrays: Sequence[np.ndarray], guard: str) -> np.ndarray:
    query, key, value, bias = (array.astype(np.float64) for array in arrays)
    scores = np.einsum("bhtd,bhds->bhts", query, key) * 0.25 + bias
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = powers / powers.sum(axis=-1, keepdims=True)
    if guard == "blind":
        shares[(scores == -np.inf).all(axis=-1)] = 0
    if guard == "nan":
        shares = np.where(np.isnan(shares), 0.0, shares)
    return np.einsum("bhts,bhse->bhte", shares, value)


def operands(
    random: np.random.Generator, length: int, keys: int, bias: tuple[int, ...]
) -> list[np.ndarray]:
    shapes = (2, 3, length, 20), (2, 3, 20, keys), (2, 3, keys, 24), bias
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.sample(6)
@pytest.mark.paths
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("keys", [5, BLOCK, 2 * BLOCK + 7])
@pytest.mark.parametrize("length", [7, PANEL, PANEL + 5])
def test_all_shapes_of_a_bias(length: int, keys: int, guard: str) -> None:
    random = np.random.default_rng(length + keys)
    for shape in ((2, 3, length, keys), (1, 1, length, keys), (2, 1, 1, keys), (2, 3, length, 1)):
        arrays = operands(random, length, keys, shape)
        found = attend(arrays, guard)
        np.testing.assert_allclose(found, wanted(arrays, guard), atol=3e-6, rtol=3e-6)


@pytest.mark.paths
@pytest.mark.parametrize("guard", GUARDS)
def test_a_query_that_sees_nothing_and_one_with_nan(guard: str) -> None:
    arrays = operands(np.random.default_rng(1), 40, BLOCK + 9, (2, 1, 40, BLOCK + 9))
    arrays[3][arrays[3] < 0] = -np.inf
    arrays[3][1, 0, 3] = -np.inf
    arrays[3][:, 0, 30, : BLOCK + 2] = -np.inf
    arrays[3][0, 0, 5] = -np.inf
    arrays[3][0, 0, 5, BLOCK + 1] = np.nan
    arrays[3][0, 0, 6, 3] = np.inf
    arrays[3][0, 0, 7] = np.finfo(np.float32).min
    found = attend(arrays, guard)
    blind, odd = found[1, :, 3], found[0, :, 5:7]
    assert np.isnan(blind).all() if guard == "none" else (blind == 0).all()
    assert (odd == 0).all() if guard == "nan" else np.isnan(odd).all()
    np.testing.assert_allclose(found, wanted(arrays, guard), atol=3e-6, rtol=3e-6)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    arrays = operands(np.random.default_rng(2), 90, 130, (1, 1, 90, 130))
    one = attend(arrays, "nan")
    assert one.tobytes() == attend(arrays, "nan", threads=3).tobytes()


def test_what_is_fused() -> None:
    shapes = [(1, 3, 9, 8), (1, 3, 8, 11), (1, 3, 11, 8), (1, 1, 9, 11)]
    assert targets(program_of(shapes, "nan")) == [KERNEL]
    few = [(1, 3, 2, 8), *shapes[1:3], (1, 1, 2, 11)]
    assert KERNEL not in targets(program_of(few, "nan")), "a panel would be mostly empty"


def test_queries_and_keys_that_were_scaled_need_no_bias() -> None:
    types = [parse_type(text) for text in ("f32[1, 3, 9, 8]", "f32[1, 3, 8, 9]", "f32[1, 3, 9, 8]")]
    leaves = [Argument(type_, place, None) for place, type_ in enumerate(types)]
    query, key, value = map(Tensor, leaves)
    shares = F.softmax(F.matmul(query * 0.5, key * 0.5), axis=-1)
    program = GraphSlice([F.matmul(shares, value).source]).lower(leaves)
    found = Pipeline(inlining=CLAIMS, fuse=FUSE, evaluate=evaluate, verify=True).run(program)
    assert targets(found) == ["gptrs.numba.attention.f32.v1"]
