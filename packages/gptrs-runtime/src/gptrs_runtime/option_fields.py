"""Options as annotated Struct fields, from which all forms of an option are derived.

A field is `Annotated[TYPE, Meta(ge=..., description=...), Option(...)]`, perhaps `| None`. `Meta`
has its bounds and its help, `Option` its names on the command line, in requests and in
generation_config.json. Nothing that runs models is imported here: the help of a command reads it.
"""

from __future__ import annotations

import inspect
import math
import numbers
import os
from collections.abc import Callable, Container, Mapping, Sequence
from enum import Enum
from functools import cache
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    TypeGuard,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import NODEFAULT, Meta, Struct, StructMeta
from msgspec.structs import fields, replace

from gptrs.errors import UsageError
from gptrs.lazy_module import lazy_module
from gptrs.quoting import shown_value

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazy_module("numpy")

Kind = tuple[str, Callable[[object], bool]]
"""A description of an option's valid values, and a check for them."""


class OptionError(UsageError):
    """The value of an option is wrong, by itself or beside others.

    The message calls `options` by their names in Python; the first is at fault.
    """

    def __init__(
        self, message: str, options: Sequence[OptionField], *, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint, argument=options[0].name)
        self._options = options

    @property
    def on_command_line(self) -> str:
        """The message with the names of the command line."""
        message = self.message
        for each in self._options:
            message = message.replace(f"`{each.name}`", f"`{each.flag or each.name}`", 1)
        return message


class Missing(Struct, frozen=True):
    """Replaces a form that an option lacks, and says why."""

    why: str


class Option(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Describes the forms of a field outside of Python.

    On the command line it is `flag`, by default `--name`, with a `metavar` and under a `panel`,
    which only `--help-all` shows if `further`; a `flag` without a hyphen names an argument.
    `parsed` is the type of its values there, by default that of the field, or one of `choices`; one
    that is bool `stands` for a value, by default True, or False if it begins with `--no-`.
    `keyword` says why functions have no such parameter. `variable` sets it,
    too: the runtime itself reads it if `in_python`, else the command line does. `unset` tells the
    help what holds without it.

    `request` has the bounds of a field of requests that follows from this one; a text names the
    field that a protocol spells in its own way. `setting` is its name in generation_config.json,
    where, as on the command line and in requests, `off` means None. One that `samples` makes a
    greedy text a sampled one. Errors call it `called`; `also` are names that other libraries have
    for it. `kind` describes its values if the type does not.
    """

    kind: Kind | None = None
    called: str = ""
    flag: str | Missing = ""
    metavar: str | None = None
    panel: str = ""
    further: bool = False
    parsed: Any = None
    choices: tuple[str, ...] = ()
    stands: Any = None
    keyword: Missing | None = None
    variable: str | None = None
    in_python: bool = False
    unset: str | None = None
    request: Meta | str | Missing
    setting: str | Missing = Missing("no setting of transformers")
    off: float | None = None
    samples: bool = False
    also: tuple[str, ...] = ()


class OptionField(Struct, frozen=True):
    """A field of a Struct of options; `type` is the type of its values other than None."""

    name: str
    type: Any
    default: Any
    kind: Kind
    meta: Meta
    option: Option
    required: bool

    @property
    def flag(self) -> str | None:
        """The option of the command line; None without."""
        flag = self.option.flag
        return None if isinstance(flag, Missing) else flag or f"--{self.name.replace('_', '-')}"

    @property
    def parsed(self) -> Any:
        """The type of its values on the command line."""
        option = self.option
        if option.parsed is None and option.choices:
            return Enum(self.name, {each: each for each in option.choices}, type=str)
        return option.parsed or self.type

    @property
    def negated(self) -> bool:
        """Whether the option of the command line stands for False."""
        return (self.flag or "").startswith("--no-")

    @property
    def both_ways(self) -> bool:
        """Whether the option of the command line has a form for True and one for False."""
        return "/" in (self.flag or "")

    def meant(self, given: Any) -> Any:
        """Return the value that a value of the command line stands for."""
        if self.option.choices and isinstance(given, Enum):
            return given.value
        if given is not True:
            return given
        return not self.negated if self.option.stands is None else self.option.stands

    def or_off(self, value: Any) -> Any:
        """Return a value of a file, a request or the command line; None if it is `off`."""
        off = self.option.off
        return None if off is not None and _is_number(value) and value == off else value

    def reworded(self, help: str, *, least: int | None = None, **option: Any) -> OptionField:
        """Return the option of a command with words of its own: help, bound, parts of `Option`."""
        meta = Meta(ge=self.meta.ge if least is None else least, le=self.meta.le, description=help)
        plain = {"panel": "", "further": False, "variable": None, "unset": None, **option}
        return replace(self, meta=meta, option=replace(self.option, **plain))

    def require(self, value: object) -> None:
        """UsageError unless a value, or None if that is the default, is what it must be."""
        if value is None and self.default is None and not self.required:
            return
        what, is_one = self.kind
        if not is_one(value):
            listed = what.startswith("a list of") and isinstance(value, str)
            raise UsageError(
                f"`{self.name}` must be {what}, got {shown_value(value)}",
                hint=f"`{self.name}=[{value!r:.100}]` has one" if listed else None,
                argument=self.name,
            )
        if _is_number(value) and not self._has(value):
            called = self.option.called or f"`{self.name}`"
            raise self.error(f"{called} must be {self._bounds()}, got {value}")

    def error(self, message: str, *more: OptionField, hint: str | None = None) -> OptionError:
        """Return an error about the option and others, which `message` names in backticks."""
        return OptionError(message, (self, *more), hint=hint)

    def _has(self, value: float) -> bool:
        meta = self.meta
        return (
            (self.type is not float or math.isfinite(value))
            and (meta.ge is None or value >= meta.ge)
            and (meta.gt is None or value > meta.gt)
            and (meta.le is None or value <= meta.le)
        )

    def _bounds(self) -> str:
        """Return the bounds in words."""
        meta = self.meta
        if self.type is int and meta.le is None:
            return f"at least {meta.ge}"
        if meta.le is not None:
            least = f"from {meta.ge} to" if meta.gt is None else f"above {meta.gt} and at most"
            return f"{least} {meta.le}"
        least = f" > {meta.gt}" if meta.gt is not None else f" >= {meta.ge}"
        return f"a finite number{'' if meta.gt is meta.ge is None else least}"


class OptionsOf:
    """Annotation of a command's parameter that gets the given ones of `options` by name, in a dict.

    They are fields of a Struct: each becomes an option of the command. With `told`, defaults are
    shown and bounds are checked by the command line; otherwise the receiver checks them.
    """

    def __init__(
        self, options: Mapping[str, OptionField], without: str | None = None, *, told: bool = False
    ) -> None:
        """Use the options that the command line has, except those in the section `without`."""
        self.told = told
        self.options = {
            name: field
            for name, field in options.items()
            if field.flag is not None and field.option.panel != without
        }


class _ShortSignature(StructMeta):
    @property
    def __signature__(self) -> inspect.Signature:
        """Return the signature that users see: plain types without annotations."""
        hints = get_type_hints(self)
        metadata: inspect.Signature = StructMeta.__dict__["__signature__"].__get__(self)
        return metadata.replace(
            parameters=[
                each.replace(annotation=hints[each.name]) for each in metadata.parameters.values()
            ]
        )


class Options(Struct, frozen=True, metaclass=_ShortSignature):
    """The base of options: UsageError unless each field is of its type and within its bounds."""

    def __post_init__(self) -> None:
        for name, field in option_fields(type(self)).items():
            field.require(getattr(self, name))


@cache
def option_fields(options: type[Options]) -> Mapping[str, OptionField]:
    """Return the options that are the fields of a Struct, by their names."""
    hints = get_type_hints(options, include_extras=True)
    found: dict[str, OptionField] = {}
    for field in fields(options):
        kind, *metadata = _annotated(hints[field.name])
        option = next(each for each in metadata if isinstance(each, Option))
        meta = next((each for each in metadata if isinstance(each, Meta)), Meta())
        default = None if field.default is NODEFAULT else field.default
        values = option.kind or _KINDS[kind]
        found[field.name] = OptionField(
            field.name, kind, default, values, meta, option, field.required
        )
    return found


def in_own_words(
    options: type[Options], *own: OptionField, without: Container[str] = ()
) -> dict[str, OptionField]:
    """Return the options of a command: `own`, which it has reworded, then all others."""
    found = {field.name: field for field in own}
    for name, field in option_fields(options).items():
        if name not in found and name not in without:
            found[name] = field.reworded(field.meta.description or "")
    return found


def _annotated(hint: Any) -> tuple[Any, ...]:
    """Return the type in an annotation without None, and its metadata."""
    if get_origin(hint) is Annotated:
        return get_args(hint)
    (one,) = (each for each in get_args(hint) if each is not NoneType)
    return get_args(one)


def _is_list(value: object, is_entry: Callable[[object], bool]) -> bool:
    is_sequence = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return is_sequence and all(map(is_entry, cast("Sequence[object]", value)))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_integer(value: object) -> bool:
    """Return whether a value is an integer of Python or NumPy; a bool is not."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral)


def _is_number(value: object) -> TypeGuard[float]:
    # NumPy registers its numbers as Python numbers; fractions do not count here.
    is_real = isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational)
    return is_real or _is_integer(value)


