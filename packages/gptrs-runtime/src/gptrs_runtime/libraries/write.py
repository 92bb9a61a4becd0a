"""Writes a folder with a shared library, its header, its weights, an example, and a wheel."""

from __future__ import annotations

import keyword
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from gptrs import __version__
from gptrs.backend.contract import Backend, OutgoingLibrary, WrittenLibrary
from gptrs.backend.settings import Precision
from gptrs.errors import GptrsError, UnsupportedError, UsageError
from gptrs.plugins.descriptions import BackendPlugin
from gptrs.plugins.exporters import importer_of
from gptrs.plugins.manager import get_backend, manager
from gptrs.progress import StepProgress
from gptrs.quoting import quoted
from gptrs_runtime.converting.atomic_folder import atomic_folder
from gptrs_runtime.forward import command_line_overrides
from gptrs_runtime.imported.batch import named_sizes
from gptrs_runtime.imported.scores import load_import
from gptrs_runtime.libraries.outgoing import (
    library_of_computation,
    library_of_program,
    library_of_step,
)
from gptrs_runtime.libraries.target_process import (
    PartRequest,
    Teller,
    WrittenPart,
    read_request,
    written_part,
)
from gptrs_runtime.libraries.wheel import write_wheel
from gptrs_runtime.load import load
from gptrs_runtime.load_options import LoadOptions
from gptrs_runtime.outgoing_model import import_capture, model_capture
from gptrs_runtime.programs import is_program, read_program, with_sizes
from gptrs_runtime.results import Result

