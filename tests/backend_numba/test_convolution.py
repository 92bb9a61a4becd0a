"""Convolutions: every algorithm on every geometry against f64, fusing, threads, networks."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

import gptrs
from backend_numba.convolutions import (
    EPILOGUES,
    Case,
    activated,
    arrays_of,
    computed,
    expected,
    parameter,
    require_close,
)
from gptrs import functionals as F
from gptrs.api.backends import Backend
from gptrs.capture.events import CompileEnd, ExecutionTraceSink, tracing
from gptrs.errors import UsageError
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Program
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.cost_model import VARIABLE, Convolution, winograd_side
from gptrs_backend_numba.lowering.convolution_calls import TransformedWeight
from gptrs_backend_numba.schedule import CHAIN, CONV2D, DEPTHWISE, GROUPED
from vision_networks import NETWORKS, Counting, FunctionalLayers, Weights, captured

BACKEND = create(1)


class Optimized(ExecutionTraceSink):
    """Keeps the programs that backends compile."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    def after_program(self, event: CompileEnd) -> None:
        assert event.optimized is not None
        self.programs.append(event.optimized)

    def calls(self, target: str) -> list[CustomCall]:
        return [
            instruction.op
            for program in self.programs
            for instruction in program.main.body.instructions
            if isinstance(instruction.op, CustomCall) and instruction.op.target == target
        ]


WIDE = Case((1, 14, 13, 33), 40)
GEOMETRIES = (
    Case((1, 9, 9, 3), 5, (7, 7), (2, 2), ((3, 3), (3, 3))),
    Case((2, 5, 6, 4), 33, (3, 2), (2, 3), ((0, 1), (2, 1)), (2, 1)),
    Case((1, 30, 7, 17), 64, (1, 1), (1, 1), ((0, 0), (0, 0))),
    Case((1, 9, 8, 16), 20, (1, 1), (2, 3), ((0, 0), (0, 0))),
    Case((1, 6, 5, 2), 3, (1, 1), (1, 1), ((1, 2), (0, 1))),
    Case((1, 12, 11, 5), 7, (3, 3), (1, 1), ((2, 2), (2, 2)), (2, 2)),
    Case((3, 7, 40, 8), 48, (1, 5), (1, 2), ((0, 0), (2, 2))),
    WIDE,
)


@pytest.mark.parametrize("case", GEOMETRIES, ids=str)
@pytest.mark.parametrize("constant", [True, False])
def test_direct_on_all_geometries(
    case: Case, constant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "direct")
    require_close(case, constant=constant)


@pytest.mark.parametrize("algorithm", ["direct", "winograd2", "winograd4", "gemm"])
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
def test_epilogues(
    algorithm: str, epilogue: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, algorithm)
    require_close(dataclasses.replace(WIDE, **epilogue), 2e-5)


WINOGRAD = (
    Case((1, 4, 4, 8), 16),
    Case((1, 3, 1, 1), 1),
    Case((2, 7, 10, 19), 35),
    Case((1, 17, 9, 64), 64, padding=((0, 2), (1, 0))),
    Case((1, 28, 28, 128), 128),
)


