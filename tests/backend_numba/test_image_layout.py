"""Images of networks that have their channels first stay channels-last between convolutions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import gptrs
from backend_numba.test_fusion_passes import calls, fused
from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs_backend_numba.schedule import CONV2D

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)
TYPES = ("f32[1, 3, 12, 12]", "f32[8, 3, 3, 3]", "f32[8, 1, 3, 3]", "f32[8, 8, 1, 1]")
IMAGE, STEM, DEPTH, POINT = (
    np.random.default_rng(place).standard_normal(shape).astype(np.float32)
    for place, shape in enumerate([(1, 3, 12, 12), (8, 3, 3, 3), (8, 1, 3, 3), (8, 8, 1, 1)])
)


def conv(x: Tensor, weight: Tensor, padding: int = 0, groups: int = 1) -> Tensor:
    """A convolution of an image with its channels first, as importers write it."""
    y = F.conv2d(F.transpose(x, LAST), weight, None, 1, padding, groups=groups)
    return F.transpose(y, FIRST)


def clipped(x: Tensor) -> Tensor:
    """ONNX's `Clip` between 0 and 6."""
    return F.minimum(F.maximum(x, 0.0), 6.0)


def inverted(image: Tensor, stem: Tensor, depth: Tensor, point: Tensor) -> Tensor:
    x = clipped(conv(image, stem, 1))
    return x + conv(clipped(conv(x, depth, 1, 8)), point)


def excited(image: Tensor, stem: Tensor, depth: Tensor, point: Tensor) -> Tensor:
    """Factors of channels, and of positions, that come channels-first, too."""
    x = conv(image, stem, 1) * F.reshape(F.slice_axis(depth, 2, 0, 1)[:, 0, 0, 0], (1, 8, 1, 1))
    gate = F.sigmoid(conv(F.mean(x, axis=(2, 3), keepdims=True), point))
    place = F.transpose(F.mean(F.transpose(x, LAST), axis=3, keepdims=True), FIRST)
    return conv(x * gate + place, point)


def joined(image: Tensor, stem: Tensor, depth: Tensor, point: Tensor) -> Tensor:
    x = conv(image, stem, 1)
    both = F.concat([F.relu(x), conv(x, depth, 1, 8)], axis=1)
    return conv(both, F.concat([point, point], axis=1))


@pytest.mark.parametrize("network", [inverted, excited, joined])
def test_channels_first_networks_compute_the_same(network: Callable[..., Tensor]) -> None:
    results: list[np.ndarray] = []
    for name in ("numba", "ref"):
        with gptrs.use_backend(gptrs.get_backend(name)):
            tensors = [gptrs.tensor(array) for array in (IMAGE, STEM, DEPTH, POINT)]
            results.append(gptrs.jit(network)(*tensors).numpy())
    found, wanted = results
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("image", [TYPES[0], "f32[?0, 3, ?1, ?2]"])
def test_clips_and_residuals_of_channels_first_networks_are_in_their_convolutions(
    image: str,
) -> None:
    with deciding(SizeGuards({0: 1, 1: 12, 2: 12})):
        program = fused(inverted, image, *TYPES[1:])
    names = Counter(step.op.name for step in program.main.body.instructions)
    assert {"maximum", "minimum", "add", "dot_general"}.isdisjoint(names)
    assert names["transpose"] <= 2 + 3  # of the image, the result, and the weights
    activations = [
        call.attrs[name] for call in calls(program) for name in call.attrs if "activation" in name
    ]
    assert sorted(map(str, activations)) == ["none", "relu6", "relu6"]


@pytest.mark.parametrize(("low", "high"), [(0.0, 5.0), (1.0, 6.0)])
def test_other_bounds_are_no_relu6(low: float, high: float) -> None:
    def network(image: Tensor, stem: Tensor) -> Tensor:
        return F.minimum(F.maximum(conv(image, stem, 1), low), high)

    with gptrs.use_backend(gptrs.get_backend("numba")):
        found = gptrs.jit(network)(gptrs.tensor(IMAGE * 10), gptrs.tensor(STEM)).numpy()
    assert found.min() == low
    assert found.max() == high


SEQUENCE, FILTERS = (
    np.random.default_rng(place).standard_normal(shape).astype(np.float32)
    for place, shape in enumerate([(2, 8, 30), (8, 8, 3)])
)


def dilated(x: Tensor, weight: Tensor) -> Tensor:
    """Causal layers of sequences with their channels first, as importers write them."""
    x = F.transpose(F.conv1d(F.transpose(x, (0, 2, 1)), weight, None, padding=1), (0, 2, 1))
    for distance in (2, 4):
        padded = F.pad(x, ((0, 0), (0, 0), (2 * distance, 0)))
        y = F.conv1d(F.transpose(padded, (0, 2, 1)), weight, None, dilation=distance)
        x = x + F.relu(F.transpose(y, (0, 2, 1)))
    return x


def test_dilated_layers_of_sequences_turn_nothing_between_them() -> None:
    program = fused(dilated, "f32[2, 8, 30]", "f32[8, 8, 3]")
    assert [call.target for call in calls(program)] == [CONV2D] * 2
    turned = [
        step for step in program.main.body.instructions
        if step.op.name == "transpose" and step.results[0].type.size == SEQUENCE.size
    ]  # fmt: skip
    assert len(turned) <= 2
    results: list[np.ndarray] = []
    for name in ("numba", "ref"):
        with gptrs.use_backend(gptrs.get_backend(name)):
            tensors = [gptrs.tensor(array) for array in (SEQUENCE, FILTERS)]
            results.append(gptrs.jit(dilated)(*tensors).numpy())
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)
