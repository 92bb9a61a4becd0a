"""Declarations of options: metavar, help, and environment variable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import typer

from gptrs_cli.help_pages import FURTHER
from gptrs_cli.options.completion import completes

if TYPE_CHECKING:
    from gptrs_runtime.option_fields import OptionField


def option(
    name: str,
    help: str,
    *,
    metavar: str | None = None,
    variable: str | None = None,
    names: Callable[[], Iterable[str]] | None = None,
    panel: str | None = None,
    **more: Any,
) -> Any:
    """Declare an option, for `Annotated`; `more` is passed to `typer.Option`.

    The environment variable `variable` sets it, too; the help ends with its name. The shell
    completes values to `names`; the help lists the option under `panel`.
    """
    if variable is not None:
        more |= {"envvar": variable, "show_envvar": False}
        help = f"{help}  [env: {variable}]"
    if names is not None:
        more["autocompletion"] = completes(names)
    return typer.Option(name, metavar=metavar, help=help, rich_help_panel=panel, **more)


def option_of(
    field: OptionField, *, told: bool = False, names: Callable[[], Iterable[str]] | None = None
) -> Any:
    """Declare the option or argument for a field on the command line.

    With `told`, the help shows its default, and its bounds are checked. The shell completes values
    to `names`.
    """
    stated = field.option
    help = field.meta.description or ""
    if stated.in_python and stated.variable is not None:
        help = f"{help}  [env: {stated.variable}]"
    if stated.unset is not None:
        help = f"{help}  [default: {stated.unset}]"
    flag = field.flag or ""
    if not flag.startswith("-"):
        return typer.Argument(metavar=flag, help=help)
    return option(
        flag,
        help,
        metavar=stated.metavar,
        variable=None if stated.in_python else stated.variable,
        names=names,
        panel=f"{FURTHER}{stated.panel}" if stated.further else stated.panel,
        show_default=told,
        min=field.meta.ge if told else None,
        max=field.meta.le if told else None,
    )
