"""Support vector machines of `ai.onnx.ml`, as libsvm defines their votes and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, combinations
from typing import Final

import numpy as np

from gptrs.api.importers import scalar
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Known, Node, Numbers, constant, converts
from gptrs_onnx.ops.classical import affine, feature_rows
from gptrs_onnx.ops.scores import class_labels, labelled

_LEAST_SHARE: Final = 1e-7
"""The least probability of one of two classes."""
_MOST_ITERATIONS: Final = 100


def _kernel(node: Node, x: Tensor, vectors: Known) -> Tensor:
    """Return the kernel of each row [N, F] and each vector [V, F]: [N, V]."""
    gamma, shift, degree = [*node.numbers("kernel_params", []), 0.0, 0.0, 0.0][:3]
    kind = node.text("kernel_type", "LINEAR")
    if kind == "RBF":
        # Differences, not |x|^2 + |v|^2 - 2 x v: that cancels for near vectors, and votes change at
        # its rounding.
        apart = F.expand_dims(x, 1) - constant(vectors)
        return F.exp(-gamma * F.sum(apart * apart, 2))
    dots = F.linear(x, constant(vectors))
    if kind == "LINEAR":
        return dots
    if kind == "POLY":
        return F.pow(gamma * dots + shift, degree)
    if kind == "SIGMOID":
        return F.tanh(gamma * dots + shift)
    node.malformed(f"has the kernel {kind[:40]!a}")


@converts("ai.onnx.ml.SVMRegressor")
def svm_regressor(
    node: Node,
    x: Tensor,
    *,
    coefficients: list[float],
    rho: list[float],
    n_supports: int = 0,
    one_class: bool = False,
    post_transform: str = "NONE",
) -> Tensor:
    """Return a weighted sum of the kernels with the support vectors [N, 1], or its sign."""
    if post_transform != "NONE":
        node.refuse(f"has the transform {post_transform[:40]!a}")
    if n_supports:
        vectors = np.array(node.numbers("support_vectors"), np.float32).reshape(n_supports, -1)
        found = _kernel(node, feature_rows(x), vectors)
    else:
        found = feature_rows(x)
    scores = affine(found, coefficients, 1, rho[:1])
    if not one_class:
        return scores
    return F.where(scores > 0.0, *(scalar(each, scores.dtype) for each in (1.0, -1.0)))


@converts("ai.onnx.ml.SVMClassifier")
def svm_classifier(
    node: Node,
    x: Tensor,
    *,
    coefficients: list[float],
    rho: list[float],
    vectors_per_class: list[int] | None = None,
    post_transform: str = "NONE",
) -> tuple[Numbers, Tensor]:
    """Return the class of each row [N], and its scores.

    Those are a score for each pair of classes [N, C * (C - 1) / 2], for two classes [N, 2], or with
    `prob_a` and `prob_b` the probability of each class [N, C].
    """
    labels = class_labels(node, "classlabels_ints")
    if not vectors_per_class or post_transform != "NONE":
        node.refuse("is linear, or transforms its scores; only machines of vectors are supported")
    vectors = np.array(node.numbers("support_vectors"), np.float32)
    found = _kernel(node, feature_rows(x), vectors.reshape(sum(vectors_per_class), -1))
    factors = np.array(coefficients, np.float32).reshape(len(vectors_per_class) - 1, -1)
    pairs = _pair_scores(found, factors, rho, vectors_per_class)
    votes = F.argmax(_votes(pairs, len(vectors_per_class)), 1)
    chosen = labelled(node, F.take(constant(labels), votes, 0))
    a, b = node.numbers("prob_a", []), node.numbers("prob_b", [])
    if a:
        shares = F.sigmoid(-(pairs * _row(a) + _row(b)))
        return chosen, _probabilities(shares, len(vectors_per_class))
    return chosen, F.concat([-pairs, pairs], 1) if len(vectors_per_class) == 2 else pairs


def _row(values: list[float]) -> Tensor:
    return constant(np.array([values], np.float32))


def _pair_scores(
    kernel: Tensor, factors: Known, rho: Sequence[float], counts: Sequence[int]
) -> Tensor:
    """Return a score for each pair of classes, above 0 for the first, [N, pairs].

    A vector of one class has a factor for each other class, [C - 1, V], in order.
    """
    ends = [0, *accumulate(counts)]
    pairs = list(combinations(range(len(counts)), 2))
    weights = np.zeros((len(pairs), ends[-1]), np.float32)
    for weight, (first, second) in zip(weights, pairs, strict=True):
        for own, other in ((first, second - 1), (second, first)):
            part = slice(ends[own], ends[own + 1])
            weight[part] = factors[other, part]
    return affine(kernel, weights.reshape(-1).tolist(), len(pairs), list(rho))


def _votes(pairs: Tensor, classes: int) -> Tensor:
    """Return how many pairs each class wins, [N, C]."""
    wins = F.cast(pairs > 0.0, dtypes.f32)
    for_first, for_second = (
        np.zeros((classes, classes * (classes - 1) // 2), np.float32) for _ in range(2)
    )
    for pair, (first, second) in enumerate(combinations(range(classes), 2)):
        for_first[first, pair] = for_second[second, pair] = 1
    return F.linear(wins, constant(for_first)) + F.linear(1.0 - wins, constant(for_second))


def _probabilities(shares: Tensor, classes: int) -> Tensor:
    """Return the probability of each class [N, C] of those of the first in each pair.

    The second method of Wu, Lin and Weng 2004, stopped as in libsvm: rows that have converged stay
    as they are.
    """
    shares = F.minimum(F.maximum(shares, _LEAST_SHARE), 1 - _LEAST_SHARE)
    columns = {
        pair: F.squeeze(part, 1)
        for pair, part in zip(
            combinations(range(classes), 2), F.split(shares, shares.shape[1], 1), strict=True
        )
    }

    def share(one: int, other: int) -> Tensor:
        return columns[one, other] if one < other else 1.0 - columns[other, one]

    every = range(classes)

    def entry(row: int, column: int) -> Tensor:
        if row != column:
            return -(share(column, row) * share(row, column))
        return F.sum(F.stack([F.square(share(j, row)) for j in every if j != row], 0), 0)

    rows = [F.stack([entry(row, column) for column in every], 1) for row in every]
    matrix = F.stack(rows, 1)  # (N, C, C)
    return _converged(matrix, classes)


def _converged(matrix: Tensor, classes: int) -> Tensor:
    """Return the probabilities p [N, C] that minimize `p Q p` for Q [N, C, C]."""
    start = F.broadcast_to(scalar(1 / classes, matrix.dtype), [matrix.shape[0], classes])

    def products(p: Tensor) -> tuple[Tensor, Tensor]:
        found = F.squeeze(F.matmul(matrix, F.expand_dims(p, 2)), 2)
        return found, F.sum(p * found, 1, keepdims=True)

    def is_moving(p: Tensor) -> Tensor:
        found, whole = products(p)
        return F.max(F.abs(found - whole), 1, keepdims=True) >= 0.005 / classes

    def goes_on(number: Tensor, p: Tensor) -> tuple[Tensor]:
        moving = F.max(F.cast(is_moving(p), dtypes.si32))
        return (F.logical_and(number < _MOST_ITERATIONS, moving > 0),)

    def step(number: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        found, whole = products(p)
        made = p
        for t in range(classes):
            row = F.squeeze(F.slice_axis(matrix, 1, t, 1), 1)
            own, at = F.slice_axis(row, 1, t, 1), F.slice_axis(found, 1, t, 1)
            change = (whole - at) / own
            # The sequential updates of libsvm, in its order: its results depend on when it stops.
            less = 1.0 + change
            whole = (whole + change * (change * own + 2.0 * at)) / less / less
            found = (found + change * row) / less
            unit = constant(np.eye(classes, dtype=np.float32)[t : t + 1])
            made = (made + change * unit) / less
        return number + 1, F.where(is_moving(p), made, p)

    return primitives.while_(goes_on, step, primitives.constant(np.int64(0)), start)[1]
