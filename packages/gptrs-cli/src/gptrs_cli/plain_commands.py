"""typer applications with grouped help, and a short cut for plain option values.

typer imports pydantic to convert any value, even None. That takes 0.1 s, as long as all of `gptrs
--help`. Plain values are converted here, to the same result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import EnumType
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typing_extensions import override

from gptrs.lazy_module import lazy_module
from gptrs_cli.help_pages import write_examples, write_options

if TYPE_CHECKING:
    from gptrs_cli.options import named_model
else:  # only a model that stands first needs it
    named_model = lazy_module("gptrs_cli.options.named_model")

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of usage errors, which typer does not export."""

_NUMBERS: dict[object, re.Pattern[str]] = {
    # 18 digits fit into 64 bits; forms such as `1_000` or ` 1` are left to typer.
    int: re.compile(r"-?[0-9]{1,18}\Z"),
    float: re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?\Z"),
}


class PlainCommand(TyperCommand):
    """A command with plain parameters and its options in groups."""

    def __init__(self, name: str | None, **more: Any) -> None:
        super().__init__(name, **more)
        self._plain = _PlainParameters()

    @override
    def get_params(self, ctx: Any) -> list[Any]:
        return self._plain.of(super().get_params(ctx))

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_model(self, ctx, args))

    @override
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        may_lead = _takes_model(self, ctx) and "[MODEL]" not in pieces
        return ["[MODEL]", *pieces] if may_lead else pieces

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_options(self, ctx, formatter)

    @override
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_examples(ctx, formatter)
        super().format_epilog(ctx, formatter)


class PlainGroup(TyperGroup):
    """A group of commands with plain parameters and its options in groups."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._plain = _PlainParameters()

    @override
    def get_params(self, ctx: Any) -> list[Any]:
        return self._plain.of(super().get_params(ctx))

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_options(self, ctx, formatter)

    @override
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_examples(ctx, formatter)
        super().format_epilog(ctx, formatter)

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help of a group that is named alone, as the bare `gptrs` does."""
        # Completion parses incomplete commands, and must not print.
        if not (args or self.invoke_without_command or ctx.resilient_parsing):
            print(ctx.get_help())
            raise typer.Exit
        return super().parse_args(ctx, args)


_GIVE_TEXTS: Final = ("file", "prompt", "prompt_file", "prompt_ids", "prompts", "tokens")
"""Options in place of the argument that is a text."""


def _takes_model(command: Any, context: Any) -> bool:
    """Return whether `--model` is an option of the command."""
    return any("--model" in parameter.opts for parameter in command.get_params(context))


def _with_model(command: Any, context: Any, args: list[str]) -> list[str]:
    """Return the arguments with `--model` before the first, if it is a model and one too many.

    So the model may stand first wherever `--model` is an option. A word that stands alone is a
    text, unless an option gives one.
    """
    if not args or args[0].startswith("-"):
        return args
    if not _takes_model(command, context):
        return args
    try:
        # A copy, since the parser takes words off the list.
        given, left, _ = command.make_parser(context).parse_args([*args])
    except _UsageError:  # the command itself reports it
        return args
    has_text = any(given.get(name) is not None for name in _GIVE_TEXTS)
    if not (left or has_text) or given.get("model") is not None:
        return args
    if not named_model.is_model(Path(args[0])):
        if left:
            named_model.require_first(args[0], left, context.command_path)
        return args
    return ["--model", *args]


class Application(typer.Typer):
    """A typer application of such commands."""

    def __init__(self, help: str | None = None, cls: type[PlainGroup] = PlainGroup, **more: Any):
        super().__init__(cls=cls, help=help, rich_markup_mode=None, **more)

    @override
    def command(self, name: str | None = None, **more: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=PlainCommand, **more)


class _PlainParameters:
    """Copies of parameters that take plain values; one each, since click compares parameters."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def of(self, parameters: list[Any]) -> list[Any]:
        """Return the copies; typer adds parameters later, such as `--help`."""
        for parameter in parameters:
            if parameter not in self._made:
                self._made[parameter] = _plain(parameter)
        return [self._made[parameter] for parameter in parameters]


def _plain(parameter: Any) -> Any:
    if type(parameter) is TyperOption:
        made: Any = _Option.__new__(_Option)
    elif type(parameter) is TyperArgument:
        made = _Argument.__new__(_Argument)
    else:
        return parameter
    # Without the constructor: the parameter is complete already, and its arguments are not kept.
    made.__dict__.update(parameter.__dict__)
    return made


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
    """Return whether `_made` converts a value as typer would.

    Left to typer: values that are malformed, out of range or missing, and choices by name.
    """
    if value is None:
        return not parameter.required
    # Typer versions without pydantic lack `type_descriptor`.
    described = getattr(parameter, "type_descriptor", None)
    if described is None or described.parameter_info.parser is not None:
        return False
    kind, info = described.annotation, described.parameter_info
    if get_origin(kind) is list:
        return bool(value) and all(_is_plain_value(get_args(kind)[0], info, each) for each in value)
    return _is_plain_value(kind, info, value)


def _is_plain_value(kind: Any, info: Any, value: Any) -> bool:
    if isinstance(kind, EnumType):
        return isinstance(value, kind)  # a default
    if isinstance(value, str) and kind in (*_NUMBERS, Path):
        if kind is Path:
            return _is_plain_path(value, info)
        return bool(_NUMBERS[kind].match(value)) and _is_in_range(info, kind(value))
    return kind in (str, *_NUMBERS) and type(value) is kind and _is_in_range(info, value)


def _is_in_range(info: Any, value: Any) -> bool:
    least, most = getattr(info, "min", None), getattr(info, "max", None)
    return (least is None or least <= value) and (most is None or value <= most)


def _is_plain_path(value: str, info: Any) -> bool:
    """Return whether typer would accept the path unchanged: it is readable, or does not exist."""
    checked = info.exists or info.writable or info.resolve_path or info.path_type is not None
    if checked or not (info.file_okay and info.dir_okay):
        return False
    return os.access(value, os.R_OK) or not os.path.exists(value)


def _made(parameter: Any, value: Any) -> Any:
    if value is None:
        return () if parameter.multiple or parameter.nargs != 1 else None
    kind = parameter.type_descriptor.annotation
    if get_origin(kind) is list:
        return [get_args(kind)[0](each) for each in value]
    return kind(value)


def _called_back(parameter: Any, context: Any, value: Any) -> Any:
    return value if parameter.callback is None else parameter.callback(context, parameter, value)
