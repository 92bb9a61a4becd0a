"""Operators of `ai.onnx.ml`: linear models, scaling, encoding of numbers and strings."""

from __future__ import annotations

from typing import Final, cast

import numpy as np

from gptrs.api.importers import scalar
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import (
    Known,
    Lookup,
    Node,
    Numbers,
    Value,
    codes_of,
    constant,
    converts,
    is_strings,
    strings,
)
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.ops.scores import class_labels, labelled, transformed
from gptrs_onnx.strings import texts_of


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
) -> tuple[Numbers, Tensor]:
    """Return the class of each row [N], and the scores of all classes [N, classes]."""
    labels = class_labels(node, "classlabels_ints")
    intercepts = node.numbers("intercepts", [])
    scores = affine(feature_rows(x), coefficients, len(intercepts), intercepts)
    if len(intercepts) > 1:
        chosen = labelled(node, F.take(constant(labels), F.argmax(scores, 1), 0))
        return chosen, transformed(node, scores, post_transform)
    if len(labels) != 2 and node.texts("classlabels_strings", []):
        node.refuse(f"has one score for {len(labels)} labels that are strings")
    second, first = (labels[1], labels[0]) if len(labels) == 2 else (1, 0)
    is_second = scores > 0.0
    ends = (scalar(int(each), dtypes.si64) for each in (second, first))
    chosen = labelled(node, F.where(F.squeeze(is_second, 1), *ends))
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
    node: Node,
    x: Numbers,
    *,
    cats_int64s: list[int] | None = None,
    cats_strings: list[str] | None = None,
    zeros: bool = True,
) -> Tensor:
    """Return a new axis with 1 at the category of each element.

    Another element is all 0; without `zeros` the run fails.
    """
    if is_strings(x) != bool(cats_strings):
        node.malformed("encodes strings by numbers, or numbers by strings")
    listed = node.conversion.codes(cats_strings) if cats_strings else cats_int64s or []
    whole = F.expand_dims(F.cast(codes_of(x), dtypes.si64), -1)
    if zeros:
        return F.cast(F.equal(whole, constant(np.array(listed, np.int64))), dtypes.f32)
    # A read that fails is how programs fail, so an unknown category reads outside of the table.
    # Backwards, for `argmax`: of equal categories, the last one counts.
    same = F.equal(whole, constant(np.array(listed[::-1], np.int64)))
    node.conversion.lookups.append(Lookup(str(node), whole, np.array(listed), is_strings(x)))
    row = F.where(F.any(same, -1), F.argmax(same, -1), scalar(len(listed), dtypes.si64))
    return F.take(constant(np.eye(len(listed), dtype=np.float32)[::-1]), row, 0)


_KEYS: Final = ("keys_int64s", "keys_floats", "keys_strings", "keys_tensor")
_VALUES: Final = (
    ("values_int64s", "default_int64"),
    ("values_floats", "default_float"),
    ("values_strings", "default_string"),
    ("values_tensor", "default_tensor"),
)


@converts("ai.onnx.ml.LabelEncoder")
def label_encoder(node: Node, x: Numbers) -> Numbers:
    """Return the value of each element in a table of keys, and a default for other elements."""
    if node.version < 2:
        return _classes_or_numbers(node, x, "classes_strings", None)
    key = next((name for name in _KEYS if name in node), None)
    row = next((row for row in _VALUES if row[0] in node), None)
    if key is None or row is None:
        node.malformed("lacks its keys or values")
    values, are_strings = _listed(node, row[0])
    given = next((name for name in (row[1], "default_tensor") if name in node), None)
    if given is not None:
        default: Known = _listed(node, given)[0]
    elif are_strings:
        default = node.conversion.codes(["_Unused"])
    else:
        default = np.array(-1 if values.dtype.kind in "iu" else -0.0)
    found = _looked_up(node, x, _listed(node, key), values, default)
    return strings(found) if are_strings else found


@converts("ai.onnx.ml.CategoryMapper")
def category_mapper(node: Node, x: Numbers) -> Numbers:
    """Return the number of each string in a table, or the string of each number."""
    return _classes_or_numbers(node, x, "cats_strings", node.integers("cats_int64s"))


def _classes_or_numbers(
    node: Node, x: Numbers, attribute: str, numbers_: list[int] | None
) -> Numbers:
    """Return numbers for strings or strings for numbers, which by default count from 0."""
    texts = node.conversion.codes(node.texts(attribute))
    indices = np.arange(len(texts)) if numbers_ is None else np.array(numbers_, np.int64)
    if is_strings(x):
        default = np.array(node.integer("default_int64", -1))
        return _looked_up(node, x, (texts, True), indices, default)
    default = node.conversion.codes([node.text("default_string", "_Unused")])
    return strings(_looked_up(node, x, (indices, False), texts, default))


def _looked_up(
    node: Node, x: Numbers, keys: tuple[Known, bool], values: Known, default: Known
) -> Tensor:
    """Return the value of each element's key, or a default."""
    listed, are_strings = keys
    if is_strings(x) != are_strings:
        node.malformed("has strings as keys of numbers, or numbers as keys of strings")
    x = codes_of(x)
    wide = F.expand_dims(x, -1)
    same = F.equal(wide, constant(listed.astype(x.dtype.numpy)))
    # NaN equals nothing, but is a key here.
    if listed.dtype.kind == "f" and np.isnan(listed).any():
        same = F.logical_or(same, F.logical_and(F.is_nan(wide), constant(np.isnan(listed))))
    # The last one of equal keys counts: the greatest index.
    index = F.max(F.where(same, F.arange(len(listed)) + 1, scalar(0, dtypes.si64)), -1)
    # The default is row 0, so a missing key needs no selection of its own.
    every = np.concatenate([np.asarray(default, values.dtype).reshape(1), values])
    return F.take(constant(every), index, 0)


def _listed(node: Node, name: str) -> tuple[Known, bool]:
    """Return the elements of an attribute, one or several, and whether they are strings."""
    if name.endswith("tensor"):
        stored = cast("ir.TensorProtocol", node.given[name].value)
        if stored.dtype == ir.DataType.STRING:
            return node.conversion.codes(texts_of(stored)), True
        return node.attribute(name, "Known").reshape(-1), False
    if "string" in name:
        texts = node.texts(name) if name.endswith("s") else [node.text(name)]
        return node.conversion.codes(texts), True
    if name.endswith("s"):
        whole = "int64" in name
        listed = node.integers(name) if whole else node.numbers(name)
        return np.array(listed, np.int64 if whole else np.float32), False
    return np.array([node.integer(name) if "int64" in name else node.number(name)]), False


@converts("ai.onnx.ml.ZipMap")
def zip_map(x: Value) -> Value:
    """Return the values of the maps that a list of maps would have: a column for each key."""
    return x


@converts("Constant")
def constant_strings(node: Node) -> Numbers:
    """Return a constant of strings; numbers are known before."""
    for name in ("value_string", "value_strings"):
        if name in node:
            codes, _ = _listed(node, name)
            return strings(codes if name.endswith("s") else codes.reshape(()))
    stored = cast("ir.TensorProtocol", node.given["value"].value)
    return strings(node.conversion.codes(texts_of(stored)).reshape(stored.shape.numpy()))
