"""`gptrs compile`: writes a model or a program as a shared library with a C interface."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct, field

from gptrs.errors import UsageError
from gptrs.quoting import counted
from gptrs_cli.inspect.checkpoint import byte_size
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.streams import note, printable
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.forward import command_line_overrides
from gptrs_runtime.libraries.write import compile_library

_NEEDED = ("backend", "threads", "overrides", "weights", "precision")


class LibraryOptions(Struct, frozen=True):
    """The folder of the library, its name in C, fixed sizes, and a wheel."""

    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The folder to write.  [required]"),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Begin the names of C with NAME.  [default: MODEL's]"
        ),
    ] = None
    symbols: Annotated[
        list[str],
        option("--symbol", "Fix a free size: height=224; can be repeated.", metavar="NAME=SIZE"),
    ] = field(default_factory=list[str])
    wheel: Annotated[
        str | None,
        typer.Option(
            "--wheel", metavar="VERSION", help="Write a Python wheel, too; it needs NumPy alone."
        ),
    ] = None
    targets: Annotated[
        list[str],
        option(
            "--target",
            "Compile for this kind of processor, not this one: avx2, neon_dot; can be repeated.",
            metavar="TARGET",
        ),
    ] = field(default_factory=list[str])
    force: Annotated[bool, typer.Option("--force", help="Replace DIR if it holds a library.")] = (
        False
    )


@command_options(*_NEEDED)
def command(
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model folder or file, ORG/NAME of the hub, an ONNX file, or a program (.ptir).",
            show_default=False,
        ),
    ],
    library: LibraryOptions,
    settings: Settings,
) -> None:
    """Write a model as a shared library that runs without Python.

    DIR gets the library, a C header, the weights, a manifest and an example in C. The results are
    those of gptrs, bit for bit.
    """
    folder = library.out
    if folder is None:
        raise UsageError("no folder is named for the library", hint="add `-o DIR`")
    bar = progress_bar("compiling kernels", tells_name=True)
    with command_line_overrides(settings.overrides), bar as progress:
        made = compile_library(
            model_path(source),
            folder,
            name=library.name,
            backend=settings.load.made_backend(),
            precision=settings.load.precision,
            weights=settings.load.weights,
            symbols=tuple(library.symbols),
            wheel=library.wheel,
            targets=tuple(library.targets),
            overrides=tuple(settings.overrides),
            force=library.force,
            progress=progress,
        )
    if settings.json:
        return print_result(made)
    manifest = made.manifest
    sizes = ", ".join(f"{path.name} {byte_size(path.stat().st_size)}" for path in made.files)
    print(printable(f"wrote {folder}: {sizes}"))
    note(
        f"{manifest.kind} of `{manifest.source}`: {counted(manifest.kernels, 'kernel')},"
        f" at most {counted(manifest.threads, 'thread')}, in {made.seconds:.1f} s"
    )
    if manifest.link is not None:
        note(f"no compiler here links it: cd {folder} && CC=YOUR_CROSS_COMPILER {manifest.link}")
        return
    note(f"build its example: cd {folder} && {build_line(manifest.name)}")


def build_line(name: str) -> str:
    """Return the shell command that compiles the example of a library."""
    return f"cc -O2 example.c -L. -l{name} -Wl,-rpath,'$ORIGIN' -o example"
