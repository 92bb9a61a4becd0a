"""Groups of options: a Struct as a parameter becomes one option per field."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, cast, get_args, get_origin

import typer
from msgspec import NODEFAULT, Struct, StructMeta, structs

from gptrs_cli.help_pages import FURTHER, SHARED, help_all
from gptrs_cli.options.declare import option_of
from gptrs_cli.options.settings import ALWAYS, COMPLETED, LOADING, Settings, settings_of
from gptrs_runtime.option_fields import OptionField, OptionsOf


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
        groups: list[_Group | _Shared | _Fields] = []
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
    """A parameter `name` of a command, filled from the options for the fields of `kind`."""

    name: str
    kind: type[Struct]

    @property
    def is_further(self) -> bool:
        """Whether only `--help-all` shows the options."""
        return getattr(self.kind, "further", False)

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Yield a parameter for each option, in the order of the fields."""
        title = getattr(self.kind, "title", None)
        for parameter in _declared(self.kind):
            own = _panel(parameter)
            yield _in_panel(parameter, f"{FURTHER}{title}" if self.is_further else own or title)

    def made(self, context: typer.Context, values: dict[str, Any]) -> object:
        """Take the values of the options out of `values` and return the group."""
        given: Mapping[str, Any] = {name: values.pop(name) for name in self.kind.__struct_fields__}
        return self.kind(**{name: value for name, value in given.items() if value is not None})


class _Shared(Struct, frozen=True):
    """The parameter `name` of a command that gets the `Settings` with the `taken` options."""

    name: str
    taken: tuple[str, ...]
    explained: bool

    @property
    def is_further(self) -> bool:
        """Whether only `--help-all` shows some of the options."""
        return any((_panel(each) or "").startswith(FURTHER) for each in self.parameters())

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Yield a parameter for each option."""
        own = {parameter.name: parameter for parameter in _declared(Settings)}
        known = {**own, **{each.name: each for each in _Fields("", LOADING, True).parameters()}}
        for name in self.taken:
            panel = _panel(known[name])
            told = self.explained or (panel or "").startswith(FURTHER)
            yield _in_panel(known[name], panel if told else SHARED)

    def made(self, context: typer.Context, values: dict[str, Any]) -> Settings:
        """Take the values of the options out of `values`, and add them to the settings."""
        settings = settings_of(context)
        settings.update({name: values.pop(name) for name in self.taken})
        return settings


def _declared(kind: type[Struct]) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each field that declares an option."""
    for field in structs.fields(kind):
        if len(get_args(field.type)) == 2 and get_origin(field.type) is Annotated:
            default = None if field.default is NODEFAULT else field.default
            if field.required:
                default = inspect.Parameter.empty
            own = inspect.Parameter.KEYWORD_ONLY
            yield inspect.Parameter(field.name, own, default=default, annotation=field.type)


def _panel(parameter: inspect.Parameter) -> str | None:
    return get_args(parameter.annotation)[1].rich_help_panel


def _in_panel(parameter: inspect.Parameter, panel: str | None) -> inspect.Parameter:
    """Return a parameter whose option the help shows in a panel."""
    kind, declared = get_args(parameter.annotation)
    declared = copy.copy(declared)
    declared.rich_help_panel = panel
    return parameter.replace(annotation=Annotated[kind, declared])


class _Fields(Struct, frozen=True):
    """A parameter `name` of a command that gets the given `options` as a dict."""

    name: str
    options: Mapping[str, OptionField]
    told: bool

    @property
    def is_further(self) -> bool:
        """Whether only `--help-all` shows some of the options."""
        return any(field.option.further for field in self.options.values())

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Yield a parameter for each option."""
        for name, field in self.options.items():
            declared = option_of(field, told=self.told, names=COMPLETED.get(name))
            yield inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=self._default(field),
                annotation=Annotated[self._parsed(field), declared],
            )

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
        kind = field.parsed
        if kind is bool and not field.both_ways:
            return False
        if not self.told or get_origin(kind) is list:
            return inspect.Parameter.empty if self.told and field.required else None
        return inspect.Parameter.empty if field.required else field.default

    def _parsed(self, field: OptionField) -> Any:
        """Return the type of an option's values on the command line."""
        kind = field.parsed
        has_value = (kind is bool and not field.both_ways) or get_origin(kind) is list
        has_value |= self.told and (field.required or field.default is not None)
        return kind if has_value else kind | None


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a command of a plugin with options for its `OptionsOf`, if any."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    told = [each for parameter in parameters for each in get_args(parameter.annotation)]
    has_some = any(isinstance(each, OptionsOf) for each in told)
    return command_options()(function) if has_some else function


def _group_of(
    parameter: inspect.Parameter, shared: tuple[str, ...], explained: bool
) -> _Group | _Shared | _Fields | None:
    """Return the group of a parameter; None for a single option or argument."""
    kind: object = parameter.annotation
    for told in get_args(kind):
        if isinstance(told, OptionsOf):
            return _Fields(parameter.name, told.options, told.told)
    if kind is Settings:
        return _Shared(parameter.name, shared, explained)
    if not isinstance(kind, StructMeta):
        return None
    return _Group(parameter.name, cast("type[Struct]", kind))
