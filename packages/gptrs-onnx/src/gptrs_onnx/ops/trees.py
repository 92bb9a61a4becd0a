"""Ensembles of trees of `ai.onnx.ml`: all rows walk down all trees at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from gptrs.api.importers import scalar
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Known, Node, Numbers, constant, converts
from gptrs_onnx.ops.scores import class_labels, labelled, pair_of_scores, transformed

_MODES: Final = (
    *("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"),
    "BRANCH_MEMBER",
)
_COMPARISONS: Final = (*(F.less_equal, F.less, F.greater_equal, F.greater, F.equal, F.not_equal),)
_MEMBER: Final = 6
_AGGREGATES: Final = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS: Final = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


class _Forest(Struct, frozen=True):
    """Nodes of all trees by number; a leaf is its own child."""

    roots: Known
    feature: Known
    split: Known
    mode: Known
    children: tuple[Known, Known]
    """The next node of a row whose comparison is false, and true."""
    missing: Known
    """Whether NaN counts as a true comparison."""
    members: Sequence[Known] = ()
    """The sets of `BRANCH_MEMBER`, one a number in `split`."""

    @property
    def depth(self) -> int:
        """The longest way from a root to a leaf; in a cycle, more than the number of nodes."""
        seen, depth = np.unique(self.roots), 0
        # All nodes of a level at once, until a level is its own children: leaves are.
        while depth <= len(self.feature):
            below = np.unique(np.concatenate([each[seen] for each in self.children]))
            if np.array_equal(below, seen):
                return depth
            seen, depth = below, depth + 1
        return depth


def _leaves(node: Node, forest: _Forest, x: Tensor) -> Tensor:
    """Return the number of the leaf that each row [N, F] reaches in each tree [N, trees]."""
    depth = forest.depth
    if depth > len(forest.feature):
        node.malformed("has trees whose nodes form a cycle")
    if forest.feature.size and (forest.feature.min() < 0 or forest.feature.max() >= x.shape[1]):
        node.malformed(f"asks for features that `{x.type}` lacks")
    here = F.broadcast_to(constant(forest.roots), [x.shape[0], len(forest.roots)])
    tables = [constant(each) for each in (forest.feature, *forest.children)]
    split = F.cast(constant(forest.split), x.dtype)

    # Rows at a leaf go on to the leaf itself, so all rows take the same number of steps.
    def step(count: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
        feature, other, chosen = (F.take(each, here, 0) for each in tables)
        values = F.gather(x, feature, 1)
        holds = _compared(forest, values, F.take(split, here, 0), here)
        return count + 1, F.where(holds, chosen, other)

    def goes_on(count: Tensor, here: Tensor) -> tuple[Tensor]:
        del here
        return (count < depth,)

    return primitives.while_(goes_on, step, scalar(0, dtypes.si64), here)[1]


def _compared(forest: _Forest, values: Tensor, split: Tensor, here: Tensor) -> Tensor:
    """Return whether the comparison of each node holds."""
    used = np.unique(forest.mode)
    holds = F.zeros(values.shape, dtypes.i1)
    modes = F.take(constant(forest.mode), here, 0) if len(used) > 1 else None
    for number in map(int, used):
        if number == _MEMBER:
            found = _is_member(forest, values, here)
        else:
            found = _COMPARISONS[number](values, split)
        mine = found if modes is None else F.logical_and(found, F.equal(modes, number))
        holds = F.logical_or(holds, mine)
    if forest.missing.any():
        tracks = F.take(constant(forest.missing), here, 0)
        holds = F.logical_or(holds, F.logical_and(F.is_nan(values), tracks))
    return holds


def _is_member(forest: _Forest, values: Tensor, here: Tensor) -> Tensor:
    """Return whether values are in the set of their node; sets are filled up with NaN."""
    longest = max(map(len, forest.members), default=1)
    table = np.full((max(len(forest.members), 1), longest), np.nan)
    for row, each in zip(table, forest.members, strict=False):
        row[: len(each)] = each
    number = np.where(forest.mode == _MEMBER, forest.split, 0).astype(np.int64)
    sets = F.take(F.cast(constant(table[number]), values.dtype), here, 0)  # (N, trees, longest)
    return F.any(F.equal(F.expand_dims(values, -1), sets), -1)


# The forests of the older operators: nodes by tree and number, weights in lists of their own.


class _Places(Struct, frozen=True):
    """The numbers of nodes by the ids of tree and node: ensembles have millions of them."""

    keys: Known
    """One for each node, sorted."""
    order: Known
    """The number of the node of each key."""

    @classmethod
    def of(cls, node: Node, trees: Known, ids: Known) -> _Places:
        """Take the ids of all nodes in order; ModelError for nodes that occur twice."""
        keys = _keys(node, trees, ids)
        order = np.argsort(keys)
        keys = keys[order]
        if (keys[1:] == keys[:-1]).any():
            node.malformed("has nodes that occur twice, or lack a mode")
        return cls(keys, order)

    def numbers(self, node: Node, trees: Known, ids: Known) -> Known:
        """Return the numbers of nodes; ModelError for one that does not exist."""
        wanted = _keys(node, trees, ids)
        found = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        if not np.array_equal(self.keys[found], wanted):
            node.malformed("refers to a node that it lacks")
        return self.order[found]


def _keys(node: Node, trees: Known, ids: Known) -> Known:
    """Return a number for each tree and node."""
    if any((each.astype(np.int32) != each).any() for each in (trees, ids)):
        node.malformed("has a tree or a node whose number is beyond 31 bits")
    return trees * 2**32 + ids


def _forest_of(node: Node) -> tuple[_Forest, _Places]:
    """Return the nodes of a node, and their numbers."""
    names = "treeids", "nodeids", "falsenodeids", "truenodeids", "featureids"
    trees, ids, *below, features = _ids(node, "nodes", *names)
    modes = node.texts("nodes_modes")
    if not modes or len(modes) != len(ids):
        node.malformed("has nodes that occur twice, or lack a mode")
    places = _Places.of(node, trees, ids)
    values = _numbers(node, "nodes_values")
    tracks = node.integers("nodes_missing_value_tracks_true", [0] * len(ids))
    inner = next((each for each in modes if each != "LEAF"), _MODES[0])  # leaves follow any mode
    codes = {each: code for code, each in enumerate(_MODES)}
    codes["LEAF"] = len(_MODES) + codes[inner]
    mode = np.fromiter(map(codes.__getitem__, modes), np.int64, len(modes))
    is_leaf = mode >= len(_MODES)
    own = np.arange(len(ids))
    children = [
        np.where(is_leaf, own, places.numbers(node, trees, np.where(is_leaf, ids, each)))
        for each in below
    ]
    roots = np.sort(np.unique(trees, return_index=True)[1])
    features = np.where(is_leaf, 0, features)
    forest = _Forest(
        roots, features, values, mode % len(_MODES), (children[0], children[1]),
        np.logical_and(np.array(tracks, bool), ~is_leaf),
    )  # fmt: skip
    return forest, places


def _ids(node: Node, prefix: str, *names: str) -> list[Known]:
    """Return lists of an entry for each node, or each weight; ModelError for other lengths."""
    lists = [np.array(node.integers(f"{prefix}_{name}"), np.int64) for name in names]
    if len(set(map(len, lists))) != 1:
        node.malformed(f"has lists of different lengths, {prefix}_{names[0]} and others")
    return lists


def _numbers(node: Node, name: str) -> Known:
    """Return floats of an attribute, or of the tensor that stands for it in double precision."""
    tensor = f"{name}_as_tensor"
    if tensor in node:
        return node.attribute(tensor, "Known").reshape(-1)
    return np.array(node.numbers(name, []), np.float32)


def _weights(node: Node, prefix: str, places: _Places, count: int) -> tuple[Known, Known]:
    """Return the weight of each node for each target, and whether it has one."""
    trees, ids, columns = _ids(node, prefix, "treeids", "nodeids", "ids")
    rows = places.numbers(node, trees, ids)
    given = _numbers(node, f"{prefix}_weights")
    node.require_bounded(len(places.keys), count)
    table = np.zeros((len(places.keys), count), given.dtype)
    np.add.at(table, (rows, columns), given)
    has = np.zeros(table.shape, bool)
    has[rows, columns] = True
    return table, has


def _aggregated(node: Node, leaves: Tensor, table: Known, has: Known, how: str) -> Tensor:
    """Return the sum, mean, least or greatest weight of all leaves that have one [N, targets]."""
    if how in ("MIN", "MAX"):
        missing = np.inf if how == "MIN" else -np.inf
        filled = F.take(constant(np.where(has, table, missing).astype(table.dtype)), leaves, 0)
        found = (F.min if how == "MIN" else F.max)(filled, 1)
        # A target without any leaf has score 0, not the neutral element of the minimum.
        return F.where(F.is_inf(found), F.zeros([], found.dtype), found)
    if how not in _AGGREGATES:
        node.malformed(f"has the aggregate function {how[:40]!a}")
    total = F.sum(F.take(constant(table), leaves, 0), 1)
    return total / leaves.shape[1] if how == "AVERAGE" else total


def _rows(x: Tensor) -> Tensor:
    """Return features [N, F] as floats."""
    flat = F.reshape(x, [1, -1]) if x.rank == 1 else x
    return flat if flat.dtype.is_float else F.cast(flat, dtypes.f32)


@converts("ai.onnx.ml.TreeEnsembleRegressor")
def tree_regressor(
    node: Node,
    x: Tensor,
    *,
    n_targets: int = 1,
    aggregate_function: str = "SUM",
    post_transform: str = "NONE",
) -> Tensor:
    """Return the sums of the leaves of all trees [N, targets]."""
    forest, places = _forest_of(node)
    table, has = _weights(node, "target", places, n_targets)
    leaves = _leaves(node, forest, _rows(x))
    scores = _aggregated(node, leaves, table, has, aggregate_function)
    return F.cast(
        _finished(node, scores, _numbers(node, "base_values"), post_transform), dtypes.f32
    )


def _finished(node: Node, scores: Tensor, base: Known, transform: str) -> Tensor:
    """Return scores plus initial ones, transformed; a single score only for PROBIT."""
    if len(base) == scores.shape[1]:
        scores = scores + F.cast(constant(base), scores.dtype)
    if scores.shape[1] == 1 and transform != "PROBIT":
        return scores
    return transformed(node, scores, transform)


@converts("ai.onnx.ml.TreeEnsemble")
def tree_ensemble(
    node: Node,
    x: Tensor,
    *,
    n_targets: int = 1,
    aggregate_function: int = 1,
    post_transform: int = 0,
    nodes_splits: Known,
    nodes_modes: Known,
    leaf_weights: Known,
) -> Tensor:
    """Return the sums of the leaves of all trees [N, targets], in the type of x."""
    inner, outer = len(nodes_splits), len(leaf_weights)
    children: list[Known] = []
    for side in ("false", "true"):
        ids, are_leaves = (node.integers(f"nodes_{side}{what}") for what in ("nodeids", "leafs"))
        made = np.array(ids) + np.where(np.array(are_leaves, bool), inner, 0)
        children.append(np.concatenate([made, np.arange(inner, inner + outer)]))
    rest = np.zeros(outer, np.int64)
    tracks = node.integers("nodes_missing_value_tracks_true", [0] * inner)
    split, members = nodes_splits.astype(np.float64), list[Known]()
    if "membership_values" in node:
        values = node.attribute("membership_values", "Known").reshape(-1)
        ends = np.flatnonzero(np.isnan(values))
        members = np.split(values, ends)[: len(ends)]
        members = [part[~np.isnan(part)] for part in members]
        split[nodes_modes == _MEMBER] = np.arange(np.count_nonzero(nodes_modes == _MEMBER))
    forest = _Forest(
        np.array(node.integers("tree_roots")),
        np.concatenate([node.integers("nodes_featureids"), rest]),
        np.concatenate([split, rest]).astype(nodes_splits.dtype),
        np.concatenate([nodes_modes.astype(np.int64), rest + int(nodes_modes.flat[0])]),
        (children[0], children[1]),
        np.concatenate([tracks, rest]).astype(bool),
        members,
    )
    table = np.zeros((inner + outer, n_targets), leaf_weights.dtype)
    entries = (inner + np.arange(outer), np.array(node.integers("leaf_targetids")))
    table[entries] = leaf_weights
    has = np.zeros(table.shape, bool)
    has[entries] = True
    leaves = _leaves(node, forest, _rows(x))
    scores = _aggregated(node, leaves, table, has, _AGGREGATES[aggregate_function])
    return F.cast(_finished(node, scores, np.zeros(0), _TRANSFORMS[post_transform]), x.dtype)


@converts("ai.onnx.ml.TreeEnsembleClassifier")
def tree_classifier(
    node: Node, x: Tensor, *, post_transform: str = "NONE"
) -> tuple[Numbers, Tensor]:
    """Return the class of each row [N], and the scores of all classes [N, classes]."""
    labels = class_labels(node, "classlabels_int64s")
    forest, places = _forest_of(node)
    table, has = _weights(node, "class", places, len(labels))
    leaves = _leaves(node, forest, _rows(x))
    scores = F.sum(F.take(constant(table), leaves, 0), 1)
    base = _numbers(node, "base_values")
    if len(labels) > 2:
        chosen, scores = _best_of_many(scores, leaves, has, base)
        best = labelled(node, F.take(constant(labels), chosen, 0))
        return best, _f32(transformed(node, scores, post_transform))
    return _of_two(node, scores, base, labels, table, has, post_transform)


def _f32(x: Tensor) -> Tensor:
    return F.cast(x, dtypes.f32)


def _best_of_many(scores: Tensor, leaves: Tensor, has: Known, base: Known) -> tuple[Tensor, Tensor]:
    """Return the number of the best class that some leaf has a weight for, and all scores."""
    ranked = scores
    if len(base):
        scores = ranked = scores + F.cast(constant(base), scores.dtype)
    elif not has.any(0).all() or not has[has.any(1)].all():
        voted = F.any(F.take(constant(has), leaves, 0), 1)
        ranked = F.where(voted, scores, scalar(-np.inf, scores.dtype))
    return F.argmax(ranked, 1), scores


def _is_positive(table: Known, has: Known) -> bool | None:
    """Return whether all weights, of one class alone, are positive; None for those of several."""
    if has.any(0).sum() != 1:
        return None
    return bool((table[has] >= 0).all())


def _of_two(
    node: Node,
    scores: Tensor,
    base: Known,
    labels: Known,
    table: Known,
    has: Known,
    transform: str,
) -> tuple[Numbers, Tensor]:
    """Return class and scores for two classes where only one may have weights.

    What then is the score of the other one follows ONNX Runtime: the standard does not say.
    """
    lone = not has[:, 1].any()
    # Scores that are each other's negatives have one sign, whichever class is looked at: CatBoost.
    mirrored = np.array_equal(table[:, 0], -table[:, 1]) and not len(base)
    if not lone and not mirrored and (has[:, 0].any() or len(base) == 2):
        node.refuse(
            "has weights or starts for both of two classes, where ONNX Runtime and the standard"
            " differ"
        )
    first, second = (F.slice_axis(scores, 1, i, 1) for i in range(2))
    if len(base) and lone:
        first = first + F.cast(constant(base[:1]), scores.dtype)
    judged = first if lone else second
    positive = _is_positive(table, has)
    bound = 0.5 if positive else 0.0
    is_second = judged > bound
    below, above = (scalar(int(each), dtypes.si64) for each in labels)
    chosen = labelled(node, F.where(F.squeeze(is_second, 1), above, below))
    if lone and len(base) < 2:
        pair = pair_of_scores(first, bool(positive), transform == "LOGISTIC")
        return chosen, _f32(pair)
    return chosen, _f32(transformed(node, F.concat([first, second], 1), transform))
