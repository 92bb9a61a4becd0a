"""Groups of options: a Struct as a parameter becomes one option per field."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

import typer
from msgspec import NODEFAULT, Struct, StructMeta, structs

from gptrs_cli.help_pages import FURTHER, SHARED, help_all
from gptrs_cli.options.declare import option_of
from gptrs_cli.options.settings import ALWAYS, Settings, settings_of

if TYPE_CHECKING:
    from gptrs_runtime.option_fields import OptionField


class OptionsOf:
    """Annotation of a parameter that gets the given ones of `options`, which are fields of Structs.

    With `told`, defaults are shown and bounds are checked here; otherwise the receiver checks them.
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


def command_options(
    *shared: str, explained: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate the function of a command so that its groups of options become options.

    A group is a parameter of a Struct with fields `Annotated[type, option(...)]`. A parameter
    annotated with `OptionsOf` gets the given values of options by name. `Settings` is the group of
    shared options: the command takes those in `shared` and in `ALWAYS`, before its name as well as
    after it. The help explains shared options if `explained`, and otherwise only names them. A
    group may have a `title` in the help; only `--help-all` shows one that is `further`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        plain: list[inspect.Parameter] = []
        groups: list[_Group | _Fields] = []
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            group = _group_of(parameter, (*shared, *ALWAYS), explained)
            if group is not None:
                groups.append(group)
                plain.extend(group.parameters())
            else:
                plain.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        if any(group.is_further for group in groups):
            plain.append(_HELP_ALL)

        # typer passes its context under one name only.
        own = next((p for p in plain if p.annotation is typer.Context), None)
        context_parameter = own or inspect.Parameter(
            "_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
        )

        @functools.wraps(function)
        def command(**values: Any) -> None:
            context: typer.Context = values[context_parameter.name]
            if own is None:
                del values[context_parameter.name]
            values.pop(_HELP_ALL.name, None)
            # All groups are taken first: a group may be named like one of its options.
            made = {group.name: group.made(context, values) for group in groups}
            function(**values, **made)

        signature = inspect.Signature(plain if own else [context_parameter, *plain])
        command.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        command.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
        return command

    return decorate


_HELP_ALL = inspect.Parameter(
    "_help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--help-all", help="Show all options and exit.", callback=help_all, is_eager=True
        ),
    ],
)


class _Group(Struct, frozen=True):
    """A parameter `name` of a command, filled from the options for the fields of `kind`.

    `taken` names the fields that are options; None: all.
    """

    name: str
    kind: type[Struct]
    taken: tuple[str, ...] | None
    explained: bool

    @property
    def is_further(self) -> bool:
        """Whether only `--help-all` shows the options."""
        is_shared = "coordinator" in (self.taken or ())
        return is_shared if self.kind is Settings else getattr(self.kind, "further", False)

    def parameters(self) -> list[inspect.Parameter]:
        """Return a parameter for each option, in the order of the fields."""
        taken = self._fields()
        return [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None if field.default is NODEFAULT else field.default,
                annotation=self._in_panel(field.type),
            )
            for field in structs.fields(self.kind)
            if field.name in taken
        ]

    def _in_panel(self, annotation: Any) -> Any:
        """Return the annotation with the panel in which the help shows the option."""
        kind, declared = get_args(annotation)
        declared = copy.copy(declared)
        if self.kind is Settings:
            own = self.explained or (declared.rich_help_panel or "").startswith(FURTHER)
            panel = declared.rich_help_panel if own else SHARED
        else:
            panel = getattr(self.kind, "title", None)
            panel = f"{FURTHER}{panel}" if self.is_further else declared.rich_help_panel or panel
        declared.rich_help_panel = panel
        return Annotated[kind, declared]

    def made(self, context: typer.Context, values: dict[str, Any]) -> object:
        """Take the values of the options out of `values` and return the group."""
        given: Mapping[str, Any] = {name: values.pop(name) for name in self._fields()}
        if self.kind is Settings:
            settings = settings_of(context)
            settings.update(given)
            return settings
        return self.kind(**{name: value for name, value in given.items() if value is not None})

    def _fields(self) -> list[str]:
        """Return the names of the fields that are options."""
        names = self.kind.__struct_fields__
        return [name for name in names if self.taken is None or name in self.taken]


class _Fields(Struct, frozen=True):
    """A parameter `name` of a command that gets the given `options` as a dict."""

    name: str
    options: Mapping[str, OptionField]
    told: bool

    @property
    def is_further(self) -> bool:
        """Whether only `--help-all` shows some of the options."""
        return any(field.option.further for field in self.options.values())

    def parameters(self) -> list[inspect.Parameter]:
        """Return a parameter for each option."""
        return [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=self._default(field),
                annotation=Annotated[self._parsed(field), option_of(field, told=self.told)],
            )
            for name, field in self.options.items()
        ]

    def made(self, context: typer.Context, values: dict[str, Any]) -> dict[str, Any]:
        """Take the values of the options out of `values`, and return the given ones."""
        taken = {name: values.pop(name) for name in self.options}
        return {
            name: self.options[name].meant(value)
            for name, value in taken.items()
            if value is not None
            and value not in ((), [])
            and (value is not False or self.options[name].both_ways)
        }

    def _default(self, field: OptionField) -> Any:
        kind = field.option.parsed or field.type
        if kind is bool and not field.both_ways:
            return False
        if not self.told or get_origin(kind) is list:
            return inspect.Parameter.empty if self.told and field.required else None
        return inspect.Parameter.empty if field.required else field.default

    def _parsed(self, field: OptionField) -> Any:
        """Return the type of an option's values on the command line."""
        kind = field.option.parsed or field.type
        has_value = (kind is bool and not field.both_ways) or get_origin(kind) is list
        has_value |= self.told and (field.required or field.default is not None)
        return kind if has_value else kind | None


def _group_of(
    parameter: inspect.Parameter, shared: tuple[str, ...], explained: bool
) -> _Group | _Fields | None:
    """Return the group of a parameter; None for a single option or argument."""
    kind: object = parameter.annotation
    for told in get_args(kind):
        if isinstance(told, OptionsOf):
            return _Fields(parameter.name, told.options, told.told)
    if not isinstance(kind, StructMeta):
        return None
    group = cast("type[Struct]", kind)
    return _Group(parameter.name, group, shared if kind is Settings else None, explained)
