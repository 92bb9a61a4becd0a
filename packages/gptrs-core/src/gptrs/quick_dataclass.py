"""Dataclasses whose methods are compiled when first called. A process defines some 250 dataclasses
and calls few of their methods: compiling all methods with each class, as the standard library does,
took a quarter of the CPU time of a start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import cache
from reprlib import recursive_repr
from types import FunctionType
from typing import Any, TypeVar, cast, dataclass_transform

Made = TypeVar("Made")
_Fields = Sequence[Field[Any]]
FILES = (__file__, "<quick dataclass>")
"""File names in tracebacks: of methods yet to be compiled, and of compiled ones."""


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    *, frozen: bool = False, slots: bool = False, eq: bool = True
) -> Callable[[type[Made]], type[Made]]:
    """Return a decorator like `dataclasses.dataclass` with these options.

    The classes behave the same. A frozen class and its subclasses must use the same decorator of
    the two.
    """

    def decorate(cls: type[Made]) -> type[Made]:
        own = frozenset(vars(cls))
        explicit_hash = own >= {"__hash__"} and (cls.__hash__ is not None or "__eq__" not in own)
        cls.__doc__ = cls.__doc__ or cls.__name__  # else `dataclass` derives one from the signature
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
        fields = cast("_Fields", dataclasses.fields(cast("Any", made)))
        _later(made, "__init__", lambda: _init(made, fields, frozen))
        _put(made, "__signature__", _SIGNATURE)
        if "__repr__" not in own:
            _put(made, "__repr__", _repr)
        if eq and "__eq__" not in own:
            _later(made, "__eq__", lambda: _eq(fields))
        if eq and not explicit_hash:
            _hash_later(made, fields, frozen)
        if frozen:
            _freeze(made, fields, slots)
        return made

    return decorate


def _put(cls: type[object], name: str, value: object) -> None:
    type.__setattr__(cls, name, value)


def _later(cls: type[object], name: str, make: Callable[[], Callable[..., object]]) -> None:
    """Give a class a method that compiles and replaces itself when first called."""

    def compiled() -> Callable[..., object]:
        made = make()
        made.__qualname__, made.__module__ = first.__qualname__, first.__module__
        _put(cls, name, made)
        return made

    def first(self: object, *args: object, **kwargs: object) -> object:
        return compiled()(self, *args, **kwargs)

    first.__name__, first.__qualname__ = name, f"{cls.__qualname__}.{name}"
    first.__module__ = cls.__module__
    vars(first)["compiled"] = compiled
    _put(cls, name, first)


class _Signature:
    """Compiles `__init__` when the signature of the class is read, then defers to it."""

    def __get__(self, instance: object, owner: type[object]) -> None:
        compiled = getattr(owner.__init__, "compiled", None) if instance is None else None
        if compiled is not None:
            compiled()


_SIGNATURE = _Signature()


def _hash_later(cls: type[object], fields: _Fields, frozen: bool) -> None:
    if frozen:
        _later(cls, "__hash__", lambda: _hash(fields))
    else:
        _put(cls, "__hash__", None)


def _compiled(name: str, source: str, names: dict[str, object]) -> Callable[..., object]:
    exec(compile(source, FILES[1], "exec"), names)
    return cast("FunctionType", names[name])


class _MadeDefault:
    def __repr__(self) -> str:
        return "<factory>"


_MADE = _MadeDefault()
"""Marks, in signatures, a default made by a factory."""


def _init(cls: type[object], fields: _Fields, frozen: bool) -> Callable[..., object]:
    names: dict[str, object] = {"_set": object.__setattr__, "_missing": _MADE}
    arguments: list[str] = []
    body: list[str] = []
    for field in fields:
        name, value = field.name, field.name
        if field.default_factory is not MISSING:
            names[f"_make_{name}"] = field.default_factory
            value = f"_make_{name}()"
            if field.init:
                arguments.append(f"{name}=_missing")
                value = f"{value} if {name} is _missing else {name}"
        elif field.default is not MISSING:
            names[f"_default_{name}"] = field.default
            if field.init:
                arguments.append(f"{name}=_default_{name}")
            else:
                value = f"_default_{name}"
        elif field.init:
            arguments.append(name)
        else:
            continue
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    lines = "\n ".join(body or ["pass"])
    made = _compiled("__init__", f"def __init__(self, {', '.join(arguments)}):\n {lines}", names)
    made.__annotations__ = {each.name: each.type for each in fields if each.init} | {"return": None}
    return made


@recursive_repr()
def _repr(self: object) -> str:
    fields = cast("_Fields", dataclasses.fields(cast("Any", self)))
    shown = [f"{each.name}={getattr(self, each.name)!r}" for each in fields if each.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _values(owner: str, fields: _Fields) -> str:
    return f"({''.join(f'{owner}.{each.name},' for each in fields)})"


def _eq(fields: _Fields) -> Callable[..., object]:
    compared = [each for each in fields if each.compare]
    same = f"{_values('self', compared)} == {_values('other', compared)}"
    lines = f"if other.__class__ is self.__class__:\n  return {same}\n return NotImplemented"
    return _compiled("__eq__", f"def __eq__(self, other):\n {lines}", {})


def _hash(fields: _Fields) -> Callable[..., object]:
    hashed = [each for each in fields if (each.compare if each.hash is None else each.hash)]
    source = f"def __hash__(self):\n return hash({_values('self', hashed)})"
    return _compiled("__hash__", source, {})


def _freeze(cls: type[object], fields: _Fields, slots: bool) -> None:
    names = frozenset(each.name for each in fields)

    def set_attribute(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: object, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    _put(cls, "__setattr__", set_attribute)
    _put(cls, "__delattr__", delete_attribute)
    if slots:
        _put(cls, "__getstate__", _state)
        _put(cls, "__setstate__", _set_state)


def _state(self: object) -> list[object]:
    """Return the values of the fields, for copies and pickles of a frozen class with slots."""
    return [getattr(self, name) for name in _names(type(self))]


def _set_state(self: object, state: Sequence[object]) -> None:
    for name, value in zip(_names(type(self)), state, strict=True):
        object.__setattr__(self, name, value)


@cache
def _names(cls: type[object]) -> tuple[str, ...]:
    """Return the field names of a dataclass; looking them up takes longer than setting the
    fields."""
    return tuple([each.name for each in cast("_Fields", dataclasses.fields(cast("Any", cls)))])
