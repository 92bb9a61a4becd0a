"""Logits to scores, by the settings that transformers and sentence-transformers go by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

import numpy as np

from gptrs.errors import ModelError
from gptrs.quoting import listed, shown_value

Scores = Callable[[np.ndarray], np.ndarray]
"""From logits f64 [..., classes] to scores of the same shape."""


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities that sum to 1 over the last axis, f64."""
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return `1 / (1 + exp(-x))` of each, f64."""
    return 0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64)))


def unchanged(logits: np.ndarray) -> np.ndarray:
    """Return the logits, f64."""
    return logits.astype(np.float64)


_BY_PROBLEM: Final[dict[str, Scores]] = {
    "regression": unchanged,
    "single_label_classification": softmax,
    "multi_label_classification": sigmoid,
}
_BY_MODULE: Final[dict[str, Scores]] = {
    "torch.nn.modules.activation.Sigmoid": sigmoid,
    "torch.nn.modules.linear.Identity": unchanged,
}


def class_scores(config: Mapping[str, object], classes: int) -> Scores:
    """Return what makes scores of the logits of a classifier, by `problem_type` of config.json.

    Without it one class has a sigmoid, several have a softmax. ModelError for another problem.
    """
    problem = config.get("problem_type")
    if problem is None:
        return sigmoid if classes == 1 else softmax
    if not isinstance(problem, str) or problem not in _BY_PROBLEM:
        raise ModelError(
            f"`problem_type` must be one of {listed(_BY_PROBLEM)}, found {shown_value(problem)}"
        )
    # transformers gives one class a sigmoid whatever its problem, but for a regression.
    return sigmoid if classes == 1 and problem != "regression" else _BY_PROBLEM[problem]


def rank_scores(config: Mapping[str, object], saved: Mapping[str, object] | None = None) -> Scores:
    """Return what makes a score of the one logit of a reranker: a sigmoid unless its files say so.

    sentence-transformers names the function in config.json, or in `saved`, the content of
    config_sentence_transformers.json, which goes first. ModelError for another function.
    """
    own = config.get("sentence_transformers")
    table = cast("Mapping[str, object]", own if isinstance(own, Mapping) else {})
    name = (saved or {}).get("activation_fn") or table.get("activation_fn")
    name = name or config.get("sbert_ce_default_activation_function")
    if name is None:
        return sigmoid
    if not isinstance(name, str) or name not in _BY_MODULE:
        raise ModelError(
            f"the function of scores must be one of {listed(_BY_MODULE)}, found {shown_value(name)}"
        )
    return _BY_MODULE[name]
