"""`gptrs new KIND NAME`: a package with a plugin that works, ready to be changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from gptrs.api import UsageError
from gptrs.install_hints import find_links
from gptrs.plugins.manager import manager
from gptrs_new.package import Kind, Names, write_package

_TRY = {
    Kind.BACKEND: 'gptrs generate "def read" --backend {name}',
    Kind.MODEL: "gptrs list models",
    Kind.FUNCTIONAL: 'gptrs generate "def read" --override {functional}={name}',
    Kind.COMMAND: "gptrs {name} --help",
    Kind.IMPORTER: (
        "echo '[[[1, 0], [0, -1]], [[2, 3]]]' > model{suffix}"
        " && gptrs run model{suffix} --random-seed 1 --symbol rows=2"
    ),
    Kind.EXPORTER: (
        "printf 'ptir.v0.5\\nfunc @main(%%x: f32[2]) -> f32[2] {{\\n  %%0 = tanh %%x : f32[2]\\n"
        "  return %%0\\n}}\\n' > x.ptir && gptrs convert x.ptir model{suffix}"
    ),
    Kind.REFERENCE: "gptrs validate --reference {name} --max-tokens 4",
    Kind.TRACE_SINK: 'gptrs generate "def read" --trace-sink {name}',
}


def new(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help=f"{', '.join(Kind)}.")],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The name that users type; FUNCTIONAL.NAME for a functional."
        ),
    ],
    into: Annotated[
        Path, typer.Option("--into", metavar="DIR", help="Make the package in this folder.")
    ] = Path(),
    with_composites: Annotated[
        bool,
        typer.Option(
            "--with-composites",
            help="A backend that also computes functionals whole: softmax, norms, attention,"
            " convolution, the steps of language models.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Make a package with a plugin of your own.

    It has metadata, tests, a CI file, and working code to start from.
    """
    names = Names.of(kind, name, with_composites)
    _require_free(names)
    files = write_package(names, into)
    folder = into / names.distribution
    steps = [
        f"cd {folder}",
        f'python -m pip install {find_links()}-e ".[test]"',
        "pytest",
        f"gptrs plugins check {names.plugin}",
        *([f"gptrs list ops --backend {names.plugin}"] if with_composites else []),
        _TRY[kind].format(name=names.name, suffix=names.suffix, functional=names.functional),
    ]
    if as_json:
        listed = [str(path.relative_to(folder)) for path in files]
        made = {"schema": "gptrs.new/1", "distribution": names.distribution, "module": names.module}
        print(json.dumps({**made, "folder": str(folder), "files": listed, "next": steps}))
        return
    for path in files:
        print(path)
    print("\nNext steps:", *(f"  {step}" for step in steps), sep="\n", file=sys.stderr)


def _require_free(names: Names) -> None:
    """Raise UsageError if an installed plugin has the name, which would be contested."""
    for record in manager().installed():
        if (record.kind, record.name) == (names.kind.extension_point, names.plugin):
            raise UsageError(
                f"`{record.distribution}` has a {names.kind} called `{names.plugin}`",
                hint="take another name",
            )
