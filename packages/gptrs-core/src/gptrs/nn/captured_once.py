"""Captures equal blocks once for all layers: decorate `__call__` with `@captured_once`."""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Callable, Hashable, Iterator
from functools import reduce
from types import BuiltinFunctionType, FunctionType
from typing import Concatenate, ParamSpec, TypeVar, cast

from gptrs.capture.caching.source_identity import package_of
from gptrs.capture.graph import Captured, GraphNode, Leaf, Stored
from gptrs.capture.jitting.captured_function import Closure, signature_context
from gptrs.capture.jitting.jit import Jitted
from gptrs.capture.jitting.pytree import Static
from gptrs.capture.jitting.repeated_calls import repeated_calls
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor
from gptrs.ir.dtypes import DType
from gptrs.nn.attention import LayerCache
from gptrs.nn.layers import WATCHER, Module, parts_of
from gptrs.record_fields import taken_apart, with_fields

Layer = TypeVar("Layer", bound=Module)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_Whole = tuple[type[object], tuple[Hashable, ...], tuple[Hashable, ...]]
"""A container without its tensors: its class, the names of its parts, and the parts."""
_OWNERS = (Module, LayerCache)
"""Objects that consist of their attributes."""
_FUNCTIONS = (FunctionType, BuiltinFunctionType, type)
_STATIC = (bool, int, float, str, bytes, enum.Enum, DType, type(None), *_FUNCTIONS)


def captured_once(
    call: Callable[Concatenate[Layer, Parameters], Result],
) -> Callable[Concatenate[Layer, Parameters], Result]:
    """Decorator of a module's `__call__`: `gptrs.jit` captures it once for all equal modules.

    Modules are equal if they differ only in the values of their tensors; the same applies to
    arguments. The block becomes a function of the program, which each layer calls with its weights;
    a backend that shares functions optimizes and lowers it once. `__call__` may update the
    `LayerCache`s that it is given, and must have no other side effect that counts.

    A module with other contents than tensors and static values - a hook, an object of unknown
    class, an attribute that the call sets - is captured in place, as without the decorator.
    """

    @functools.wraps(call)
    def shared(self: Layer, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        # Hooks on the modules in a block need each call of them.
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
    """Raised for a value of unknown kind, or one changed by a call."""


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
    taken_apart(value)
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
    return with_fields(kind, zip(cast("tuple[str, ...]", names), parts, strict=True))


# Closures of module methods, in a form equal across processes.


_PLAIN = (bool, int, float, str, bytes, type(None))


def closure_of(method: Callable[..., object]) -> Closure | None:
    """Return the closure of a bound method of a module; None if a part of it cannot be identified.

    Attributes may be plain values, enum members, element types, tensors (weights, values computed
    from weights, or values in memory), modules, dataclasses, lists, tuples and dicts, and functions
    and classes that can be found in their modules or close over nothing.
    """
    owner = cast("object", getattr(method, "__self__", None))
    if not isinstance(owner, Module):
        return None
    description = _Description(owner)
    try:
        description.function(cast("FunctionType", getattr(method, "__func__", None)))
        description.add(owner)
    except (_UnknownError, RecursionError):
        return None
    return Closure(
        "\n".join(description.parts), frozenset(description.packages), tuple(description.leaves)
    )


class _UnknownError(ValueError):
    """Raised for a value that cannot be identified in another process."""


class _Description:
    def __init__(self, owner: Module) -> None:
        self.parts: list[str] = []
        self.packages: set[str] = set()
        self.leaves: dict[Leaf, int] = {}
        self._owner = owner
        self._names: dict[object, str] = {}
        self._nodes: dict[GraphNode, int] = {}

    def add(self, value: object) -> None:
        """Describe a value and all of its parts."""
        kind = type(value)
        if kind in _PLAIN:
            self.parts.append(repr(value))
        elif kind is Tensor:
            self._tensor(cast("Tensor", value))
        elif isinstance(value, DType):
            self.parts.append(f"dtype {value}")
        elif isinstance(value, enum.Enum):
            self.parts.append(f"{self._name(kind)} {value.name}")
        elif isinstance(value, FunctionType):
            self.function(value)
        elif isinstance(value, BuiltinFunctionType | type):
            self.parts.append(self._name(cast("Hashable", value)))
        elif isinstance(value, Jitted):
            self._compiled(cast("Jitted[..., object]", value))
        else:
            self._container(value)

    def _container(self, value: object) -> None:
        parts = parts_of(value)
        if parts is None:
            raise _UnknownError
        self.parts.append(f"{self._name(type(value))} {len(parts)}")
        for name, part in parts.items():
            self.add(name)
            self.add(part)

    def _compiled(self, value: Jitted[..., object]) -> None:
        """Describe a compiled method of the owner, which holds only its constructor arguments."""
        method = cast("object", getattr(value, "__wrapped__", None))
        if getattr(method, "__self__", None) is not self._owner:
            raise _UnknownError
        self.parts.append("jit")
        self.function(cast("FunctionType", getattr(method, "__func__", None)))

    def _tensor(self, tensor: Tensor) -> None:
        source = tensor.source
        if isinstance(source, Captured):
            self._computed(source)
            return
        index = self.leaves.setdefault(source, len(self.leaves))
        if isinstance(source, Parameter):
            what = f"weight {source.name!r} {source.streamer is not None}"
        elif isinstance(source, Stored) and not source.consumed:
            what = "value"
        else:
            raise _UnknownError
        home = None if source.backend is None else source.backend.name
        self.parts.append(f"{index} {what} {source.type} {home}")

    def _computed(self, source: Captured) -> None:
        """Describe derived weights, such as joined experts."""
        node = source.node
        number = self._nodes.get(node)
        if number is None:
            if node.abstract or node.regions:  # the names of functions end in their digests
                raise _UnknownError
            number = self._nodes[node] = len(self._nodes)
            self.parts.append(f"{node.op!r} {len(node.operands)} {list(map(str, node.types))}")
            for operand in node.operands:
                self._tensor(Tensor(operand))
        self.parts.append(f"result {source.index} of {number}")

    def function(self, value: FunctionType) -> None:
        """Describe a function that can be found under its name or closes over nothing."""
        self.packages.add(package_of(value.__module__))
        name = f"{value.__module__}.{value.__qualname__}"
        if _found(value) is not value:
            module = sys.modules.get(value.__module__)
            code = value.__code__
            if value.__closure__ or getattr(module, "__file__", None) != code.co_filename:
                raise _UnknownError
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            if any(type(default) not in _PLAIN for default in defaults):
                raise _UnknownError
            name += f" {code.co_firstlineno} {code.co_code.hex()} {code.co_consts!r} {defaults}"
        self.parts.append(name)

    def _name(self, value: Hashable) -> str:
        """Return the full name of a class or of a function of C; each must be found under it."""
        known = self._names.get(value)
        if known is None:
            known = self._names[value] = f"{_module_of(value)}.{getattr(value, '__qualname__', '')}"
            if _found(value) is not value:
                raise _UnknownError
            for kind in value.__mro__ if isinstance(value, type) else ():
                if kind.__module__ != "builtins":
                    self.packages.add(package_of(kind.__module__))
        return known


def _module_of(value: object) -> str:
    return str(getattr(value, "__module__", None))


def _found(value: object) -> object:
    """Return the object with the full name of a function or class in a module, None if there is
    none.
    """
    names = str(getattr(value, "__qualname__", "")).split(".")
    module = cast("object", sys.modules.get(_module_of(value)))
    return reduce(lambda found, name: cast("object", getattr(found, name, None)), names, module)
