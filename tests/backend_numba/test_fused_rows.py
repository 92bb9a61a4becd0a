"""The row kernels against NumPy in f64: types, lengths, strides, what is not finite."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.errors import UnsupportedError
from gptrs.ir import dtypes, parse_program
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.lowering.reduction import SUM_OF_SQUARES

TOLERANCE = {"f32": 4e-6, "f16": 4e-3, "bf16": 3e-2}


def run(
    kind: str, arrays: list[np.ndarray], dtype: str = "f32", attrs: str = "", threads: int = 1
) -> np.ndarray:
    """The kernel on x, which comes with its last two axes exchanged, and vectors."""
    x, *vectors = arrays
    turned = np.ascontiguousarray(np.swapaxes(x, -1, -2)) if x.ndim > 1 else x
    given = [turned, *vectors]
    params = ", ".join(f"%x{i}: {dtype}{list(a.shape)}" for i, a in enumerate(given))
    order = [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2] if x.ndim > 1 else [0]
    type_ = f"{dtype}{list(x.shape)}"
    rest = "".join(f", %x{i + 1}" for i in range(len(vectors)))
    text = (
        f"ptir.v0.5\nfunc @main({params}) -> {type_} {{\n"
        f"  %0 = transpose %x0 {{permutation = {order}}} : {type_}\n"
        f'  %1 = custom_call %0{rest} {{target = "gptrs.numba.{kind}.{dtype}.v1",'
        f" results = [{type_}], attrs = {{{attrs}}}}} : {type_}\n  return %1\n}}\n"
    )
    roles = [InputRole.ARGUMENT] * len(given)
    executable = create(threads).compile(parse_program(text), roles)
    return np.asarray(executable.run(given)[0])


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape) * 3 + 1
    return values.astype(np.float32).astype(getattr(dtypes, dtype).numpy)


def require_close(found: np.ndarray, want: np.ndarray, dtype: str) -> None:
    bound = TOLERANCE[dtype]
    np.testing.assert_allclose(found.astype(np.float64), want, atol=bound, rtol=bound)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", [(1,), (5,), (3, 16), (2, 3, 17), (4, 768), (0, 4)])
def test_softmax(shape: tuple[int, ...], dtype: str) -> None:
    x = numbers(shape, dtype)
    if 0 in shape:
        with pytest.raises(UnsupportedError):
            run("softmax", [x], dtype)
        return
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    found = run("softmax", [x], dtype)
    require_close(found, powers / powers.sum(axis=-1, keepdims=True), dtype)
    assert run("safe_softmax", [x], dtype).tobytes() == found.tobytes()


@pytest.mark.paths
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_safe_softmax_of_what_is_not_finite(dtype: str) -> None:
    x = numbers((6, 20), dtype)
    x[0], x[1, 1:], x[2], x[3, 5] = -np.inf, -np.inf, -np.inf, np.inf
    x[2, 7] = np.nan
    x[4] = np.finfo(x.dtype).min if dtype != "bf16" else -1e38
    found, plain = (run(kind, [x], dtype) for kind in ("safe_softmax", "softmax"))
    assert (found[0] == 0).all()
    assert np.isnan(plain[0].astype(np.float32)).all()
    assert found[1:].tobytes() == plain[1:].tobytes()
    assert np.isnan(found[2:4].astype(np.float32)).all()


def test_softmax_of_what_is_not_finite() -> None:
    x = np.zeros((5, 20), np.float32)
    x[0] = -np.inf
    x[1, 3] = np.nan
    x[2, 4] = np.inf
    x[3, 5:] = -np.inf
    found = run("softmax", [x])
    assert np.isnan(found[:3]).all()
    np.testing.assert_allclose(found[3, :5], 0.2, rtol=1e-6)
    assert (found[3, 5:] == 0).all()
    np.testing.assert_allclose(found[4], 0.05, rtol=1e-6)


@pytest.mark.sample(8)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *(("layer_norm", given) for given in ("", "weight", "weight bias", "bias")),
        ("rms_norm", ""),
        ("rms_norm", "weight"),
    ],
)
@pytest.mark.parametrize("shape", [(7,), (3, 1), (2, 5, 33), (3, 768)])
def test_norms(kind: str, given: str, shape: tuple[int, ...], dtype: str) -> None:
    flags = ("weight", "bias") if kind == "layer_norm" else ("weight",)
    x = numbers(shape, dtype)
    vectors = {flag: numbers(shape[-1:], dtype, seed) for seed, flag in enumerate(given.split())}
    words = [f"{flag} = {str(flag in vectors).lower()}" for flag in flags]
    attrs = ", ".join(["epsilon = 0.25", *words])
    wide = x.astype(np.float64)
    if kind == "layer_norm":
        wide = wide - wide.mean(axis=-1, keepdims=True)
    want = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + 0.25)
    want = want * vectors["weight"].astype(np.float64) if "weight" in vectors else want
    want = want + vectors["bias"].astype(np.float64) if "bias" in vectors else want
    require_close(run(kind, [x, *vectors.values()], dtype, attrs), want, dtype)


def test_a_mean_much_larger_than_the_deviation() -> None:
    random = np.random.default_rng(1)
    x = (random.standard_normal((4, 512)) + 1000).astype(np.float32)
    wide = x.astype(np.float64) - x.astype(np.float64).mean(axis=-1, keepdims=True)
    want = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + 1e-5)
    found = run("layer_norm", [x], attrs="bias = false, epsilon = 1e-05, weight = false")
    np.testing.assert_allclose(found, want, atol=2e-4)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "softmax"])
def test_any_number_of_threads_gives_the_same_bits(kind: str) -> None:
    x = numbers((300, 256), "f32")
    flags = {"layer_norm": "bias = false, ", "rms_norm": "", "softmax": ""}[kind]
    attrs = "" if kind == "softmax" else f"{flags}epsilon = 1e-05, weight = false"
    one = run(kind, [x], attrs=attrs)
    assert one.tobytes() == run(kind, [x], attrs=attrs, threads=3).tobytes()


@pytest.mark.parametrize(
    ("kind", "attrs"),
    [
        ("softmax", "epsilon = 1.0"),
        ("rms_norm", "epsilon = 1, weight = false"),
        ("rms_norm", "epsilon = 1.0, weight = true"),
        ("layer_norm", "epsilon = 1.0, weight = false"),
    ],
)
def test_calls_that_say_something_else_are_refused(kind: str, attrs: str) -> None:
    with pytest.raises(UnsupportedError):
        run(kind, [numbers((2, 3), "f32")], attrs=attrs)


@pytest.mark.paths
@pytest.mark.parametrize("shape", [(40_000,), (300, 170), (5, 70, 110), (30, 20)])
def test_sums_of_squares_do_not_write_them(shape: tuple[int, ...]) -> None:
    """But those of few elements, where it does not pay; a transposed operand is added, too."""
    axes, order = list(range(len(shape))), list(range(len(shape)))[::-1]
    text = (
        f"ptir.v0.5\nfunc @main(%x: f32{list(shape[::-1])}) -> f32[] {{\n"
        f"  %0 = transpose %x {{permutation = {order}}} : f32{list(shape)}\n"
        f"  %1 = mul %0, %0 : f32{list(shape)}\n"
        f"  %2 = reduce %1 {{axes = {axes}, kind = sum}} : f32[]\n  return %2\n}}\n"
    )
    backend = create(2)
    fused = Pipeline(fuse=backend.fuse(), verify=True).run(parse_program(text))
    assert (SUM_OF_SQUARES in str(fused)) == (np.prod(shape) > 32_768)
    x = numbers(shape[::-1], "f32")
    for program in (fused, parse_program(text)):
        found = np.asarray(backend.compile(program, [InputRole.ARGUMENT]).run([x])[0])
        np.testing.assert_allclose(found, (x.astype(np.float64) ** 2).sum(), rtol=1e-5)
