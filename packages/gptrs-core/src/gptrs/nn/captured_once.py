"""Blocks that are captured once for all layers: `@captured_once` above `__call__`."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Hashable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Concatenate, ParamSpec, TypeVar, cast

from gptrs.capture.jitting.captured_function import signature_context
from gptrs.capture.jitting.pytree import Static
from gptrs.capture.jitting.repeated_calls import repeated_calls
from gptrs.capture.tensor import Tensor
from gptrs.ir.dtypes import DType
from gptrs.nn.attention import LayerCache
from gptrs.nn.module import WATCHER, Module, parts_of

Layer = TypeVar("Layer", bound=Module)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_Whole = tuple[type[object], tuple[Hashable, ...], tuple[Hashable, ...]]
"""A container without its tensors: its class, the names of its parts, and these."""
_OWNERS = (Module, LayerCache)
"""Objects that consist of their attributes."""
_FUNCTIONS = (FunctionType, BuiltinFunctionType, type)
_STATIC = (bool, int, float, str, bytes, enum.Enum, DType, type(None), *_FUNCTIONS)


def captured_once(
    call: Callable[Concatenate[Layer, Parameters], Result],
) -> Callable[Concatenate[Layer, Parameters], Result]:
    """Decorator of a module's `__call__`: `gptrs.jit` captures it once for all equal modules.

    Modules are equal if they differ in nothing but the values of their tensors; so must be the
    arguments. The block becomes a function of the program, which each layer calls with its weights;
    a backend that shares functions optimizes and lowers it once. `__call__` may update the
    `LayerCache`s that it is given, and must have no other side effect that counts.

    Whatever makes a module more than its tensors and static values - a hook, an object of unknown
    class, an attribute that the call sets - has it captured in place, as without the decorator.
    """

    @functools.wraps(call)
    def shared(self: Layer, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        # Somebody who watches the modules in a block needs each call of them.
        calls = None if WATCHER.get() else repeated_calls()
        given: list[Tensor] = []
        try:
            structure = None if calls is None else _split((self, args, kwargs), given)
        except _NotShared:
            structure = None
        if calls is None or structure is None:
            return call(self, *args, **kwargs)

        def block(tensors: Iterator[Tensor]) -> tuple[list[Tensor], Hashable]:
            return _run(call, structure, tensors)

        key = call, structure, signature_context()
        made = calls.call(type(self).__name__, key, given, block)
        if made is None:
            return call(self, *args, **kwargs)
        results, returned = made
        result, pools = cast("tuple[Result, list[object]]", _join(returned, iter(results)))
        for cache, new in zip(_caches(args, kwargs), pools, strict=True):
            vars(cache)["pools"] = new
        return result

    return shared


class _NotShared(ValueError):  # noqa: N818 - it never reaches a user
    """A value that nothing is known about, or one that a call has changed."""


def _run(
    call: Callable[..., object], structure: Hashable, tensors: Iterator[Tensor]
) -> tuple[list[Tensor], Hashable]:
    """Return the results of `call` on copies of its arguments, and the pools of its caches."""
    whole = cast("tuple[Module, tuple[object, ...], dict[str, object]]", _join(structure, tensors))
    layer, args, kwargs = whole
    caches = _caches(args, kwargs)
    before: list[Tensor] = []
    _split(whole, before)
    pools = [cache.pools for cache in caches]
    result = call(layer, *args, **kwargs)
    leaves: list[Tensor] = []
    returned = _split((result, [cache.pools for cache in caches]), leaves)
    for cache, old in zip(caches, pools, strict=True):
        cache.pools = old
    after: list[Tensor] = []
    if _split(whole, after) != structure or any(map(_differ, before, after)):
        raise _NotShared
    return leaves, returned


def _differ(one: Tensor, other: Tensor) -> bool:
    return one is not other


def _caches(args: tuple[object, ...], kwargs: dict[str, object]) -> list[LayerCache]:
    return [each for each in (*args, *kwargs.values()) if isinstance(each, LayerCache)]


def _split(value: object, tensors: list[Tensor]) -> Hashable:
    """Append the tensors of a value to `tensors`; return all else that it consists of."""
    kind = type(value)
    if kind is Tensor:
        tensors.append(cast("Tensor", value))
        return Tensor
    if isinstance(value, _STATIC):
        return Static(cast("Hashable", value))
    parts = parts_of(value, _OWNERS)
    if parts is None:
        raise _NotShared
    return kind, tuple(parts), tuple([_split(part, tensors) for part in parts.values()])


def _join(structure: Hashable, tensors: Iterator[Tensor]) -> object:
    """Return a copy of the value that `_split` took apart, with other tensors."""
    if structure is Tensor:
        return next(tensors)
    if isinstance(structure, Static):
        return structure.value
    kind, names, inner = cast("_Whole", structure)
    parts = [_join(part, tensors) for part in inner]
    if kind is dict:
        return dict(zip(names, parts, strict=True))
    if tuple in kind.__mro__ or kind is list:
        make = cast("Callable[[list[object]], object]", getattr(kind, "_make", kind))
        return make(parts)
    made = object.__new__(kind)
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(made, cast("str", name), part)
    return made
