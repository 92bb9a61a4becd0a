"""Convolutions of the precision `bf16`: both operands rounded where the processor has products."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import gptrs
from backend_numba.convolutions import (
    EPILOGUES,
    Case,
    arrays_of,
    computed,
    expected,
    parameter,
)
from backend_numba.test_convolution import GEOMETRIES, GROUPED_CASES, WIDE, WINOGRAD, Optimized
from gptrs import functionals as F
from gptrs.api.backends import Backend
from gptrs.capture.events import tracing
from gptrs.capture.tensor import Tensor, flush
from gptrs_backend_numba.backend import NumbaBackend, create
from gptrs_backend_numba.cost_model import VARIABLE, Convolution, winograd_side
from gptrs_backend_numba.kernels.matmul.bf16_ir import HAS_DOT
from gptrs_backend_numba.schedule import (
    BF16_CONV2D,
    BF16_GROUPED,
    CHAIN,
    CONV2D,
    DEPTHWISE,
    ROUNDED_CHAIN,
)

ROUNDS = HAS_DOT
"""Whether there are products of pairs; other processors compute in f32."""


def rounding(threads: int = 1) -> NumbaBackend:
    return create(threads).in_precision("bf16")


def rounded(case: Case, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Round what is multiplied; a group with an odd number of channels is computed in f32."""
    pairs = case.groups == 1 or case.image[3] // case.groups % 2 == 0
    names = ("x", "weight") if ROUNDS and pairs else ()
    return arrays | {
        name: arrays[name].astype(ml_dtypes.bfloat16).astype(np.float32) for name in names
    }


def require_products_of_bf16(case: Case) -> None:
    """Assert that sums are those of rounded operands, but for roundings of f32."""
    arrays = arrays_of(case)
    found, wanted = computed(case, arrays, rounding()), expected(case, rounded(case, arrays))
    unbounded = expected(dataclasses.replace(case, activation="none"), arrays)
    assert np.abs(found - wanted).max() <= 1e-5 * max(1.0, np.abs(unbounded).max())


@pytest.mark.paths
@pytest.mark.sample(8)
@pytest.mark.parametrize("algorithm", ["direct", "amx"])
@pytest.mark.parametrize("case", [*GEOMETRIES, *GROUPED_CASES], ids=str)
def test_operands_are_rounded_in_all_geometries(
    case: Case, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, algorithm)
    optimized = Optimized()
    with tracing(optimized):
        require_products_of_bf16(case)
    assert optimized.calls(BF16_CONV2D if case.groups == 1 else BF16_GROUPED)


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
def test_the_rest_is_f32(epilogue: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "direct")
    require_products_of_bf16(dataclasses.replace(WIDE, **epilogue))