def _is_flag(value: object) -> bool:
    # Python's bool is checked first, without importing numpy.
    return value is True or value is False or isinstance(value, np.bool_)


INTEGER: Final[Kind] = ("an integer", _is_integer)
NUMBER: Final[Kind] = ("a number", _is_number)
FLAG: Final[Kind] = ("True or False", _is_flag)
TEXT: Final[Kind] = ("a text", _is_text)
SIZE: Final[Kind] = ("bytes or a text such as 2GB", lambda v: _is_text(v) or _is_integer(v))
PATH: Final[Kind] = ("a path", lambda value: isinstance(value, str | os.PathLike))
PATHS: Final[Kind] = ("a list of paths", lambda value: _is_list(value, PATH[1]))
TOKENS: Final[Kind] = ("a list of tokens", lambda value: _is_list(value, _is_integer))
NUMBERS: Final[Kind] = (
    "a number or a list of numbers",
    lambda value: _is_number(value) or _is_list(value, _is_number),
)
TEXTS: Final[Kind] = ("a list of texts", lambda value: _is_list(value, _is_text))
FUNCTIONS: Final[Kind] = ("a list of functions", lambda value: _is_list(value, callable))
_KINDS: Final[Mapping[object, Kind]] = {int: INTEGER, float: NUMBER, bool: FLAG, str: TEXT}


def having(method: str, what: str) -> Kind:
    """Return the kind of objects that have a `method`, called `what`."""
    return what, lambda value: callable(getattr(value, method, None))


def from_to(least: float, most: float) -> Kind:
    """Return the kind of numbers from `least` to `most`."""
    return (
        f"a number from {least} to {most}",
        lambda value: _is_number(value) and least <= value <= most,
    )
