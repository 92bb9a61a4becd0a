"""Uses of the normalizations."""

# The tables below are of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs_conformance.functional_use import Use
from gptrs_conformance.numerics import norm_tolerance
from gptrs_conformance.running import normal


def standardize(x: np.ndarray, axes: Sequence[int], epsilon: float = 1e-5) -> np.ndarray:
    """With mean 0 and variance 1 over `axes`."""
    d = x - x.mean(tuple(axes), keepdims=True)
    d = d - d.mean(tuple(axes), keepdims=True)  # of equal elements f64 has a rounding error, too
    return d / np.sqrt((d * d).mean(tuple(axes), keepdims=True) + epsilon)


def _layer_norm(x: np.ndarray, w: np.ndarray | float = 1.0, b: Any = 0.0) -> np.ndarray:
    return standardize(x, [-1]) * w + b


def _rms(x: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def _batch_norm(
    x: np.ndarray, m: np.ndarray, v: np.ndarray, w: Any = 1.0, b: Any = 0.0, epsilon: float = 1e-5
) -> np.ndarray:
    return (x - m) / np.sqrt(v + epsilon) * w + b


def _group_norm(x: np.ndarray, groups: int, epsilon: float = 1e-5) -> np.ndarray:
    out = np.empty_like(x)
    size = x.shape[-1] // groups
    for n, group in np.ndindex(x.shape[0], groups):
        run = x[n, ..., group * size : (group + 1) * size]
        out[n, ..., group * size : (group + 1) * size] = standardize(run, range(run.ndim), epsilon)
    return out


def _first(x: Any) -> Any:
    return x.movedim(-1, 1)


def _last(x: Any) -> Any:
    return x.movedim(1, -1)


X = normal(1, 3, 4)
IMAGES = normal(1, 2, 3, 5, 6)
W, B = normal(5, 6), normal(6, 6)
MEAN, VARIANCE = normal(7, 6), np.abs(normal(8, 6)) + np.float32(0.1)

FAR = (np.float32(1000) + normal(1, 2, 8, 96), np.full((2, 8, 96), 12345.678, np.float32))
LARGE = (1e37 * np.sign(normal(2, 2, 8, 96)), np.full((2, 8, 96), 1e37, np.float32))


def _exact() -> Iterator[Use]:
    """Yield norms of what lies far from 0, to the last digits; near the limit of f32."""
    norms: tuple[tuple[str, Callable[..., Tensor], Callable[..., np.ndarray]], ...] = (
        ("layer_norm", F.layer_norm, lambda x: standardize(x, [2])),
        ("layer_norm", lambda x: F.layer_norm(x, axes=(1, 2)), lambda x: standardize(x, [1, 2])),
        ("group_norm", lambda x: F.group_norm(x, 6), lambda x: _group_norm(x, 6)),
        ("instance_norm", F.instance_norm, lambda x: standardize(x, [1])),
    )
    for number, (name, call, expected) in enumerate(norms):
        label = "2 axes, " * (number == 1)
        for x, what in zip(FAR, ("a mean of 1000 deviations", "equal elements"), strict=True):
            yield Use(name, (x,), call, expected, label + what, tolerance=norm_tolerance)
        # Squares are infinite, so that nothing is left; neither sums nor differences may be.
        for x, what in zip(LARGE, ("elements of 1e37", "equal elements of 1e37"), strict=True):
            yield Use(
                name, (x.astype(np.float32),), call, np.zeros_like, label + what, small_floats=False
            )


USES = (
    *_exact(),
    Use("layer_norm", (X, normal(5, 4), normal(6, 4)), F.layer_norm, _layer_norm,
        torch=lambda torch, x, w, b: torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)),
    Use("layer_norm", (X,), F.layer_norm, _layer_norm, "neither weight nor bias",
        torch=lambda torch, x: torch.nn.functional.layer_norm(x, x.shape[-1:])),
    Use("layer_norm", (X, normal(6, 4)), lambda x, b: F.layer_norm(x, bias=b, epsilon=1e-2),
        lambda x, b: standardize(x, [-1], 1e-2) + b, "only bias, epsilon",
        torch=lambda torch, x, b: torch.nn.functional.layer_norm(
            x, x.shape[-1:], None, b, 1e-2)),
    Use("layer_norm", (IMAGES, normal(5, 5, 6), normal(6, 5, 6)),
        lambda x, w, b: F.layer_norm(x, w, b, axes=(-2, -1)),
        lambda x, w, b: standardize(x, [-2, -1]) * w + b, "2 axes",
        torch=lambda torch, x, w, b: torch.nn.functional.layer_norm(x, x.shape[-2:], w, b)),
    Use("layer_norm", (normal(1, 7), normal(2, 7)), F.layer_norm, _layer_norm, "a vector",
        torch=lambda torch, x, w: torch.nn.functional.layer_norm(x, x.shape, w)),
    Use("layer_norm", (X[:0], normal(5, 4)), F.layer_norm, _layer_norm, "no rows",
        torch=lambda torch, x, w: torch.nn.functional.layer_norm(x, x.shape[-1:], w)),
    Use("rms_norm", (X, normal(5, 4)), F.rms_norm, lambda x, w: _rms(x) * w,
        torch=lambda torch, x, w: torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6)),
    Use("rms_norm", (X,), lambda x: F.rms_norm(x, epsilon=0.1), lambda x: _rms(x, 0.1),
        "no weight, epsilon",
        torch=lambda torch, x: torch.nn.functional.rms_norm(x, x.shape[-1:], None, 0.1)),
    Use("rms_norm", (IMAGES, W), lambda x, w: F.rms_norm(x, w, weight_offset=1),
        lambda x, w: _rms(x) * (w + 1), "weight less 1",
        torch=lambda torch, x, w: torch.nn.functional.rms_norm(x, x.shape[-1:], 1 + w, 1e-6)),
    Use("batch_norm", (IMAGES, MEAN, VARIANCE, W, B), F.batch_norm, _batch_norm,
        torch=lambda torch, x, m, v, w, b: _last(
            torch.nn.functional.batch_norm(_first(x), m, v, w, b))),
    Use("batch_norm", (IMAGES, MEAN, VARIANCE),
        lambda x, m, v: F.batch_norm(x, m, v, epsilon=1e-3),
        lambda x, m, v: _batch_norm(x, m, v, epsilon=1e-3), "neither weight nor bias, epsilon",
        torch=lambda torch, x, m, v: _last(
            torch.nn.functional.batch_norm(_first(x), m, v, eps=1e-3))),
    Use("batch_norm", (IMAGES, MEAN, VARIANCE, W), F.batch_norm, _batch_norm, "no bias"),
    Use("batch_norm", (IMAGES[:0], MEAN, VARIANCE, W, B), F.batch_norm, _batch_norm, "no images"),
    Use("batch_norm", (IMAGES.swapaxes(1, 3).copy(), MEAN, VARIANCE, W, B),
        lambda x, *parameters: F.batch_norm(x, *parameters, axis=1),
        lambda x, *parameters: _batch_norm(x.swapaxes(1, 3), *parameters).swapaxes(1, 3),
        "channels first",
        torch=lambda torch, x, *parameters: torch.nn.functional.batch_norm(x, *parameters)),
    Use("group_norm", (IMAGES, W, B), lambda x, w, b: F.group_norm(x, 3, w, b),
        lambda x, w, b: _group_norm(x, 3) * w + b,
        torch=lambda torch, x, w, b: _last(
            torch.nn.functional.group_norm(_first(x), 3, w, b))),
    Use("group_norm", (IMAGES, W), lambda x, w: F.group_norm(x, 1, w, epsilon=1e-2),
        lambda x, w: _group_norm(x, 1, 1e-2) * w, "1 group, epsilon",
        torch=lambda torch, x, w: _last(
            torch.nn.functional.group_norm(_first(x), 1, w, eps=1e-2))),
    Use("group_norm", (IMAGES,), lambda x: F.group_norm(x, 6), lambda x: _group_norm(x, 6),
        "a group a channel",
        torch=lambda torch, x: _last(torch.nn.functional.group_norm(_first(x), 6))),
    Use("group_norm", (normal(3, 4, 6), W, B), lambda x, w, b: F.group_norm(x, 2, w, b),
        lambda x, w, b: _group_norm(x, 2) * w + b, "no spatial axes",
        torch=lambda torch, x, w, b: torch.nn.functional.group_norm(x, 2, w, b)),
    Use("instance_norm", (IMAGES, W, B), F.instance_norm,
        lambda x, w, b: standardize(x, [1, 2]) * w + b,
        torch=lambda torch, x, w, b: _last(
            torch.nn.functional.instance_norm(_first(x), None, None, w, b))),
    Use("instance_norm", (normal(3, 2, 7, 4),), F.instance_norm,
        lambda x: standardize(x, [1]), "sequences, neither weight nor bias",
        torch=lambda torch, x: _last(torch.nn.functional.instance_norm(_first(x)))),
    Use("l2_normalize", (np.concatenate([X, np.zeros_like(X)]),), F.l2_normalize,
        lambda x: x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12),
        torch=lambda torch, x: torch.nn.functional.normalize(x, dim=-1)),
    Use("l2_normalize", (IMAGES,), lambda x: F.l2_normalize(x, axis=1, epsilon=2.0),
        lambda x: x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 2), "axis, epsilon",
        torch=lambda torch, x: torch.nn.functional.normalize(x, dim=1, eps=2.0)),
)  # fmt: skip