@pytest.mark.sample(4)
@pytest.mark.paths
@pytest.mark.parametrize(("side", "growth"), [(2, 1.7), (4, 4.8)])
@pytest.mark.parametrize("case", WINOGRAD, ids=str)
def test_winograd_loses_no_more_than_its_transforms_say(
    case: Case, side: int, growth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Roundings of normal numbers grow as the squares of the coefficients add up.

    The root mean square of a rounding to 8 bits is 2^-8 / sqrt(3) of the power of 2 below, 2.3e-3
    of a product with two; a third more is allowed.
    """
    monkeypatch.setenv(VARIABLE, f"winograd{side}")
    plain = dataclasses.replace(case, normalized=False)
    arrays = arrays_of(plain)
    error = computed(plain, arrays, rounding()) - expected(plain, arrays)
    limit = 1.33 * 2.3e-3 * growth * np.sqrt(9 * case.image[3])
    assert np.sqrt((error**2).mean()) <= limit
    assert np.abs(error).max() <= 8 * limit


def test_a_weight_that_is_no_parameter_is_not_rounded() -> None:
    arrays = arrays_of(WIDE)
    found = computed(WIDE, arrays, rounding(), constant=False)
    assert found.tobytes() == computed(WIDE, arrays, create(1), constant=False).tobytes()


@pytest.mark.paths
def test_images_that_are_not_finite_stay_so() -> None:
    case = Case((1, 6, 6, 4), 8, (1, 1), padding=((0, 0), (0, 0)), activation="relu6")
    arrays = arrays_of(case)
    arrays["x"][0, 2, 3, 1] = np.nan
    found = computed(case, arrays, rounding())
    assert np.isnan(found[0, 2, 3]).all()
    assert not np.isnan(np.delete(found.reshape(36, 8), 15, axis=0)).any()


@pytest.mark.paths
@pytest.mark.parametrize("stem", [False, True])
@pytest.mark.parametrize("kernel", [3, 5])
def test_layers_around_a_depthwise_one_are_rounded(stem: bool, kernel: int) -> None:
    """The depthwise layer is f32, and neither threads nor chunks of rows show in a result."""
    random = np.random.default_rng(3)
    count, high, wide = 2, 63, 61
    shapes = {
        "x": (count, 2 * high - 1, 2 * wide - 1, 3) if stem else (count, high, wide, 6),
        "e": (72, 3, 3, 3) if stem else (72, 6, 1, 1),
        "d": (72, 1, kernel, kernel), "p": (10, 72, 1, 1), "b": (10,),
    }  # fmt: skip
    arrays = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }

    def narrow(x: Tensor) -> Tensor:
        return x.cast("bf16").cast("f32") if ROUNDS else x

    def network(backend: Backend, narrow: Callable[[Tensor], Tensor] = lambda x: x) -> np.ndarray:
        w = {name: parameter(name, array, backend) for name, array in arrays.items()}
        stride, padding = (2, 1) if stem else (1, 0)
        y = F.relu6(
            F.conv2d(narrow(gptrs.tensor(arrays["x"])), narrow(w["e"]), None, stride, padding)
        )
        y = F.relu(F.depthwise_conv2d(y, w["d"], None, 2, kernel // 2))
        return F.conv2d(narrow(y), narrow(w["p"]), w["b"]).numpy()

    ref = gptrs.get_backend("ref")
    with gptrs.use_backend(ref):
        wanted = network(ref, narrow)
    found: list[bytes] = []
    for threads in (1, 2, 3):
        backend, optimized = rounding(threads), Optimized()
        with gptrs.use_backend(backend), tracing(optimized):
            result = network(backend)
        (chain,) = optimized.calls(CHAIN)
        targets = [chain.attrs[f"target_{number}"] for number in range(3)]
        assert targets == [BF16_CONV2D, DEPTHWISE, BF16_CONV2D]
        # A number near the middle of two of bf16 may be rounded either way.
        error = np.abs(result - wanted)
        assert np.median(error) <= 1e-6 * np.abs(wanted).max()
        assert error.max() <= 2e-3 * np.abs(wanted).max()
        found.append(result.tobytes())
    assert found[0] == found[1] == found[2]


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer of a sequence: its result has a multiple of 32 channels where it may be joined."""

    outputs: int
    kernel: int = 1
    stride: int = 1
    padding: int = 0
    activation: str = "none"


def sequence(
    layers: tuple[Layer, ...],
    backend: Backend,
    image: tuple[int, ...],
    alone: bool = False,
    value: float = 1.0,
) -> tuple[list[np.ndarray], Optimized]:
    """Run layers one after another, `alone` with all results wanted, so that none is joined."""
    random = np.random.default_rng(5)
    x = random.standard_normal(image).astype(np.float32)
    x[-1, image[1] // 2, image[2] // 2, 0] = value
    channels, optimized, results = image[3], Optimized(), list[Tensor]()
    with gptrs.use_backend(backend), tracing(optimized):
        y = gptrs.tensor(x)
        for number, layer in enumerate(layers):
            shape = layer.outputs, channels, layer.kernel, layer.kernel
            weight = random.standard_normal(shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]))
            bias = random.standard_normal(layer.outputs).astype(np.float32)
            w, b = (
                parameter(f"{name}{number}", each.astype(np.float32), backend)
                for name, each in (("w", weight), ("b", bias))
            )
            y = F.conv2d(y, w, b, layer.stride, layer.padding)
            y = {"gelu": F.gelu, "silu": F.silu, "relu": F.relu}.get(layer.activation, F.relu6)(y)
            results.append(y)
            channels = layer.outputs
        wanted = results if alone else results[-1:]
        flush(wanted)
        return [each.numpy() for each in wanted], optimized


