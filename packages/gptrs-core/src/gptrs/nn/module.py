"""The base of layers and models: an object whose tensors can be listed by dotted name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, cast

from gptrs.capture.tensor import Tensor


class Watcher(Protocol):
    """Stands in for the calls of modules: reads or replaces what goes in and comes out."""

    def call(
        self,
        module: Module,
        call: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """Return `call(module, *args, **kwargs)`, or something else."""
        ...

    @property
    def wants_attention(self) -> bool:
        """Whether attention weights are computed for the watcher; nothing else needs them."""
        ...

    def attention_of(self, weights: Tensor) -> None:
        """Take the weights of the attention that is being computed, [H, N, N]."""
        ...


WATCHER: ContextVar[Watcher | None] = ContextVar("gptrs_watcher", default=None)
"""The watcher of module calls in this thread, if any."""


class Module:
    """A layer or model. Its attributes are weights (`Tensor`), modules, and lists of modules.

    Attribute names are those of the checkpoint, so that a path in Python is a name in the file.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__call__" in vars(cls):
            cls.__call__ = _watched(cast("Callable[..., object]", vars(cls)["__call__"]))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield all modules below this one with their dotted names, each before those in it."""
        for name, value in vars(self).items():
            yield from _modules(f"{prefix}{name}", value)

    def named_tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Yield all weights below this module with their dotted names, in order of definition."""
        for name, value in vars(self).items():
            yield from _walk(f"{prefix}{name}", value)


def _walk(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Module):
        yield from value.named_tensors(f"{name}.")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _walk(f"{name}.{index}", item)


def _modules(name: str, value: object) -> Iterator[tuple[str, Module]]:
    if isinstance(value, Module):
        yield name, value
        yield from value.named_modules(f"{name}.")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _modules(f"{name}.{index}", item)


def _watched(call: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(call)
    def watched(self: Module, *args: object, **kwargs: object) -> object:
        watcher = WATCHER.get()
        if watcher is None:  # nearly always; and modules are called while they are captured only
            return call(self, *args, **kwargs)
        return watcher.call(self, call, args, kwargs)

    return watched


def parts_of(
    value: object, owners: tuple[type, ...] = (Module,)
) -> Mapping[Hashable, object] | None:
    """Return the parts of a container by name or position, None for what is none.

    Containers are dicts, lists, tuples, dataclasses, and objects of `owners`, which consist of
    their attributes.
    """
    kind = type(value)
    if kind is dict:
        return cast("dict[Hashable, object]", value)
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(kind, "_make")):
        return dict(enumerate(cast("tuple[object, ...]", value)))
    if isinstance(value, owners):
        has_slots = any(vars(base).get("__slots__") for base in kind.__mro__)
        return None if has_slots else cast("dict[Hashable, object]", vars(value))
    return _fields(cast("object", value), kind) if dataclasses.is_dataclass(kind) else None


def _fields(value: object, kind: type) -> Mapping[Hashable, object]:
    """Return the fields of a dataclass, and other attributes that somebody gave it."""
    names = (field.name for field in dataclasses.fields(kind))
    found = {name: cast("object", getattr(value, name)) for name in names}
    return {**found, **cast("dict[str, object]", getattr(value, "__dict__", {}))}
