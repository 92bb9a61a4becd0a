"""Scores of classical models: their final transforms, and the labels of classes."""

from __future__ import annotations

import numpy as np

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Known, Node, Numbers, strings


def class_labels(node: Node, integers: str) -> Known:
    """Return the labels of classes, strings as their codes."""
    texts = node.texts("classlabels_strings", [])
    return node.conversion.codes(texts) if texts else np.array(node.integers(integers), np.int64)


def labelled(node: Node, chosen: Tensor) -> Numbers:
    """Return labels out of `class_labels` as what they are: numbers or strings."""
    return strings(chosen) if node.texts("classlabels_strings", []) else chosen


def transformed(node: Node, scores: Tensor, transform: str) -> Tensor:
    """Return scores [N, E] after the transform that a node names."""
    if transform == "NONE":
        return scores
    if transform == "LOGISTIC":
        return F.sigmoid(scores)
    if transform == "SOFTMAX":
        return F.softmax(scores, 1)
    if transform == "SOFTMAX_ZERO":  # a score of 0 gets no share
        is_zero = F.abs(scores) <= 1e-7
        powers = F.exp(scores - F.max(scores, 1, keepdims=True))
        powers = F.where(is_zero, F.zeros([], scores.dtype), powers)
        return powers / F.sum(powers, 1, keepdims=True)
    if transform == "PROBIT":
        return _probit(scores)
    node.malformed(f"has the transform {transform[:40]!a}")


def _probit(x: Tensor) -> Tensor:
    """Return `sqrt(2) * erfinv(2 x - 1)`, by Winitzki's approximation as ONNX Runtime has it."""
    y = 2.0 * x - 1.0
    log = F.log((1.0 - y) * (1.0 + y))
    half = 2.0 / (3.14159 * 0.147) + 0.5 * log
    root = F.sqrt(F.sqrt(half * half - log / 0.147) - half)
    return 1.41421356 * F.where(y < 0.0, -root, root)


def pair_of_scores(score: Tensor, positive: bool, logistic: bool) -> Tensor:
    """Return the scores [N, 2] of two classes out of that of the second one [N, 1].

    A `positive` one is a probability, others are distances from 0.
    """
    if logistic:
        return F.concat([F.sigmoid(-score), F.sigmoid(score)], 1)
    return F.concat([1.0 - score if positive else -score, score], 1)