SEQUENCES = (
    ((1, 9, 7, 64), (Layer(32, activation="relu"), Layer(64, 3, 1, 1, "silu"), Layer(48))),
    ((2, 14, 13, 40), (Layer(64, 3, 1, 1, "gelu"), Layer(32, 5, 1, 2), Layer(33, 1))),
    ((1, 13, 11, 32), (Layer(96, 1, 1, 0, "gelu"), Layer(24, 1))),
    ((2, 12, 12, 33), (Layer(64, 3, 2, 1, "relu"), Layer(64, 3, 1, 0), Layer(64, 3, 2, 1))),
    ((1, 17, 19, 3), (Layer(32, 7, 2, 3, "relu"), Layer(40, 3, 1, 1), Layer(32, 3, 1, 1))),
    ((1, 16, 16, 3), (Layer(32, 4, 4), Layer(32, 1, activation="gelu"), Layer(8, 3, 1, 2))),
)


@pytest.mark.paths
@pytest.mark.parametrize("algorithm", ["auto", "amx"])
@pytest.mark.parametrize(("image", "layers"), SEQUENCES, ids=str)
def test_joined_layers_have_the_bits_of_single_ones(
    image: tuple[int, ...],
    layers: tuple[Layer, ...],
    algorithm: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, algorithm)
    *_, wanted = sequence(layers, rounding(), image, alone=True)[0]
    for threads in (1, 2, 3):
        (found,), optimized = sequence(layers, rounding(threads), image)
        assert optimized.calls(ROUNDED_CHAIN)
        assert found.tobytes() == wanted.tobytes()
    with gptrs.use_backend(gptrs.get_backend("ref")):
        ((exact,), _) = sequence(layers, gptrs.get_backend("ref"), image)
    assert np.abs(found - exact).max() <= 0.05 * max(1.0, np.abs(exact).max())


@pytest.mark.paths
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_joined_layers_keep_what_is_not_finite(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "amx")
    for image, layers in SEQUENCES[:2]:
        *_, wanted = sequence(layers, rounding(), image, alone=True, value=value)[0]
        ((found,), _) = sequence(layers, rounding(), image, value=value)
        assert np.array_equal(found, wanted, equal_nan=True)
        assert not np.isfinite(wanted).all()


def test_gelu_of_a_rounded_layer_is_that_of_the_functional() -> None:
    image, layers = (1, 5, 3, 32), (Layer(64, activation="gelu"),)
    ((found,), optimized) = sequence(layers, rounding(), image)
    (call,) = optimized.calls(BF16_CONV2D)
    assert call.attrs["activation"] == "gelu"
    ((wide,), unfused) = sequence(layers, create(1), image)
    assert all(each.attrs["activation"] == "none" for each in unfused.calls(CONV2D))
    assert np.abs(found - wide).max() <= 0.02 * np.abs(wide).max()


def test_weights_that_weigh_half_change_the_choice() -> None:
    assert winograd_side(Convolution(1, 28, 28, 128, 128)) == 4
    assert winograd_side(Convolution(1, 7, 7, 512, 512, rounded=True)) == 2
    assert winograd_side(Convolution(1, 2, 2, 512, 512, rounded=True)) is None
