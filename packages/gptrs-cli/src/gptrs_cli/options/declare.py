"""How an option is declared: its metavar, its help, and the environment variable that sets it."""

from __future__ import annotations

from typing import Any

import typer


def option(
    name: str, help: str, *, metavar: str | None = None, variable: str | None = None, **more: Any
) -> Any:
    """Return the declaration of an option for `Annotated`; `more` is passed to `typer.Option`.

    The environment variable `variable` sets it, too, which the end of the help says.
    """
    if variable is not None:
        more |= {"envvar": variable, "show_envvar": False}
        help = f"{help}  [env: {variable}]"
    return typer.Option(name, metavar=metavar, help=help, **more)
