"""Options take plain values without typer, and get what typer makes of them."""

from __future__ import annotations

import copy
import enum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from gptrs_cli.plain_commands import Application


class Choice(enum.StrEnum):
    one = "one"


def command(application: type[typer.Typer]):
    app = application(add_completion=False)

    @app.command()
    def run(
        name: Annotated[str | None, typer.Option()] = None,
        count: Annotated[int | None, typer.Option()] = None,
        some: Annotated[int, typer.Option(min=1)] = 2,
        scale: Annotated[float, typer.Option()] = 0.5,
        path: Annotated[Path | None, typer.Option()] = None,
        folder: Annotated[Path | None, typer.Option(exists=True, file_okay=False)] = None,
        words: Annotated[list[str] | None, typer.Option()] = None,
        choice: Annotated[Choice | None, typer.Option()] = None,
        files: Annotated[list[Path] | None, typer.Option()] = None,
        numbers: Annotated[list[int] | None, typer.Option(max=9)] = None,
        usual: Annotated[Choice, typer.Option()] = Choice.one,
        flag: Annotated[bool, typer.Option()] = False,
        program: Annotated[Path | None, typer.Argument()] = None,
    ) -> None: ...

    return typer.main.get_command(app)


def outcome(of: Any, arguments: list[str]) -> object:
    try:
        with of.make_context("run", list(arguments)) as context:
            return copy.copy(context.params)
    except typer.BadParameter as error:
        return error.format_message()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--name", "x", "--count", "12", "--scale", "-0.25", "--path", "/", "--flag"],
        ["--name", "", "--count", "-3", "--scale", "7", "--path", "missing", "a"],
        ["--count", "1e3"],
        ["--count", "12\n"],
        ["--count", "123456789012345678901234567890"],
        ["--count", "\u0663"],
        ["--scale", "nan"],
        ["--scale", "1e-3"],
        ["--scale", "much"],
        ["--some", "0"],
        ["--some", "3"],
        ["--folder", "missing"],
        ["--folder", "/"],
        ["--words", "a", "--words", "b"],
        ["--files", "missing", "--files", "/"],
        ["--numbers", "3", "--numbers", "-4"],
        ["--numbers", "3", "--numbers", "10"],
        ["--numbers", "3", "--numbers", "x"],
        ["--usual", "one"],
        ["--usual", "two"],
        ["--choice", "one"],
        ["--choice", "two"],
        ["a", "--path", "."],
    ],
)
def test_values_are_those_of_typer(arguments):
    wanted = outcome(command(typer.Typer), arguments)
    assert repr(outcome(command(Application), arguments)) == repr(wanted)