@pytest.mark.paths
@pytest.mark.parametrize("side", [2, 4])
@pytest.mark.parametrize("case", WINOGRAD, ids=str)
def test_winograd_stays_within_its_bound(
    case: Case, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The issue of the algorithm is rounding: 1e-4 of the range of the result is allowed."""
    monkeypatch.setenv(VARIABLE, f"winograd{side}")
    plain = dataclasses.replace(case, normalized=False)
    require_close(plain, 2e-5)


def test_winograd_is_what_runs_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of different algorithms differ in their last bits."""
    case = Case((1, 12, 12, 32), 32)
    arrays = arrays_of(case)
    found = {}
    for algorithm in ("direct", "winograd2", "winograd4"):
        monkeypatch.setenv(VARIABLE, algorithm)
        found[algorithm] = computed(case, arrays, create(1)).tobytes()
    assert len(set(found.values())) == 3


DEPTHWISE_CASES = (
    Case((1, 7, 9, 16), 16, groups=16),
    Case((2, 14, 15, 33), 33, stride=(2, 2), groups=33),
    Case((1, 30, 21, 8), 8, (5, 3), (1, 2), ((2, 2), (0, 1)), (1, 2), groups=8),
    Case((1, 4, 3, 20), 20, (5, 5), padding=((2, 2), (2, 2)), groups=20),
    Case((1, 20, 20, 4), 4, (3, 3), (1, 1), ((0, 0), (0, 0)), groups=4),
    Case((2, 16, 18, 24), 24, stride=(2, 2), padding=((0, 1), (0, 1)), groups=24),
    Case((1, 3, 3, 40), 40, groups=40),
    Case((1, 3, 2, 17), 17, groups=17),
    Case((1, 9, 11, 16), 16, padding=((1, 0), (0, 1)), groups=16),
    Case((1, 9, 21, 33), 33, (5, 5), padding=((2, 2), (2, 2)), groups=33),
    Case((2, 8, 31, 17), 17, (3, 5), (2, 2), ((1, 1), (2, 2)), groups=17),
    Case((1, 10, 23, 40), 40, (7, 7), padding=((3, 3), (3, 3)), groups=40),
)


@pytest.mark.sample(12)
@pytest.mark.paths
@pytest.mark.parametrize("case", DEPTHWISE_CASES, ids=str)
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
def test_depthwise(case: Case, epilogue: dict[str, object]) -> None:
    require_close(dataclasses.replace(case, **epilogue))


GROUPED_CASES = (
    Case((1, 14, 13, 128), 128, groups=2),
    Case((2, 9, 17, 36), 96, stride=(2, 2), groups=3),
    Case((1, 11, 12, 10), 128, (5, 3), (1, 2), ((2, 2), (0, 1)), (1, 2), groups=2),
    Case((2, 5, 5, 48), 64, (2, 2), (2, 2), ((0, 0), (0, 0)), groups=2),
)


@pytest.mark.paths
@pytest.mark.parametrize("case", GROUPED_CASES, ids=str)
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
def test_grouped(case: Case, epilogue: dict[str, object]) -> None:
    optimized = Optimized()
    with tracing(optimized):
        require_close(dataclasses.replace(case, **epilogue))
    (call,) = optimized.calls(GROUPED)
    assert call.attrs["activation"] == epilogue.get("activation", "none")


@pytest.mark.parametrize("stride", [1, 2])
def test_a_depthwise_window_sees_nothing_but_its_taps(stride: int) -> None:
    """NaN at an edge stays in the windows that hold it: what is beyond the image is not read."""
    case = Case((1, 8, 9, 20), 20, stride=(stride, stride), groups=20)
    arrays = arrays_of(case)
    for row, column in ((0, 0), (0, 8), (7, 0), (7, 8), (3, 8), (4, 0)):
        arrays["x"][0, row, column] = np.nan
    assert (np.isnan(computed(case, arrays)) == np.isnan(expected(case, arrays))).all()


def test_groups_and_several_kernels_a_channel_are_right_though_not_fused() -> None:
    optimized = Optimized()
    with tracing(optimized):
        require_close(Case((1, 8, 7, 12), 24, groups=3))
        require_close(Case((1, 8, 7, 12), 24, groups=12))
    assert not any(optimized.calls(each) for each in (CONV2D, DEPTHWISE, GROUPED))


@pytest.mark.paths
@pytest.mark.parametrize(
    "case",
    [
        Case((1, 57, 31, 16), 72, residual=True, activation="relu"),
        Case((1, 57, 31, 48), 48, groups=48),
        Case((1, 30, 31, 128), 128, groups=4, activation="relu"),
        Case((1, 57, 31, 40), 40, groups=40, activation="silu"),
        Case((1, 57, 31, 16), 72, activation="hard_swish"),
        Case((1, 56, 56, 24), 100, (1, 1), padding=((0, 0), (0, 0))),
    ],
    ids=str,
)
@pytest.mark.parametrize("algorithm", ["direct", "winograd2", "winograd4"])
def test_threads_do_not_show(case: Case, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, algorithm)
    arrays = arrays_of(case)
    alone = computed(case, arrays, create(1))
    for threads in (2, 3):
        assert computed(case, arrays, create(threads)).tobytes() == alone.tobytes()


def test_nan_and_infinity_pass_through() -> None:
    case = Case((1, 6, 6, 4), 8, (1, 1), padding=((0, 0), (0, 0)), activation="relu6")
    arrays = arrays_of(case)
    arrays["x"][0, 2, 3, 1] = np.nan
    found = computed(case, arrays)
    assert np.isnan(found[0, 2, 3]).all()
    assert not np.isnan(np.delete(found.reshape(36, 8), 15, axis=0)).any()


@pytest.mark.paths
@pytest.mark.parametrize("activation", ["silu", "hard_swish"])
def test_activations_of_all_numbers(activation: str) -> None:
    """A window of one position with a weight of 1 leaves every number as it is."""
    random = np.random.default_rng(3)
    some = np.concatenate([np.linspace(-110, 110, 4001), random.standard_normal(4000) * 4])
    odd = [0.0, -0.0, 1e-30, -1e-30, 1e-40, 1e38, -1e38, np.inf, -np.inf, np.nan]
    x = np.zeros((1, 30, 270, 1), np.float32)
    x.reshape(-1)[: some.size] = some
    x.reshape(-1)[-len(odd) :] = odd
    case = Case(x.shape, 18, (1, 1), padding=((0, 0),) * 2, normalized=False, activation=activation)
    weight = np.ones((18, 1, 1, 1), np.float32)
    optimized = Optimized()
    with tracing(optimized):
        found = computed(case, arrays_of(case) | {"x": x, "weight": weight})
    (call,) = optimized.calls(CONV2D)
    assert call.attrs["activation"] == activation
    with np.errstate(invalid="ignore"):
        wanted = activated(activation, x.astype(np.float64))
    wanted = np.broadcast_to(wanted, found.shape)
    np.testing.assert_allclose(found, wanted, rtol=5e-7, atol=1e-36)


@pytest.mark.parametrize("read", ["x", "gate"])
def test_what_others_read_of_a_gate_is_not_taken(read: str) -> None:
    case = Case((1, 12, 12, 8), 16, normalized=False)
    arrays = arrays_of(case)
    backend = create(1)
    optimized = Optimized()
    with gptrs.use_backend(backend), tracing(optimized):
        weight = parameter("w", arrays["weight"], backend)
        x = F.conv2d(gptrs.tensor(arrays["x"]), weight, None, 1, 1)
        gate = F.sigmoid(x)
        found = (x * gate - (x if read == "x" else gate)).numpy()
    assert [call.attrs["activation"] for call in optimized.calls(CONV2D)] == ["none"]
    y = expected(case, arrays)
    z = 1 / (1 + np.exp(-y))
    np.testing.assert_allclose(found, y * z - (y if read == "x" else z), atol=1e-4)


def test_what_others_read_is_not_taken_into_the_call() -> None:
    arrays = arrays_of(WIDE)
    with gptrs.use_backend(BACKEND):
        optimized = Optimized()
        with tracing(optimized):
            y = F.conv2d(
                gptrs.tensor(arrays["x"]), parameter("w", arrays["weight"], BACKEND), None, 1, 1
            )
            z = F.relu(y)
            found = (y + z).numpy()
    assert [call.attrs["activation"] for call in optimized.calls(CONV2D)] == ["none"]
    plain = expected(dataclasses.replace(WIDE, normalized=False), arrays)
    np.testing.assert_allclose(found, plain + np.maximum(plain, 0), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "images", "convolutions", "depthwise"),
    [("ResNet-34", 64, 36, 0), ("MobileNetV2", 64, 35, 17)],
)
def test_networks_are_fused(name: str, images: int, convolutions: int, depthwise: int) -> None:
    """Nothing but calls, pooling and the classes is left: no arithmetic on images."""
    counting = Counting()
    NETWORKS[name]((images, images), counting)
    assert len(counting.convolutions) == convolutions + depthwise
    x = np.random.default_rng(1).standard_normal((1, images, images, 3)).astype(np.float32)
    weights, optimized = Weights(), Optimized()
    with tracing(optimized):
        found = captured(name, FunctionalLayers(weights, BACKEND))(gptrs.tensor(x)).numpy()
    targets = Counter({each: len(optimized.calls(each)) for each in (CONV2D, DEPTHWISE)})
    for chain in optimized.calls(CHAIN):
        targets.update(chain.attrs[name] for name in chain.attrs if name.startswith("target_"))
    assert targets == {CONV2D: convolutions, DEPTHWISE: depthwise}
    network = max(optimized.programs, key=lambda program: len(program.main.body.instructions))
    names = [step.op.name for step in network.main.body.instructions]
    assert {"extract_patches", "maximum", "clamp"}.isdisjoint(names)
    ref = gptrs.get_backend("ref")
    wanted = captured(name, FunctionalLayers(weights, ref))(gptrs.tensor(x)).numpy()
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.paths
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stem", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_layers_around_a_depthwise_one_work_row_by_row(
    stride: int, kernel: int, stem: bool, count: int
) -> None:
    """Two images between them are larger than a cache; a smaller one is computed at once."""
    random = np.random.default_rng(3)
    high, wide = (63, 61) if count == 2 else (30, 28)
    shapes = {
        "x": (count, 2 * high - 1, 2 * wide - 1, 6) if stem else (count, high, wide, 6),
        "e": (72, 6, 3, 3) if stem else (72, 6, 1, 1),
        "d": (72, 1, kernel, kernel), "p": (10, 72, 1, 1), "s": (72,), "b": (10,),
    }  # fmt: skip
    arrays = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }

    def network(backend: Backend) -> np.ndarray:
        w = {name: parameter(name, array, backend) for name, array in arrays.items()}
        x = gptrs.tensor(arrays["x"])
        y = F.conv2d(x, w["e"], w["s"], 2 if stem else 1, 1 if stem else 0)
        y = F.relu6(y) if kernel == 3 else F.silu(y)
        y = F.relu(F.depthwise_conv2d(y, w["d"], None, stride, kernel // 2))
        return F.relu(F.conv2d(y, w["p"], w["b"])).numpy()

    ref = gptrs.get_backend("ref")
    with gptrs.use_backend(ref):
        wanted = network(ref)
    found: list[bytes] = []
    for threads in (1, 2, 3):
        backend, optimized = create(threads), Optimized()
        with gptrs.use_backend(backend), tracing(optimized):
            result = network(backend)
        assert len(optimized.calls(CHAIN)) == 1
        assert np.abs(result - wanted).max() <= 2e-5 * np.abs(wanted).max()
        found.append(result.tobytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.paths
@pytest.mark.parametrize(
    ("length", "kernel", "stride", "padding", "dilation"),
    [(40, 3, 1, (0, 0), 4), (33, 5, 2, (4, 1), 2), (9, 2, 3, (7, 7), 8)],
)
def test_dilated_sequences_are_images_of_a_row(
    length: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int
) -> None:
    random = np.random.default_rng(5)
    x, weight, bias = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((2, length, 17), (20, 17, kernel), (20,))
    )
    results: list[np.ndarray] = []
    optimized = Optimized()
    for backend in (create(1), gptrs.get_backend("ref")):
        with gptrs.use_backend(backend), tracing(optimized):
            w = parameter("w", weight, backend)
            y = F.conv1d(gptrs.tensor(x), w, gptrs.tensor(bias), stride, (padding,), dilation)
            results.append(y.numpy())
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)
    assert len(optimized.calls(CONV2D)) == 1


def test_an_unknown_algorithm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "fft")
    with pytest.raises(UsageError, match="must be one of auto, direct"):
        winograd_side(Convolution(1, 8, 8, 8, 8))


def test_the_cost_model_knows_when_weights_weigh_too_much() -> None:
    assert winograd_side(Convolution(1, 56, 56, 64, 64)) == 4
    assert winograd_side(Convolution(1, 14, 14, 256, 256)) == 2
    assert winograd_side(Convolution(1, 2, 2, 512, 512)) is None


@pytest.mark.parametrize("side", [2, 4])
def test_transformed_weights_compute_a_convolution(side: int) -> None:
    """A weight that is 1 in the middle leaves an image as it is: each product is that of tiles."""
    weight = np.zeros((3, 3, 1, 1), np.float32)
    weight[1, 1] = 1
    made = TransformedWeight(side, 1, 1, 0).packed(weight, 1).view(np.float32)
    middle = {2: [0, 0.5, -0.5, 0], 4: [0, -1 / 6, 1 / 6, 1 / 12, -1 / 12, 0]}[side]
    panels = made.reshape((side + 2) ** 2, -1)
    np.testing.assert_allclose(panels[:, 0].reshape(side + 2, -1), np.outer(middle, middle))
    assert not panels[:, 1:].any()
