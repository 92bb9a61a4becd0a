"""Which weights of a model are quantized, and to what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from gptrs.checkpoint.param_source import ParamSource
from gptrs.checkpoint.params import WeightUse
from gptrs.errors import ModelError, UsageError
from gptrs.quoting import quoted
from gptrs_runtime.quantizing.weight_types import HEAD_TYPE, WeightType

SMALLEST = 16
"""Matrices with fewer rows or columns stay: routers, heads of few classes."""

Heads = Literal["keep", "q8"]
"""Heads and tables of tokens stay, or get 8 bits."""

_HEADS = frozenset(
    {"lm_head", "embed_out", "output_projection", "score", "classifier", "fc", "decoder", "pooler"}
)
"""Modules that compute outputs, by the last part of their names that is not `dense`."""


def planned(
    source: ParamSource,
    uses: Mapping[str, WeightUse],
    type: WeightType,
    keep: Sequence[str] = (),
    heads: Heads = "keep",
    vocab_size: int | None = None,
    *,
    experts: bool = False,
) -> dict[str, WeightType]:
    """Return the type of each weight that is quantized, by its name.

    These are the matrices of linear layers, but for those that a pattern of `keep` names, too small
    ones, those whose rows do not divide into groups, and heads: the layer with a row for each of
    the vocabulary, and those that are called so. With `heads` "q8" these and the tables of tokens
    get 8 bits. Matrices of experts are quantized only with `experts`. UsageError for a pattern that
    names no tensor.
    """
    names = source.names()
    for pattern in keep:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                f"no tensor is called {quoted(pattern)}, which is to be kept",
                hint="`gptrs inspect MODEL` lists them; `*` stands for any text",
            )
    found: dict[str, WeightType] = {}
    for name in names:
        use = uses.get(name)
        if use is None or (use == "expert" and not experts):
            continue
        if any(fnmatchcase(name, pattern) for pattern in keep):
            continue
        rows, columns = _matrix(source.type_of(name).shape, use)
        is_head = use == "table" or _is_head(name, rows == vocab_size)
        if is_head and (heads == "keep" or (use == "table" and rows != vocab_size)):
            continue
        wanted = HEAD_TYPE if is_head else type
        if min(rows, columns) >= SMALLEST and columns % (wanted.group or 8) == 0:
            found[name] = wanted
    return found


def require_some(model: str, plan: Mapping[str, WeightType], type: WeightType) -> None:
    """ModelError if no weight of the model called `model` is to be quantized."""
    if not plan:
        raise ModelError(
            f"{quoted(model)} has no weights that can be quantized to `{type.name}`: no"
            f" linear layer has rows of a multiple of {type.group or 8}, or all of them are kept"
        )


def _matrix(shape: Sequence[int], use: WeightUse) -> tuple[int, int]:
    rows, columns = shape
    return (columns, rows) if use == "turned" else (rows, columns)


def _is_head(name: str, gives_tokens: bool) -> bool:
    """Return whether a layer computes outputs; `gives_tokens` has a row for each of them."""
    parts = name.removesuffix(".weight").split(".")
    if any(part.isdigit() for part in parts):
        return False  # it is in a layer of many
    if gives_tokens:
        return True
    return parts[-1] in _HEADS or (parts[-1] == "dense" and parts[-2:-1] == ["pooler"])
