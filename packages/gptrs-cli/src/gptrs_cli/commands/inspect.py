"""`gptrs inspect`: what a checkpoint holds, as the headers of its files declare it."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gptrs_cli.settings import DebugOption, JsonOption, PluginsOption, settings_of

if TYPE_CHECKING:
    from gptrs_cli.checkpoint_report import CheckpointReport


def inspect(
    context: typer.Context,
    checkpoint: Annotated[
        Path,
        typer.Argument(help="A model directory, or a .safetensors file.", show_default=False),
    ],
    json: JsonOption = False,
    debug: DebugOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Show the tensors of a checkpoint: types, sizes and ids.

    Only the headers of its files are read and checked, never the values.
    """
    from gptrs_cli.checkpoint_report import read_report

    report = read_report(checkpoint)
    if settings_of(context).json:
        print(json_format.dumps(report.as_json(), indent=2))
    else:
        _print_report(report)


def _print_report(report: CheckpointReport) -> None:
    from gptrs_cli.checkpoint_report import byte_size, count
    from gptrs_cli.stderr import printable
    from gptrs_cli.tables import print_table

    mix = ", ".join(f"{dtype} {share:.1%}" for dtype, share in report.dtype_shares().items())
    facts = {
        "checkpoint": str(report.path),
        "kind": f"{report.kind} ({report.support})" if report.kind else "a single file",
        "parameters": f"{count(report.parameters)} in {len(report.tensors)} tensors",
        "size": f"{byte_size(report.nbytes)} of tensors in {len(report.files)} file(s)",
        "dtypes": f"{mix} of the parameters" if mix else "none",
    }
    for name, text in facts.items():
        print(printable(f"{name:<12}{text}"))
    print()
    print_table(["file", "size"], [[name, byte_size(size)] for name, size in report.files.items()])
    print()
    rows = [
        [tensor.name, tensor.type, byte_size(tensor.nbytes), tensor.id or "-"]
        for tensor in report.tensors
    ]
    print_table(["tensor", "type", "size", "id"], rows)
    print("\nThis is what the headers declare; no values were read.")
