"""`gptrs inspect`: what a checkpoint holds, or what a program is and asks for."""

from __future__ import annotations

import json as json_format
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gptrs_cli.options.settings import DebugOption, JsonOption, PluginsOption, settings_of

if TYPE_CHECKING:
    from gptrs_cli.inspect.checkpoint import CheckpointReport


class ProgramForm(StrEnum):
    """The forms in which a program can be printed."""

    TEXT = "text"
    JSON = "json"


def inspect(
    context: typer.Context,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A model (a directory, a .gptrschk file, ORG/NAME of the hub), a file of tensors"
            " (.safetensors, .npz, .npy, .gptrsten), or a program (.ptir, or as JSON).",
            show_default=False,
        ),
    ],
    form: Annotated[
        ProgramForm | None,
        typer.Option("--print", help="Print the program itself, as text or as JSON, instead."),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw the program in an SVG file.")
    ] = None,
    dot: Annotated[
        Path | None,
        typer.Option("--dot", metavar="FILE", help="Describe that picture for Graphviz."),
    ] = None,
    symbols: Annotated[
        list[str] | None,
        typer.Option(
            "--symbol",
            metavar="N=SIZE",
            help="Take the program with this size of the dim `?N`; can be repeated.",
        ),
    ] = None,
    why: Annotated[
        str | None,
        typer.Option(
            "--why",
            metavar="PASS",
            help="Apply a pass of the optimizer to the program and say what its rewrites do, what"
            " they decline, and why, instead; `--why canonicalization` has most of them.",
        ),
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Show what is in a checkpoint, or verify a program.

    A program is shown with what it asks for. Of a checkpoint, only the headers of its files are
    read and checked, never the values.
    """
    from gptrs.errors import UsageError
    from gptrs.runtime.programs.file import is_program

    as_json = settings_of(context).json
    if form is not None and why is not None:
        raise UsageError("`--print` and `--why` exclude each other", hint="leave out one of them")
    if form is not None and as_json:
        raise UsageError(
            "`--json` and `--print` exclude each other", hint="`--print json` prints the program"
        )
    if is_program(path):
        from gptrs.runtime.programs.sizes import parse_sizes
        from gptrs_cli.inspect.program import Request, inspect_program

        printed = None if form is None else form.value
        sizes = parse_sizes(symbols or ())
        inspect_program(path, Request(printed, svg, dot, sizes, as_json, why))
        return
    if any(option is not None for option in (form, svg, dot, symbols, why)):
        raise UsageError(
            "`--print`, `--svg`, `--dot`, `--symbol` and `--why` are for programs,"
            f" `{path}` is none",
            hint="a program begins with its version, `ptir.v0.5`, or with `{` in JSON",
        )
    from gptrs_cli.inspect.checkpoint import read_report

    report = read_report(path)
    if as_json:
        print(json_format.dumps(report.as_json(), indent=2))
    else:
        _print_report(report)


def _print_report(report: CheckpointReport) -> None:
    from gptrs_cli.inspect.checkpoint import byte_size, count
    from gptrs_cli.terminal.stderr import printable
    from gptrs_cli.terminal.tables import print_table

    mix = ", ".join(f"{dtype} {share:.1%}" for dtype, share in report.dtype_shares().items())
    facts = {
        "checkpoint": str(report.path),
        "kind": f"{report.kind} ({report.support})" if report.kind else "a file of tensors",
        "parameters": f"{count(report.parameters)} in {len(report.tensors)} tensors",
        "size": f"{byte_size(report.nbytes)} of tensors in {len(report.files)} file(s)",
        "dtypes": f"{mix} of the parameters" if mix else "none",
    }
    if report.load:
        read, mapped = byte_size(report.load.read_bytes), byte_size(report.load.mapped_bytes)
        facts["a load"] = f"reads {read}, maps {mapped}, which are read as they are first used"
    for name, text in facts.items():
        print(printable(f"{name:<12}{text}"))
    print()
    print_table(["file", "size"], [[name, byte_size(size)] for name, size in report.files.items()])
    print()
    rows = [
        [tensor.name, tensor.type, byte_size(tensor.nbytes), tensor.id] for tensor in report.tensors
    ]
    print_table(["tensor", "type", "size", "id"], rows)
    print("\nThis is what the headers declare; no values were read.")
