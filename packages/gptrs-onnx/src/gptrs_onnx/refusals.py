"""Operators of the standard that are not converted: why, and what to do about it."""

from __future__ import annotations

from typing import NoReturn

from gptrs.api import UnsupportedError
from gptrs_onnx.node import Node, shown

_REFUSED = {
    "boxes": ("NonMaxSuppression",),
    "sequences": ("SequenceMap", "ZipMap"),
    "strings": (
        *("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"),
    ),
    "maps": ("CastMap", "DictVectorizer"),
}
"""Operators by what they are about that programs do not have."""


def is_refused(node: Node) -> bool:
    """Return whether an operator is refused even if the standard gives a body for it."""
    return _kind_of(node) is not None


def refuse(node: Node) -> NoReturn:
    """Raise UnsupportedError for an operator without a converter; it says what to do."""
    kind = _kind_of(node)
    if kind == "boxes":
        raise UnsupportedError(
            f"{node} leaves as many boxes as the data asks for, and the sizes of results are known"
            " before a program runs",
            hint=_cut(node),
        )
    if kind == "sequences":
        raise UnsupportedError(
            f"{node} is about sequences, and values are tensors",
            hint="export the model with tensors in their place: stacked into one, or each an output"
            " of its own",
        )
    if kind is not None:
        raise UnsupportedError(
            f"{node} is about {kind}, and values are tensors of numbers", hint=_cut(node)
        )
    raise UnsupportedError(
        f"{node} is an operator that gptrs-onnx does not convert",
        hint="`gptrs_onnx.supported_operators()` lists those that it does",
    )


def _kind_of(node: Node) -> str | None:
    """Return what a refused operator is about, None for one that is not known here."""
    if node.domain not in ("", "ai.onnx.ml"):
        return None
    return next((kind for kind, names in _REFUSED.items() if node.op_type in names), None)


def _cut(node: Node) -> str:
    """Return how to get the model without the part that begins with a node."""
    names = [each.name for each in node.source.inputs if each is not None and each.name]
    listed = ", ".join(f"'{shown(name)}'" for name in names[:2])
    return (
        "cut the model before it, `onnx.utils.extract_model(file, cut_file, inputs,"
        f" [{listed}])`, and compute the rest of these outputs in Python"
    )
