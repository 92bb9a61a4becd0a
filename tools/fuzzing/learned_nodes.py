"""Single nodes of `ai.onnx.ml`: trees, linear models, support vectors, scaling and encoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from onnx import numpy_helper

from fuzzing.onnx_nodes import Drawn, NodeKind

DOMAIN: Final = "ai.onnx.ml"
FEATURES: Final = 4
COMPARISONS: Final = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")


def learned_kinds() -> list[NodeKind]:
    """Return all kinds of nodes of classical models that are tried."""
    parts = (_trees, _newer_trees, _linear, _vectors, _prepared)
    return [
        replace(kind, domain=DOMAIN, version=5 if kind.op == "TreeEnsemble" else 3)
        for part in parts
        for kind in part()
    ]


def _grown(rng: np.random.Generator, modes: Sequence[str], trees: int = 3) -> dict[str, list[Any]]:
    """Return the nodes of random trees, as the older operators have them."""
    nodes: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "featureids", "modes", "values")
    }
    nodes |= {"truenodeids": [], "falsenodeids": [], "missing_value_tracks_true": []}

    def add(tree: int, depth: int) -> int:
        own = len(nodes["nodeids"])
        is_leaf = depth == 0 or (depth < 3 and rng.random() < 0.3)
        row = {
            "treeids": tree, "nodeids": own, "featureids": int(rng.integers(FEATURES)),
            "modes": "LEAF" if is_leaf else f"BRANCH_{rng.choice(modes)}",
            "values": round(float(rng.standard_normal())), "truenodeids": 0, "falsenodeids": 0,
            "missing_value_tracks_true": int(rng.integers(2)) * (not is_leaf),
        }  # fmt: skip
        for name, each in row.items():
            nodes[name].append(float(each) if name == "values" else each)
        if not is_leaf:
            nodes["truenodeids"][own] = add(tree, depth - 1)
            nodes["falsenodeids"][own] = add(tree, depth - 1)
        return own

    for tree in range(trees):
        add(tree, 3)
    return nodes


def _leaf_weights(
    rng: np.random.Generator, nodes: dict[str, list[Any]], prefix: str, ids: Sequence[int], low: int
) -> dict[str, list[Any]]:
    """Return a weight of each leaf for each of `ids`."""
    leaves = [i for i, mode in enumerate(nodes["modes"]) if mode == "LEAF"]
    rows = [(i, each) for i in leaves for each in ids]
    weights = rng.integers(low, 9, len(rows)) / 8
    return {
        f"{prefix}_treeids": [nodes["treeids"][i] for i, _ in rows],
        f"{prefix}_nodeids": [i for i, _ in rows],
        f"{prefix}_ids": [each for _, each in rows],
        f"{prefix}_weights": [float(each) for each in weights],
    }


def _only(values: dict[str, Any]) -> dict[str, list[Any]]:
    """Return attributes of which each has one value."""
    return {name: [each] for name, each in values.items()}


def _trees() -> Iterator[NodeKind]:
    rng = np.random.default_rng(0)
    types = ("float32", "float64", "int64")
    for modes in (("LEQ",), ("LT",), COMPARISONS):
        nodes = _grown(rng, modes)
        stored = {f"nodes_{name}": each for name, each in nodes.items()}
        for count in (1, 2):
            weights = _leaf_weights(rng, nodes, "target", range(count), -8)
            choices = _only({**stored, **weights, "n_targets": count})
            choices |= {"aggregate_function": [None, "AVERAGE", "MIN", "MAX"]}
            choices |= {"post_transform": [None, "SOFTMAX"] if count > 1 else [None]}
            choices |= {"base_values": [None, [0.5] * count]}
            yield NodeKind("TreeEnsembleRegressor", ((5, FEATURES),), choices, types[:2])
        # One class of two with weights of one sign, and of both; both of two; three.
        cases = (([0], 2, 1), ([0], 2, -8), ([1], 2, -8), ([0, 1, 2], 3, -8))
        for ids, labels, low in cases:
            weights = _leaf_weights(rng, nodes, "class", ids, low)
            given = {**stored, **weights, "classlabels_int64s": list(range(4, 4 + labels))}
            choices = _only(given) | {"post_transform": [None, "LOGISTIC", "SOFTMAX"]}
            starts = [[0.25, 0.5, -0.5]] if labels == 3 else [[0.25]]
            starts += [[0.5, 0.25]] if ids == [0] else []
            choices |= {"base_values": [None, *starts]}
            inputs = ((5, FEATURES),)
            yield NodeKind("TreeEnsembleClassifier", inputs, choices, types, outputs=2)


def _newer_trees() -> Iterator[NodeKind]:
    """Yield one tree of three nodes and four leaves, with sets that values are members of."""
    splits = np.array([0.5, 1.0, np.nan], np.float32)
    values = np.array([0.0, 1.0, 2.0, np.nan], np.float32)
    for modes, more in (([0, 3, 1], {}), ([0, 1, 6], {"membership_values": values})):
        given = {
            "n_targets": 2, "tree_roots": [0], "nodes_featureids": [0, 2, 0],
            "nodes_truenodeids": [1, 0, 2], "nodes_trueleafs": [0, 1, 1],
            "nodes_falsenodeids": [2, 1, 3], "nodes_falseleafs": [0, 1, 1],
            "leaf_targetids": [0, 1, 0, 1],
        }  # fmt: skip
        own = splits if more else np.nan_to_num(splits)
        stored = {
            "nodes_splits": own, "nodes_modes": np.array(modes, np.uint8),
            "leaf_weights": np.array([5.23, 12.12, -12.23, 7.21], np.float32), **more,
        }  # fmt: skip
        tensors = {name: numpy_helper.from_array(each) for name, each in stored.items()}
        choices = _only({**given, **tensors}) | {"aggregate_function": [None, 0, 2, 3]}
        # ONNX Runtime takes the numbers of transforms in another order than the standard.
        yield NodeKind("TreeEnsemble", ((6, FEATURES),), choices)


def _linear() -> Iterator[NodeKind]:
    rng = np.random.default_rng(1)

    def numbers(count: int) -> list[float]:
        return [float(each) for each in rng.standard_normal(count)]

    types = ("float32", "float64", "int64")
    for count in (1, 3):
        choices = _only({"coefficients": numbers(count * FEATURES), "targets": count})
        choices |= {"intercepts": [None, numbers(count)]}
        choices |= {"post_transform": [None, "SOFTMAX"] if count > 1 else [None]}
        yield NodeKind("LinearRegressor", ((5, FEATURES),), choices)
        labels = [7, 5] if count == 1 else [7, 5, 6]
        given = {"coefficients": numbers(count * FEATURES), "intercepts": numbers(count)}
        choices = _only({**given, "classlabels_ints": labels})
        ends = ["LOGISTIC", None] if count == 1 else [None, "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]
        choices["post_transform"] = ends
        yield NodeKind("LinearClassifier", ((5, FEATURES),), choices, types, outputs=2)


def _vectors() -> Iterator[NodeKind]:
    rng = np.random.default_rng(2)
    count = 3
    given = {
        "coefficients": [float(each) for each in rng.standard_normal(count)],
        "rho": [0.3], "n_supports": count, "kernel_params": [0.4, 0.2, 2.0],
        "support_vectors": [float(each) for each in rng.standard_normal(count * FEATURES)],
    }  # fmt: skip
    choices = _only(given) | {"kernel_type": [None, "RBF", "SIGMOID", "POLY"]}
    yield NodeKind("SVMRegressor", ((5, FEATURES),), {**choices, "one_class": [None, 1]})


def _prepared() -> Iterator[NodeKind]:
    plain, whole = ((5, FEATURES),), (Drawn("int64", (5, FEATURES)),)
    four = [0.5, -1.0, 2.0, 1.5]
    scales = {"offset": ([0.5], four), "scale": ([2.0],)}
    yield NodeKind("Scaler", plain, {"offset": ([0.5],), "scale": ([2.0],)}, ("float32", "int64"))
    yield NodeKind("Scaler", plain, {**scales, "offset": (four,), "scale": (four,)})
    yield NodeKind("Normalizer", plain, {"norm": (None, "L1", "L2")})
    yield NodeKind("Binarizer", plain, {"threshold": (None, 0.5)})
    replaced = {"replaced_value_float": (0.0, float("nan"))}
    yield NodeKind("Imputer", plain, {"imputed_value_floats": ([7.0], four), **replaced})
    choices = {"imputed_value_int64s": ([7], [1, 2, 3, 4]), "replaced_value_int64": (0, 2)}
    yield NodeKind("Imputer", whole, choices)
    yield NodeKind("OneHotEncoder", whole, {"cats_int64s": ([2, 0, 1],)})
    yield NodeKind("FeatureVectorizer", ((5, 2), (5, 3)), {"inputdimensions": ([2, 3],)})
    keys = {"keys_int64s": ([0, 1, 2],)}
    yield NodeKind("LabelEncoder", whole, {**keys, "values_floats": (four[:3],)})
    more = {"values_int64s": ([9, 8, 7],), "default_int64": (None, 5)}
    yield NodeKind("LabelEncoder", whole, {**keys, **more})
    ties = {"keys_floats": ([0.0, 1.0, float("nan")],), "values_int64s": ([9, 8, 7],)}
    yield NodeKind("LabelEncoder", plain, ties)
