"""Operators of `ai.onnx.ml` on numbers: linear models, scaling, encoding."""

from __future__ import annotations

from typing import Final

import numpy as np

from gptrs.api.importers import scalar
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Known, Node, Value, constant, converts
from gptrs_onnx.ops.scores import class_labels, transformed


def feature_rows(x: Tensor) -> Tensor:
    """Return features [N, F] in f32."""
    return F.cast(F.reshape(x, [1, -1]) if x.rank == 1 else x, dtypes.f32)


def affine(x: Tensor, weights: list[float], count: int, bias: list[float]) -> Tensor:
    """Return `x W^T + b` for weights [count, F] in a row."""
    weight = constant(np.array(weights, np.float32).reshape(count, -1))
    return F.linear(x, weight, constant(np.array(bias, np.float32)) if bias else None)


@converts("ai.onnx.ml.LinearRegressor")
def linear_regressor(
    node: Node,
    x: Tensor,
    *,
    coefficients: list[float],
    targets: int = 1,
    post_transform: str = "NONE",
) -> Tensor:
    """Return a linear function of each row [N, targets]."""
    made = affine(feature_rows(x), coefficients, targets, node.numbers("intercepts", []))
    return transformed(node, made, post_transform)


@converts("ai.onnx.ml.LinearClassifier")
def linear_classifier(
    node: Node, x: Tensor, *, coefficients: list[float], post_transform: str = "NONE"
) -> tuple[Tensor, Tensor]:
    """Return the class of each row [N], and the scores of all classes [N, classes]."""
    labels = class_labels(node, "classlabels_ints")
    intercepts = node.numbers("intercepts", [])
    scores = affine(feature_rows(x), coefficients, len(intercepts), intercepts)
    if len(intercepts) > 1:
        chosen = F.take(constant(labels), F.argmax(scores, 1), 0)
        return chosen, transformed(node, scores, post_transform)
    second, first = (labels[1], labels[0]) if len(labels) == 2 else (1, 0)
    is_second = scores > 0.0
    ends = (scalar(int(each), dtypes.si64) for each in (second, first))
    chosen = F.where(F.squeeze(is_second, 1), *ends)
    if len(labels) != 2:
        return chosen, transformed(node, scores, post_transform)
    if post_transform == "NONE":
        return chosen, F.concat([1.0 - scores, scores], 1)
    if post_transform == "LOGISTIC":
        share = F.sigmoid(scores)
        return chosen, F.concat([1.0 - share, share], 1)
    node.refuse(f"has the transform {post_transform[:40]!a} of one score for two classes")


# Scaling and encoding.


@converts("ai.onnx.ml.Scaler")
def scaler(x: Tensor, *, offset: list[float], scale: list[float]) -> Tensor:
    """Return `(x - offset) * scale`, one number or one a feature."""
    below, factor = (constant(np.array(each, np.float32)) for each in (offset, scale))
    return (F.cast(x, dtypes.f32) - below) * factor


@converts("ai.onnx.ml.Normalizer")
def normalizer(node: Node, x: Tensor, *, norm: str = "MAX") -> Tensor:
    """Return rows divided by their greatest element, sum of magnitudes, or length; zeros stay."""
    wide = F.cast(x, dtypes.f32)
    if norm == "MAX":
        # The signed maximum, not that of magnitudes, as in ONNX Runtime.
        size = F.max(wide, -1, keepdims=True)
    elif norm == "L1":
        size = F.sum(F.abs(wide), -1, keepdims=True)
    elif norm == "L2":
        size = F.sqrt(F.sum(wide * wide, -1, keepdims=True))
    else:
        node.malformed(f"has the norm {norm[:40]!a}")
    return F.where(F.equal(size, F.zeros([], dtypes.f32)), wide, wide / size)


