"""Values of options that need no conversion by typer, which imports pydantic for any: 0.1 s."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperGroup, TyperOption
from typing_extensions import override

_NUMBERS: dict[object, re.Pattern[str]] = {
    int: re.compile(r"-?[0-9]{1,18}\Z"),
    float: re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?\Z"),
}


def take_plain_values(command: Any) -> Any:
    """Let the parameters of `command`, and of its own commands, take plain values; return it."""
    parameters_of = command.get_params  # and the option --help, which is made for a context

    def get_params(context: Any) -> list[Any]:
        return [_with_plain_values(parameter) for parameter in parameters_of(context)]

    command.get_params = get_params
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            take_plain_values(below)
    return command


def _with_plain_values(parameter: Any) -> Any:
    if type(parameter) is TyperOption:
        parameter.__class__ = _Option
    elif type(parameter) is TyperArgument:
        parameter.__class__ = _Argument
    return parameter


class _Option(TyperOption):
    @override
    def process_value(self, ctx: Any, value: Any) -> Any:
        if not _is_plain(self, value):
            return super().process_value(ctx, value)
        return _called_back(self, ctx, _made(self, value))


class _Argument(TyperArgument):
    @override
    def process_value(self, ctx: Any, value: Any) -> Any:
        if not _is_plain(self, value):
            return super().process_value(ctx, value)
        return _called_back(self, ctx, _made(self, value))


def _is_plain(parameter: Any, value: Any) -> bool:
    """Return whether `_made` makes the same of a value as typer would.

    The rest is left to typer: what is malformed, out of range or missing, choices, lists.
    """
    if value is None:
        return not parameter.required
    described = getattr(parameter, "type_descriptor", None)  # typer without pydantic has none
    if described is None or described.is_ranged or described.parameter_info.parser is not None:
        return False
    kind: Any = described.annotation
    if isinstance(value, str) and kind in (*_NUMBERS, Path):
        info = described.parameter_info
        return _is_plain_path(value, info) if kind is Path else bool(_NUMBERS[kind].match(value))
    return kind in (str, *_NUMBERS) and type(value) is kind


def _is_plain_path(value: str, info: Any) -> bool:
    """Return whether typer would take the path as it is: it is readable, or there is none."""
    checked = info.exists or info.writable or info.resolve_path or info.path_type is not None
    if checked or not (info.file_okay and info.dir_okay):
        return False
    return os.access(value, os.R_OK) or not os.path.exists(value)


def _made(parameter: Any, value: Any) -> Any:
    if value is None:
        return () if parameter.multiple or parameter.nargs != 1 else None
    return parameter.type_descriptor.annotation(value)


def _called_back(parameter: Any, context: Any, value: Any) -> Any:
    return value if parameter.callback is None else parameter.callback(context, parameter, value)
