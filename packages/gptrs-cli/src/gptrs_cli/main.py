"""The command `gptrs`: the options before its commands, and its exit codes."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Annotated

import typer

from gptrs import __version__
from gptrs.progress import NOTICES
from gptrs_cli.command_group import CommandGroup, command_of, commands_by_group
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, Settings
from gptrs_cli.plain_commands import Application
from gptrs_cli.terminal.failures import report
from gptrs_cli.terminal.interrupts import interrupts_arrive
from gptrs_cli.terminal.streams import drop_lost_notes, make_stdout_reliable, warnings_as_lines

app = Application(
    "Run models and programs on the backends that are installed.",
    CommandGroup,
    epilog="Exit codes: 0 ok, 1 failure, 2 usage, 3 model or file, 4 backend or plugin,"
    " 5 unsupported op or dtype, 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_BEGINNING = """\
gptrs {version}: run models and programs on the backends that are installed.

  gptrs generate "def read"               continue a text with the bundled model
  gptrs generate --model FOLDER "Once"    the same with a model of yours
  gptrs chat smollm2:135m                 fetch a small model and talk with it
  gptrs models list                       the models on this disk
"""
_WIDTH = 80
"""Columns of the first help, as of `--help`."""
_INDENT = 21


def _show_version(value: bool) -> None:
    if value:
        print(f"gptrs {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
@command_options(*MODEL, explained=True)
def root(
    context: typer.Context,
    settings: Settings,
    version: Annotated[
        bool,
        typer.Option(
            "-V", "--version", help="Print the version.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Print a first help if no command is named."""
    if context.invoked_subcommand is None:
        print(_BEGINNING.format(version=__version__))
        for title, names in commands_by_group().items():
            line = f"{title + ':':<{_INDENT}}{' '.join(names)}"
            print(textwrap.fill(line, _WIDTH, subsequent_indent=" " * _INDENT))
        print("\n`gptrs --help` explains them, `gptrs COMMAND --help` one of them.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; errors are reported here."""
    settings = Settings()
    NOTICES.are_shown = False  # a bar or a line of the command says more
    arguments = sys.argv[1:] if arguments is None else arguments
    command = command_of(app, "gptrs")
    if "_GPTRS_COMPLETE" in os.environ:
        command.main(prog_name="gptrs")  # answers the shell and exits
    make_stdout_reliable()
    drop_lost_notes()
    try:
        with warnings_as_lines(), interrupts_arrive():
            try:
                with command.make_context("gptrs", list(arguments), obj=settings) as context:
                    command.invoke(context)
            except typer.Exit as end:  # --help, --version, and commands that set an exit code
                return end.exit_code
            finally:
                sys.stdout.flush()
            return 0
    except SystemExit as end:
        # How typer ends once it has shown or installed the completion of a shell.
        if end.code in (None, 0):
            return 0
        return report(end, as_json="--json" in arguments, debug="--debug" in arguments)
    except (Exception, KeyboardInterrupt) as error:
        # An error may occur before these options are parsed.
        as_json = settings.json or "--json" in arguments
        return report(error, as_json=as_json, debug=settings.debug or "--debug" in arguments)