@converts("ai.onnx.ml.Binarizer")
def binarizer(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    """Return 1 above a threshold, 0 elsewhere."""
    return F.cast(F.greater(x, threshold), x.dtype)


@converts("ai.onnx.ml.Imputer")
def imputer(node: Node, x: Tensor) -> Tensor:
    """Return x with other numbers, one or one a feature, in place of a number or NaN."""
    if x.dtype.is_float:
        given = np.array(node.numbers("imputed_value_floats"))
        replaced = node.number("replaced_value_float", 0.0)
    else:
        given = np.array(node.integers("imputed_value_int64s"))
        replaced = node.integer("replaced_value_int64", 0)
    is_absent = F.is_nan(x) if np.isnan(replaced) else F.equal(x, scalar(replaced, x.dtype))
    return F.where(is_absent, constant(given.astype(x.dtype.numpy)), x)


@converts("ai.onnx.ml.FeatureVectorizer")
def feature_vectorizer(*parts: Tensor, inputdimensions: list[int] | None = None) -> Tensor:
    """Return the features of several tensors side by side, as floats [N, sum of features]."""
    sizes = inputdimensions or [each.shape[-1] for each in parts]
    rows = [F.reshape(each, [each.shape[0] if each.rank > 1 else 1, -1]) for each in parts]
    return F.concat(
        [
            F.cast(F.slice_axis(each, 1, 0, size), dtypes.f32)
            for each, size in zip(rows, sizes, strict=True)
        ],
        1,
    )


@converts("ai.onnx.ml.OneHotEncoder")
def one_hot_encoder(
    node: Node, x: Tensor, *, cats_int64s: list[int] | None = None, zeros: bool = True
) -> Tensor:
    """Return a new axis with 1 at the category of each element; all 0 for another one."""
    if not cats_int64s:
        node.refuse("encodes strings, and values are tensors of numbers")
    if not zeros:
        node.refuse("must fail for unknown categories, which a program cannot do")
    whole = F.expand_dims(F.cast(x, dtypes.si64), -1)
    return F.cast(F.equal(whole, constant(np.array(cats_int64s, np.int64))), dtypes.f32)


_KEYS: Final = ("keys_int64s", "keys_floats", "keys_tensor")
_VALUES: Final = (
    ("values_int64s", "default_int64"),
    ("values_floats", "default_float"),
    ("values_tensor", "default_tensor"),
)


@converts("ai.onnx.ml.LabelEncoder")
def label_encoder(node: Node, x: Tensor) -> Tensor:
    """Return the value of each element in a table of keys, and a default for other elements."""
    key = next((name for name in _KEYS if name in node), None)
    row = next((row for row in _VALUES if row[0] in node), None)
    if key is None or row is None:
        node.refuse("maps strings, and values are tensors of numbers")
    keys, values = (_listed(node, name) for name in (key, row[0]))
    given = next((name for name in (row[1], "default_tensor") if name in node), None)
    default = (-1 if values.dtype.kind in "iu" else -0.0) if given is None else _listed(node, given)
    table = constant(keys.astype(x.dtype.numpy))
    wide = F.expand_dims(x, -1)
    same = F.equal(wide, table)
    # NaN equals nothing, but is a key here.
    if np.isnan(keys.astype(np.float64)).any():
        same = F.logical_or(same, F.logical_and(F.is_nan(wide), constant(np.isnan(keys))))
    # The last one of equal keys counts: the greatest index.
    index = F.max(F.where(same, F.arange(len(keys)) + 1, scalar(0, dtypes.si64)), -1)
    # The default is row 0, so a missing key needs no selection of its own.
    every = np.concatenate([np.asarray(default, values.dtype).reshape(1), values])
    return F.take(constant(every), index, 0)


def _listed(node: Node, name: str) -> Known:
    """Return the numbers of an attribute: one, a list, or a tensor."""
    if name.endswith("tensor"):
        return node.attribute(name, "Known").reshape(-1)
    if name.endswith("s"):
        whole = "int64" in name
        return np.array(
            node.integers(name) if whole else node.numbers(name), np.int64 if whole else np.float32
        )
    return np.array([node.integer(name) if "int64" in name else node.number(name)])


@converts("ai.onnx.ml.ZipMap")
def zip_map(x: Value) -> Value:
    """Return the values of the maps that a list of maps would have: a column for each key."""
    return x