MANIFEST: Final = "manifest.json"
EXAMPLE: Final = "example.c"
_IDENTIFIER: Final = re.compile(r"[a-z][a-z0-9_]{0,40}")
_WORDS_OF_C: Final = frozenset({
    *("auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else"),
    *("enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "register"),
    *("restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef"),
    *("union", "unsigned", "void", "volatile", "while", "main"),
})  # fmt: skip
_TAKEN: Final = frozenset({
    # Headers and libraries of C: a linker that looks into the folder first would take ours.
    *("aio", "assert", "complex", "ctype", "dirent", "dlfcn", "errno", "fcntl", "features", "fenv"),
    *("iconv", "inttypes", "limits", "locale", "malloc", "math", "memory", "poll", "pthread"),
    *("pwd", "regex", "sched", "semaphore", "setjmp", "signal", "spawn", "stdarg", "stdbool"),
    *("stddef", "stdint", "stdio", "stdlib", "string", "strings", "syslog", "termios", "threads"),
    *("time", "unistd", "utime", "wchar", "wctype", "c", "dl", "gcc_s", "m", "rt", "z"),
    *("mq", "sem"),  # mq_open and others are functions of POSIX
    *("f", "r", "w", "x"),  # F_OK and others are macros of it
    *("numpy", "weights"),  # what the module imports; a file beside the folder of the sources
})  # fmt: skip


class Manifest(
    WrittenLibrary, frozen=True, kw_only=True, tag_field="schema", tag="gptrs.library/1"
):
    """The file `manifest.json` in the folder of a library."""

    name: str
    """The start of the names of C."""
    kind: str
    """`step` for a language model, `computation` for another model, or `program`."""
    source: str
    """The name of the file or folder that was compiled."""
    gptrs: str
    """The version that wrote it."""
    backend: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class CompiledLibrary(Result, frozen=True, tag="gptrs.compile/1", rename={"nbytes": "bytes"}):
    """`gptrs compile`."""

    manifest: Manifest
    """The content of `manifest.json`."""
    files: tuple[Path, ...]
    nbytes: int
    seconds: float


def compile_library(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    backend: str | Backend | None = None,
    threads: int | None = None,
    precision: Precision | None = None,
    weights: str | None = None,
    symbols: tuple[str, ...] = (),
    wheel: str | None = None,
    targets: Sequence[str] = (),
    overrides: Sequence[str] = (),
    force: bool = False,
    progress: StepProgress | None = None,
) -> CompiledLibrary:
    """Write a model, an imported graph or a program as a shared library into a new `folder`.

    Language models become steps over a cache of texts, other models and graphs one call; see
    docs/libraries.md. `name` begins the names of C, by default that of the source. `backend`,
    `threads`, `precision` and `weights` are as for `load_model`: the library computes the same
    bits. `symbols` fixes free sizes, as in `("batch=1",)`. `wheel` is the version of a Python wheel
    that is written, too; it needs NumPy alone. `force` replaces a folder that was written before.

    `targets` are kinds of processors, as in `Backend.library_targets`, that the library is for
    instead of this machine; of several it takes the best that runs. Each is compiled by a process
    of its own, with `overrides` as on the command line. Where no C compiler for the machine is at
    hand, objects are written, and a script that links them.

    UsageError for a folder that exists or a name that C does not take; UnsupportedError for a
    backend that writes no libraries, or a model that one cannot serve; ExecutionError if the C
    compiler is missing or fails; CheckpointError if `folder` cannot be written. Nothing is left at
    `folder` then.
    """
    started = time.perf_counter()
    target = Path(folder)
    _require_free(target, force)
    options = LoadOptions(backend=backend, threads=threads, precision=precision, weights=weights)
    if wheel is not None:
        require_version(wheel)
    sizes = named_sizes(symbols)
    made = None if targets else _outgoing(source, name, options, sizes)
    with atomic_folder(target, replace=force) as staged:
        if made is None:
            request = PartRequest(
                source=os.fspath(source), folder=str(staged.path), name=_own_name(source, name),
                backend="", threads=0, precision=precision, weights=weights, symbols=symbols,
                overrides=tuple(overrides),
            )  # fmt: skip
            engine = options.made_backend()
            facts = _joined(request, targets, engine, progress)
        else:
            outgoing, kind, engine = made
            written = engine.write_library(outgoing, staged.path, progress)
            facts = _facts(outgoing, kind, written)
        manifest = _manifest(facts, os.fspath(source), engine)
        _write_texts(staged.path, manifest, facts)
        if wheel is not None:
            _write_wheel(staged.path, manifest, facts, wheel)
        names = sorted(os.listdir(staged.path))
    paths = tuple(target / each for each in names)
    nbytes = sum(path.stat().st_size for path in paths)
    return CompiledLibrary(manifest, paths, nbytes, round(time.perf_counter() - started, 3))


def _write_texts(folder: Path, manifest: Manifest, facts: WrittenPart) -> None:
    """Write the manifest and the example in C."""
    (folder / MANIFEST).write_bytes(
        msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    )
    example = "texts.c" if facts.is_step else "call.c"
    text = files("gptrs_runtime.libraries").joinpath(example).read_text(encoding="utf-8")
    text = text.replace("@NAME@", facts.name).replace("@PREFIX@", facts.name.upper())
    (folder / EXAMPLE).write_text(text, encoding="utf-8")


def _write_wheel(folder: Path, manifest: Manifest, facts: WrittenPart, version: str) -> None:
    if facts.written.link is not None:
        raise UnsupportedError(
            f"a wheel needs the library, and no compiler here makes `{manifest.library}`",
            hint="leave out `--wheel`, or install the compiler that `CC` names",
        )
    contents = (MANIFEST, manifest.library, manifest.header, manifest.weights)
    module = "texts.py.txt" if facts.is_step else "call.py.txt"
    write_wheel(folder, manifest.name, version, contents, module, __version__)


def _facts(outgoing: OutgoingLibrary, kind: str, written: WrittenLibrary) -> WrittenPart:
    return WrittenPart(
        name=outgoing.name,
        kind=kind,
        is_step=outgoing.texts is not None,
        inputs=outgoing.inputs,
        outputs=outgoing.outputs,
        written=written,
    )


def _own_name(source: str | os.PathLike[str], name: str | None) -> str:
    """Return the name for C, without loading a model."""
    return _identifier(name, Path(os.path.normpath(source)).stem)


def _joined(
    request: PartRequest, targets: Sequence[str], engine: Backend, progress: StepProgress | None
) -> WrittenPart:
    """Return a library whose parts, for a target each, are written by processes of their own."""
    _require_writer(engine)
    if not engine.library_targets:
        raise UnsupportedError(f"backend `{engine.name}` writes libraries only for this machine")
    folder, name = Path(request.folder), request.name
    written: list[WrittenPart] = []
    with tempfile.TemporaryDirectory(prefix="gptrs-library-", dir=folder.parent) as parts:
        for each, variables in engine.target_environments(targets).items():
            own = name if len(set(targets)) == 1 else f"{name}_{each}"
            asked = replace(
                request, name=own, folder=os.path.join(parts, own), backend=engine.name,
                threads=engine.threads,
            )  # fmt: skip
            written.append(written_part(asked, dict(variables), each, progress))
        libraries = [part.written for part in written]
        joined = engine.join_library(name, folder, Path(parts), libraries)
    return replace(written[0], name=name, written=joined)


def serve_part() -> None:
    """Write the part that another process asks for; see `target_process`."""
    teller, request = Teller(), read_request()
    options = LoadOptions(
        backend=request.backend, threads=request.threads, precision=request.precision,
        weights=request.weights,
    )  # fmt: skip
    try:
        with command_line_overrides(request.overrides):
            sizes = named_sizes(request.symbols)
            outgoing, kind, engine = _outgoing(request.source, request.name, options, sizes)
            written = engine.write_part(outgoing, Path(request.folder), teller.step)
    except GptrsError as error:
        teller.error(error)
    else:
        teller.part(_facts(outgoing, kind, written))


def _require_free(folder: Path, force: bool) -> None:
    """Raise UsageError for a folder with anything in it, unless it is a library to replace."""
    shown = quoted(str(folder), 200)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{shown} is a file, a folder is to be written")
    names = os.listdir(folder) if folder.exists() else []
    if names and MANIFEST not in names:
        raise UsageError(
            f"the folder {shown} holds no library that could be replaced: it has no `{MANIFEST}`",
            hint="choose another folder, or remove it yourself",
        )
    if names and not force:
        raise UsageError(f"the folder {shown} is not empty", hint="`--force` replaces a library")


def require_version(version: str) -> None:
    """Raise UsageError for a text that is not a version of a wheel."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?", version):
        return
    raise UsageError(
        f"a wheel has no version {quoted(version)}", hint="write one as in `--wheel 1.0`"
    )


def _outgoing(
    source: str | os.PathLike[str],
    name: str | None,
    options: LoadOptions,
    sizes: dict[str, int],
) -> tuple[OutgoingLibrary, str, Backend]:
    """Return the library of a source, its kind in words, and its backend."""
    importer = importer_of(source)
    if importer is None and not is_program(source):
        model = load(os.fspath(source), options)
        _require_writer(model.backend)
        own = _identifier(name, model.name)
        if "causal_lm" in model.capabilities:
            if sizes:
                raise UsageError(
                    "a language model has no sizes to choose", hint="leave out `--symbol`"
                )
            return library_of_step(model, own), "step", model.backend
        captured = model_capture(model, sizes)
        return library_of_computation(captured, model.backend, own), "computation", model.backend
    if options.weights is not None:
        raise UsageError("`--weights` quantizes models, not graphs or programs")
    engine = options.made_backend().with_precision(options.precision)
    _require_writer(engine)
    own = _identifier(name, Path(source).stem)
    if importer is not None:
        captured = import_capture(
            load_import(Path(source), importer, LoadOptions(backend=engine)), sizes
        )
        return library_of_computation(captured, engine, own), "computation", engine
    program = read_program(source)
    if sizes:
        program = with_sizes(program, _numbered(sizes))
    return library_of_program(program, engine, own), "program", engine


def _numbered(sizes: dict[str, int]) -> dict[int, int]:
    found = {name.removeprefix("?"): size for name, size in sizes.items()}
    for name in found:
        if not name.isdigit():
            raise UsageError(
                f"the program has no symbol {quoted(name)}", hint="symbols are numbers"
            )
    return {int(name): size for name, size in found.items()}


def _require_writer(backend: Backend) -> None:
    if not backend.writes_libraries:
        names = [plugin.name for plugin in manager().descriptions(BackendPlugin)]
        able = [name for name in names if get_backend(name).writes_libraries]
        raise UnsupportedError(
            f"backend `{backend.name}` writes no libraries",
            hint=f"take --backend {able[0]}" if able else "install one that does",
        )


def _identifier(name: str | None, stem: str) -> str:
    """Return the name for C; UsageError for a given one that is not an identifier."""
    if name is None:
        words = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")[:40]
        name = words if words[:1].isalpha() else f"model_{words}".rstrip("_")
        return f"{name}_model" if _is_taken(name) else name
    if _is_taken(name) or not _IDENTIFIER.fullmatch(name):
        why = ": it is a name of C, Python or the system" if _is_taken(name) else ""
        raise UsageError(
            f"{quoted(name)} cannot begin the names of a library{why}",
            hint="use lower-case letters, digits and `_`, at most 41, as in `--name my_model`",
        )
    return name


def _is_taken(name: str) -> bool:
    # A wheel is a module of this name.
    of_python = keyword.iskeyword(name) or name in sys.stdlib_module_names
    return of_python or name in _WORDS_OF_C or name in _TAKEN


def _manifest(facts: WrittenPart, source: str, backend: Backend) -> Manifest:
    written = facts.written
    return Manifest(
        **msgspec.structs.asdict(written),
        name=facts.name,
        kind=facts.kind,
        source=os.path.basename(os.path.normpath(source)),
        gptrs=__version__,
        backend=backend.name,
        inputs=("tokens",) if facts.is_step else facts.inputs,
        outputs=("logits",) if facts.is_step else facts.outputs,
    )
