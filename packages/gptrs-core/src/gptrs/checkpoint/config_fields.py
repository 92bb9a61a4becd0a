"""Typed reading of JSON settings: every error names the setting, its file, the need, the value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard, cast

import numpy as np
from typing_extensions import override

from gptrs.backend.contract import Backend
from gptrs.checkpoint.param_source import MappedSource, ParamSource, PartialSource
from gptrs.errors import ModelError
from gptrs.ir import dtypes
from gptrs.ir.ops.elementwise import Cast
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import listed, quoted, shown_value

# Settings that record which of them were read, so that the others can be reported.


class ReadSettings(dict[str, object]):
    """A copy of JSON settings that records which of them were read, also in nested tables.

    Iterating over all of them, for example by `{**settings}`, reads all. `idle` are those that
    `Fields.without_effect` marked.
    """

    def __init__(
        self,
        settings: Mapping[str, object],
        seen: set[str] | None = None,
        idle: set[str] | None = None,
    ) -> None:
        super().__init__()
        self._seen = set[str]() if seen is None else seen
        self.idle = set[str]() if idle is None else idle
        for name, value in settings.items():
            if isinstance(value, dict) and not isinstance(value, ReadSettings):
                value = ReadSettings(cast("dict[str, object]", value))
            super().__setitem__(name, value)

    def overlaid(self, over: Mapping[str, object], under: Mapping[str, object]) -> ReadSettings:
        """Return a copy in which `over` replaces settings, and `under` fills missing ones.

        A setting that is read in either copy counts as read in both.
        """
        own = {name: super(ReadSettings, self).__getitem__(name) for name in super().__iter__()}
        return ReadSettings({**under, **own, **over}, self._seen, self.idle)

    def unseen(self) -> list[str]:
        """Return the settings that were never read, as `NAME`, or `TABLE.NAME` in a table.

        A table counts as read whole if none of its parts was read separately.
        """
        found: list[str] = []
        for name in super().__iter__():
            value = super().__getitem__(name)
            if name not in self._seen:
                found.append(name)
            elif isinstance(value, ReadSettings) and value._seen:
                found += (f"{name}.{each}" for each in value.unseen())
        return found

    @override
    def __getitem__(self, name: str) -> object:
        self._seen.add(name)
        return super().__getitem__(name)

    @override
    def __contains__(self, name: object) -> bool:
        self._seen.add(str(name))
        return super().__contains__(name)

    @override
    def get(self, name: str, default: object = None) -> object:
        self._seen.add(name)
        return super().get(name, default)

    @override
    def __iter__(self) -> Iterator[str]:
        self._seen.update(super().keys())
        return super().__iter__()

    @override
    def keys(self):
        self._seen.update(super().keys())
        return super().keys()

    @override
    def values(self):
        self._seen.update(super().keys())
        return super().values()

    @override
    def items(self):
        self._seen.update(super().keys())
        return super().items()


_MOST_LAYERS = 10_000


class Fields:
    """Settings in which null counts as missing.

    `where` says in errors which settings they are: "in `preprocessor_config.json`", "of a `gpt2`
    model". Every method raises ModelError for a value of another kind, and for a missing one that
    has no default.
    """

    def __init__(self, settings: Mapping[str, object], where: str) -> None:
        self._settings = settings
        self._where = where

    @property
    def settings(self) -> Mapping[str, object]:
        """Return all settings, null included."""
        return self._settings

    def overlaid(
        self, over: Mapping[str, object], under: Mapping[str, object] | None = None
    ) -> Mapping[str, object]:
        """Return the settings in which `over` replaces some, and `under` fills missing ones.

        Unlike `{**settings}`, they record reads of either.
        """
        if isinstance(self._settings, ReadSettings):
            return self._settings.overlaid(over, under or {})
        return {**(under or {}), **self._settings, **over}

    def get(self, name: str, default: object = None) -> object:
        """Return the value of any type, `default` where it is missing."""
        value = self._settings.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """Return an integer >= `minimum` and below 2^63."""
        value = self.get(name, default)
        if not is_integer(value) or not minimum <= value < 2**63:
            raise self.error(name, f"must be an integer >= {minimum}")
        return value

    def layers(self, name: str, default: int | None = None) -> int:
        """Return a number of layers: at least 1 and at most 10,000, as some make lists of them."""
        value = self.integer(name, default)
        if value > _MOST_LAYERS:
            raise self.error(name, f"must be at most {_MOST_LAYERS}")
        return value

    def integers(self, name: str, default: Sequence[int], minimum: int = 1) -> tuple[int, ...]:
        """Return a list of integers >= `minimum`; only a default may be empty."""
        value = self.get(name)
        if value is None:
            return tuple(default)
        entries = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
        found = [entry for entry in entries if is_integer(entry) and entry >= minimum]
        if not found or len(found) != len(entries):
            raise self.error(name, f"must be a list of integers >= {minimum}")
        return tuple(found)

    def number(self, name: str, default: float | None = None, minimum: float = 0.0) -> float:
        """Return a number >= `minimum` and below 1e30."""
        value = self.get(name, default)
        if not is_number(value) or not minimum <= value < 1e30:
            raise self.error(name, f"must be a number >= {minimum:g}")
        return float(value)

    def count(self, name: str) -> int | None:
        """Return a number >= 1 of any size, rounded down; None if it is missing."""
        value = self.get(name)
        if value is None:
            return None
        if not is_number(value) or value < 1:
            raise self.error(name, "must be a number >= 1")
        return int(value)

    def boolean(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return a string; None if it is missing without a default."""
        value = self.get(name, default)
        if value is not None and not isinstance(value, str):
            raise self.error(name, "must be a string")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """Return a table of strings; null gives an empty table."""
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise self.error(name, "must be a table of strings")
        table = {key: entry or "" for key, entry in cast("dict[str, object]", value).items()}
        if not all(isinstance(entry, str) for entry in table.values()):
            raise self.error(name, "must be a table of strings")
        return cast("dict[str, str]", table)

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """Return one of a few words."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(name, f"must be one of {', '.join(choices)}")
        return value

    def choices(self, name: str, allowed: Iterable[str]) -> tuple[str, ...] | None:
        """Return a list of words among `allowed`; a single word gives a list, None is missing."""
        value = self.get(name)
        if value is None:
            return None
        words = cast("list[object]", value) if isinstance(value, list) else [value]
        known = [word for word in words if isinstance(word, str) and word in set(allowed)]
        if not words or len(known) != len(words):
            raise self.error(name, f"must be of {listed(allowed, most=9)}")
        return tuple(known)

    def require(self, name: str, *supported: object) -> None:
        """ModelError unless the setting is missing or one of the supported values."""
        value = self.get(name)
        if value is not None and value not in supported:
            raise self.error(name, f"is supported as {' or '.join(map(repr, supported))} only")

    def without_effect(self, *names: str) -> None:
        """Mark settings that have no effect, given the others, so that they are not reported.

        The kit of models does not expect them to change logits.
        """
        for name in names:
            self.get(name)
        if isinstance(self._settings, ReadSettings):
            self._settings.idle.update(names)

    def error(self, name: str, need: str) -> ModelError:
        """Return the error that a setting does not meet a need, with the value that was found."""
        found = self.get(name)
        shown = "nothing" if found is None else shown_value(found)
        return ModelError(f"{quoted(name)} {self._where} {need}, found {shown}")


class ConfigFields(Fields):
    """The settings in the config.json of a model of a `kind`, which errors name."""

    def __init__(self, settings: Mapping[str, object], kind: str) -> None:
        super().__init__(settings, f"of a `{kind}` model")


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a JSON value is an integer: bools are not, although Python says so."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a JSON value is a number, integer or not, but no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


# Stored tensors in the type that a model wants: when they keep theirs, and how they are read.


def stays_narrow(
    stored: TensorType, wanted: TensorType, backend: Backend, ranks: Sequence[int]
) -> bool:
    """Return whether a weight keeps its stored type: one of `ranks` that `backend` can convert.

    Convolutions and stacks of matrices, except those of experts, are converted ahead, once: then
    computations on their weights, such as a folded batch norm, also run once.
    """
    halves = stored.dtype in (dtypes.bf16, dtypes.f16) and wanted.dtype is dtypes.f32
    if not halves or stored.rank not in ranks:
        return False
    return backend.refusal(Cast(wanted.dtype), [stored], [wanted]) is None


def load_slice(
    source: PartialSource, name: str, type: TensorType, index: tuple[slice, ...]
) -> np.ndarray:
    """Return a part of the stored array in the dtype of `type`; see `PartialSource.read_slice`."""
    with np.errstate(over="ignore", invalid="ignore"):  # as `load_as` does
        return source.read_slice(name, index).astype(type.dtype.numpy, copy=False)


def load_as(source: ParamSource, name: str, type: TensorType) -> np.ndarray:
    """Return the stored array if it has the dtype already, else a copy rounded to even."""
    dtype = type.dtype.numpy
    with np.errstate(over="ignore", invalid="ignore"):  # to inf and NaN, as `cast` of PTIR says
        if not isinstance(source, MappedSource) or source.type_of(name) == type:
            return source.load(name).astype(dtype, copy=False)
        array, start = np.empty(type.size, dtype), 0
        for part in source.parts(name):  # so that no more of the file is in memory
            array[start : start + part.size] = part.astype(dtype, copy=False)
            start += part.size
    return array.reshape(type.shape)
