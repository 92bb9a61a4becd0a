"""Boxes of detectors, which are selected during conversion."""

from __future__ import annotations

import numpy as np

from gptrs.api import UnsupportedError
from gptrs.api.models import Tensor
from gptrs_onnx.node import Known, Node, Value, constant, converts, cut_before
from gptrs_onnx.search import NeedsKnownError


@converts("NonMaxSuppression")
def non_max_suppression(
    node: Node,
    boxes: Value,
    scores: Value,
    most: Known | None = None,
    overlap: Known | None = None,
    least: Known | None = None,
    *,
    center_point_box: bool = False,
) -> Tensor:
    """Return batch, class and number of the boxes that remain [count, 3], best scores first.

    How many remain is known while the graph is converted, so boxes [B, N, 4] and scores [B, C, N]
    must be known, too. UnsupportedError if they are computed from much data.
    """
    del boxes, scores
    try:
        places, values = node.known(0), node.known(1)
    except NeedsKnownError as need:
        raise need from UnsupportedError(
            f"{node} leaves as many boxes as the data asks for, and the sizes of results are known"
            " before a program runs",
            hint=cut_before(node),
        )
    limit = 0 if most is None else int(most.item())
    bounds = [0.0 if each is None else float(each.item()) for each in (overlap, least)]
    corners = _corners(places.astype(np.float64), center_point_box)
    found: list[tuple[int, int, int]] = []
    for batch in range(values.shape[0]):
        for kind in range(values.shape[1]):
            row = values[batch, kind].astype(np.float64)
            order = np.argsort(-row, kind="stable")
            if least is not None:
                order = order[row[order] > bounds[1]]
            kept = _kept(corners[batch], order, limit, bounds[0])
            found += [(batch, kind, number) for number in kept]
    return constant(np.array(found, np.int64).reshape(-1, 3))


def _corners(boxes: Known, centered: bool) -> Known:
    """Return boxes [B, N, 4] as least and greatest y and x."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if centered:  # x, y of the middle, width, height
        low, high = (first - second / 2)[..., ::-1], (first + second / 2)[..., ::-1]
    else:
        low, high = np.minimum(first, second), np.maximum(first, second)
    return np.concatenate([low, high], -1)


def _kept(boxes: Known, order: Known, limit: int, overlap: float) -> list[int]:
    """Return the boxes in order that share at most `overlap` with those before them."""
    kept: list[int] = []
    for number in map(int, order):
        if len(kept) >= limit:
            break
        if not kept or _shares(boxes[number], boxes[kept]).max() <= overlap:
            kept.append(number)
    return kept


def _shares(box: Known, others: Known) -> Known:
    """Return the area that a box shares with others, over that of both together."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0), 1)
    areas = np.prod(others[:, 2:] - others[:, :2], 1) + np.prod(box[2:] - box[:2])
    rest = areas - shared
    return np.where(rest > 0, shared / np.where(rest > 0, rest, 1), 0)
