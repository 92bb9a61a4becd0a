"""Measures of a head on held-out rows: accuracy, F1, and the correlation of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

Outputs = Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""The outputs, targets and weights of each batch; rows with the weight 0 are ignored."""


def class_scores(batches: Outputs, problem: str) -> dict[str, float]:
    """Return the measures of logits f32 [B, classes] of texts.

    One class each: accuracy and macro F1. Several: the share of rows with all classes right, and
    micro F1. A regression: Pearson's correlation.
    """
    logits, targets = _real(batches)
    if problem == "regression":
        return {"correlation": _correlation(logits[:, 0], targets)}
    if problem == "multi_label_classification":
        found, wanted = logits > 0, targets > 0.5
        right = (found == wanted).all(1)
        return {
            "accuracy": _mean(right),
            "f1": _f1((found & wanted).sum(), found.sum() + wanted.sum()),
        }
    return _of_classes(logits.argmax(-1), targets)


def rank_scores(batches: Outputs) -> dict[str, float]:
    """Return accuracy and F1 of logits f32 [B, 1], relevant above 0, for relevances from 0 to 1."""
    logits, targets = _real(batches)
    found, wanted = logits[:, 0] > 0, targets > 0.5
    both = (found & wanted).sum()
    return {"accuracy": _mean(found == wanted), "f1": _f1(both, found.sum() + wanted.sum())}


def pair_scores(batches: Outputs, *, scored: bool) -> dict[str, float]:
    """Return how well texts find their partners in the batch, f32 [B, candidates].

    For `scored` pairs, Spearman's correlation of similarities f32 [B] with the scores.
    """
    outputs, targets = _real(batches)
    if scored:
        return {"correlation": _correlation(_ranks(outputs), _ranks(targets))}
    own = [found.argmax(-1) == np.arange(len(found)) for found, _, _ in batches]
    real = [weights > 0 for _, _, weights in batches]
    return {"accuracy": _mean(np.concatenate(own)[np.concatenate(real)])}


def tag_scores(batches: Outputs, labels: Sequence[str]) -> dict[str, float]:
    """Return the accuracy of tags of logits f32 [B, T, classes], and F1.

    F1 is that of whole entities if the labels begin with `B-` and `I-`, else the macro F1 of tags.
    """
    found: list[np.ndarray] = []
    wanted: list[np.ndarray] = []
    for logits, targets, weights in batches:
        for own, target, real in zip(logits.argmax(-1), targets, weights > 0, strict=True):
            if real.any():
                found.append(own[real])
                wanted.append(target[real])
    scores = _of_classes(np.concatenate(found), np.concatenate(wanted))
    if any(label.startswith(("B-", "I-")) for label in labels):
        ours, theirs = (
            {(number, *each) for number, row in enumerate(rows) for each in _entities(row, labels)}
            for rows in (found, wanted)
        )
        scores["f1"] = _f1(len(ours & theirs), len(ours) + len(theirs))
    return scores


def _entities(tags: np.ndarray, labels: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return the entities of a row, (from, to, kind); `I-` after another kind begins one."""
    found: list[tuple[int, int, str]] = []
    for at, tag in enumerate(cast("list[int]", tags.tolist())):
        begins, _, kind = labels[tag].partition("-")
        if begins not in ("B", "I"):
            continue
        if begins == "I" and found and found[-1][1] == at and found[-1][2] == kind:
            found[-1] = found[-1][0], at + 1, kind
        else:
            found.append((at, at + 1, kind))
    return found


def _real(batches: Outputs) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs and targets of the rows that count, those of all batches."""
    widths = {found.shape[1:] for found, _, _ in batches}
    if len(widths) > 1:  # candidates of batches of several sizes: only their targets are read
        return np.zeros(0), np.zeros(0)
    real = np.concatenate([weights for _, _, weights in batches]) > 0
    outputs = np.concatenate([found for found, _, _ in batches])
    return outputs[real], np.concatenate([targets for _, targets, _ in batches])[real]


def _of_classes(found: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """Return accuracy, and the mean F1 of the classes that occur."""
    classes = np.union1d(found, wanted)
    parts = [
        _f1(((found == c) & (wanted == c)).sum(), (found == c).sum() + (wanted == c).sum())
        for c in classes
    ]
    return {"accuracy": _mean(found == wanted), "f1": sum(parts) / len(parts)}


def _f1(both: float, total: float) -> float:
    # Nothing to find and nothing found is right; 0/0 would be NaN in the report.
    return float(2 * both / total) if total else 1.0


def _mean(right: np.ndarray) -> float:
    return float(right.mean())


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return Pearson's correlation, 0 if either does not vary."""
    # f64: sums of squares over many rows lose digits in f32.
    a, b = one - one.mean(dtype=np.float64), other - other.mean(dtype=np.float64)
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value; equal ones share their mean rank."""
    _, number, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[number]
