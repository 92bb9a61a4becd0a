"""Which weights of a model are quantized, and to which type."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

from msgspec import Struct

from gptrs.checkpoint.param_source import ParamSource
from gptrs.checkpoint.params import WeightUse
from gptrs.errors import ModelError, UsageError
from gptrs.quoting import listed, quoted

# The types that weights are quantized to, by the names that users give them.


Offset = Literal["none", "bias", "zero_point"]
"""How a group represents zero: symmetric codes, a float bias, or an integer zero point."""

DEFAULT_GROUP = 32
LARGEST_GROUP = 1024


class WeightType(Struct, frozen=True):
    """Codes of `bits`, and a scale in f16 for each `group` of them; None is one for each row."""

    name: str
    bits: int
    offset: Offset = "none"
    group: int | None = DEFAULT_GROUP

    def grouped(self, group: int) -> WeightType:
        """Return the type with groups of another size; 0 is one group for each row.

        UsageError for a size that is not a multiple of 8 up to LARGEST_GROUP.
        """
        if group and (group % 8 or not 8 <= group <= LARGEST_GROUP):
            raise UsageError(
                f"groups of {group} weights cannot be stored",
                hint=f"a multiple of 8 up to {LARGEST_GROUP}, or 0 for one group a row",
            )
        return WeightType(self.name, self.bits, self.offset, group or None)

    def group_of(self, columns: int) -> int:
        """Return the size of the groups of rows of `columns`."""
        return self.group or columns


WEIGHT_TYPES: Mapping[str, WeightType] = {
    "q8": WeightType("q8", 8),
    "q4": WeightType("q4", 4),
    "q4_asym": WeightType("q4_asym", 4, "zero_point"),
    "int8": WeightType("int8", 8, group=None),
}
"""The types of folders, by name."""
HEAD_TYPE = WEIGHT_TYPES["q8"]
"""The type of heads and token embeddings, whose errors reach the output directly."""


def weight_type(name: str, known: tuple[str, ...] = tuple(WEIGHT_TYPES)) -> WeightType:
    """Return the type of that name; UsageError for one that is not among `known`."""
    if name not in known:
        raise UsageError(
            f"weights cannot be quantized to {quoted(str(name))}",
            hint=f"choose from {listed(known)}",
        )
    return WEIGHT_TYPES[name]


SMALLEST = 16
"""Matrices with fewer rows or columns are kept: routers, heads of few classes."""

Heads = Literal["keep", "q8"]
"""Whether heads and token embeddings are kept or get 8 bits."""

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

    These are the matrices of linear layers, except those that a pattern of `keep` matches, those
    that are too small, those whose rows do not divide into groups, and heads: the layer with a row
    for each token, and layers with the name of a head. With `heads` "q8" these and the tables of
    tokens get 8 bits. Matrices of experts are quantized only with `experts`. UsageError for a
    pattern that names no tensor.
    """
    names = source.names()
    for pattern in keep:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                f"no tensor to keep matches {quoted(pattern)}",
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
    """Raise ModelError if the plan quantizes no weight of the model called `model`."""
    if not plan:
        raise ModelError(
            f"{quoted(model)} has no weights that can be quantized to `{type.name}`: no"
            f" linear layer has rows of a multiple of {type.group or 8}, or all of them are kept"
        )


def _matrix(shape: Sequence[int], use: WeightUse) -> tuple[int, int]:
    rows, columns = shape
    return (columns, rows) if use == "turned" else (rows, columns)


def _is_head(name: str, gives_tokens: bool) -> bool:
    """Return whether a layer computes outputs; `gives_tokens`: it has a row for each token."""
    parts = name.removesuffix(".weight").split(".")
    if any(part.isdigit() for part in parts):
        return False  # it belongs to one of many layers
    if gives_tokens:
        return True
    return parts[-1] in _HEADS or (parts[-1] == "dense" and parts[-2:-1] == ["pooler"])


# Work on items in threads; results come in the order of the items.


Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Generator[Result, None, None]:
    """Yield `work(item)` for each item in order, computed by `threads` threads; at most as many
    results wait.

    The first error of `work` is raised instead of its result. Nothing runs after the iterator has
    ended or was closed.
    """
    if threads < 2:
        yield from map(work, items)
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, "gptrs-rounding") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
