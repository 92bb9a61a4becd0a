"""Ways of running a program: a backend, with the optimizer or without, here or elsewhere."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import Struct, field

from gptrs.backend.contract import Backend, Executable, InputRole
from gptrs.capture.backend_calls import to_device, to_host
from gptrs.capture.fallback.parts_executable import compiled_in_parts
from gptrs.capture.optimization import optimize
from gptrs.checkpoint.formats.tensor_archive import open_archive, write_archive
from gptrs.errors import GptrsError, UsageError
from gptrs.ir import print_program
from gptrs.ir.ops.custom_call import KIND
from gptrs.ir.program import Program
from gptrs.memory_cache import MemoryCache
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import PassRun, known_passes
from gptrs.plugins.manager import get_backend
from gptrs.quoting import did_you_mean, quoted

_SETTINGS = ("optimizer", "without", "threads", "python")
_FORM = "write BACKEND, or BACKEND:optimizer=off, :without=PASS, :threads=N or :python=PATH"
_LAST_LINES = 3
_KEPT = 8
"""Compiled programs that a side keeps."""


class SideError(GptrsError):
    """A side cannot run a program; the message is that of its own error."""


class Side(Protocol):
    """A way of running a program."""

    @property
    def name(self) -> str:
        """The text that the user named it by."""
        ...

    def run(self, program: Program, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the results for arrays by parameter name; SideError for what goes wrong."""
        ...


def side(text: str, threads: int | None = None) -> Side:
    """Return the side that a text describes: a backend and, after a colon, its settings.

    `numba:optimizer=off,threads=1` has two settings. `without=NAME` leaves out a pass of the
    optimizer, or the claims on a kind of composites (`softmax.v1`), and can be repeated;
    `python=PATH` runs programs with the gptrs of another environment. UsageError for anything else.
    """
    backend, _, rest = text.partition(":")
    without: list[str] = []
    found: dict[str, str] = {}
    for setting in rest.split(",") if rest else ():
        key, equals, value = setting.partition("=")
        if not equals or key not in _SETTINGS:
            guess = did_you_mean(key, _SETTINGS)
            raise UsageError(f"{quoted(text)} has no setting {quoted(key)}", hint=guess + _FORM)
        if key == "without":
            without.append(_known_pass(value))
        else:
            found[key] = value
    if found.get("optimizer", "on") not in ("on", "off"):
        raise UsageError(f"`optimizer` is on or off, got {quoted(found['optimizer'])}", hint=_FORM)
    optimizer = found.get("optimizer") != "off"
    if "threads" in found:
        if not found["threads"].isdecimal():
            raise UsageError(f"`threads` is a number, got {quoted(found['threads'])}", hint=_FORM)
        threads = int(found["threads"])
    if "python" in found:
        if without or not optimizer:
            raise UsageError(
                f"{quoted(text)}: another Python runs programs as its gptrs does",
                hint="leave out `optimizer` and `without`",
            )
        return OtherPython(text, Path(found["python"]), backend, threads)
    return Here(text, get_backend(backend, threads), optimizer, frozenset(without))


def _known_pass(name: str) -> str:
    # Kinds of composites have a version; those of functionals of users are not known here.
    if KIND.fullmatch(name):
        return name
    names = [each.name for each in known_passes()]
    if name not in names:
        guess = did_you_mean(name, names)
        raise UsageError(f"there is no pass {quoted(name)}", hint=f"{guess}{', '.join(names)}")
    return name


class Here(Struct, frozen=True):
    """A backend of this process. Programs are compiled for the occasion, past the caches of gptrs.

    Without the optimizer, composites and calls are inlined and the backend replaces ops that it
    lacks; nothing is fused. `without` names passes that are left out, and kinds of composites that
    are not claimed.
    """

    name: str
    backend: Backend
    optimizer: bool = True
    without: frozenset[str] = frozenset()
    _recent: MemoryCache[str, Executable] = field(
        default_factory=lambda: MemoryCache[str, Executable](_KEPT)
    )
    """Programs by their text: layers of a model are the same program."""

    def run(self, program: Program, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the results for arrays by parameter name; SideError for what goes wrong."""
        try:
            text = print_program(program)
            executable = self._recent.find_or_make(text, lambda _: self._compiled(program)).value
            buffers = [to_device(self.backend, arrays[name]) for name in program.inputs]
            return [to_host(self.backend, result) for result in executable.run(buffers)]
        except GptrsError as error:
            raise SideError(f"{type(error).__name__}: {error}") from error

    def leaving_out(self, name: str | None) -> Here:
        """Return the same side without a pass, or, for None, without the optimizer."""
        if name is None:
            return Here(f"{self.name}, optimizer off", self.backend, optimizer=False)
        return Here(f"{self.name}, without {name}", self.backend, without=self.without | {name})

    def passes_applied(self, program: Program) -> list[str]:
        """Return the names of the passes that change a program, in order, each once."""
        names: dict[str, None] = {}

        def note(run: PassRun) -> None:
            if run.changed:
                names[run.name] = None

        optimize(program, self.backend, None, False, note, self.without)
        return list(names)

    def _compiled(self, program: Program) -> Executable:
        made = self._optimized(program)
        # All inputs are arguments: as constants they would be folded, and other kernels would run.
        roles = [InputRole.ARGUMENT] * len(made.main.body.params)
        return compiled_in_parts(self.backend, made, roles)

    def _optimized(self, program: Program) -> Program:
        if self.optimizer:
            return optimize(program, self.backend, None, False, None, self.without).program
        # Not optional: backends run no calls.
        program = Inlining().apply(program)
        for pass_ in self.backend.legalize():
            program = pass_.apply(program)
        return program


class OtherPython(Struct, frozen=True):
    """The gptrs of another environment: `PATH -m gptrs_cli run` for each program.

    It may be another version, or the same one in a process that is allowed to crash.
    """

    name: str
    python: Path
    backend: str
    threads: int | None = None

    def run(self, program: Program, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the results for arrays by parameter name; SideError for what goes wrong."""
        with tempfile.TemporaryDirectory(prefix="gptrs-bisect-") as folder:
            text, inputs, out = (Path(folder, name) for name in ("p.ptir", "in.gptrsten", "out"))
            out = out.with_suffix(".gptrsten")
            text.write_text(print_program(program), encoding="utf-8")
            write_archive(inputs, arrays)
            command = [str(self.python), "-m", "gptrs_cli", "run", str(text), "--out", str(out)]
            command += ["--backend", self.backend, *(["--input", str(inputs)] if arrays else [])]
            command += ["--threads", str(self.threads)] if self.threads else []
            try:
                done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            except OSError as error:
                raise UsageError(f"cannot run `{self.python}`: {error.strerror}") from error
            # A crash of native code, which is why another process was asked for.
            if done.returncode < 0:
                raise SideError(f"the process was ended by signal {-done.returncode}")
            if done.returncode:
                said = " ".join(done.stderr.splitlines()[-_LAST_LINES:])
                raise SideError(said or f"the process ended with {done.returncode}")
            return _results(out, len(program.main.body.results))


def _results(path: Path, count: int) -> list[np.ndarray]:
    archive = open_archive(path)
    try:
        # Copies: the folder with the mapped file is removed right after.
        return [np.array(archive.read(f"result{index}")) for index in range(count)]
    finally:
        archive.close()


def recorded(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the values that `gptrs replay --record` wrote; UsageError if one is missing."""
    archive = open_archive(path)
    try:
        missing = [name for name in names if name not in archive.names()]
        if missing:
            raise UsageError(
                f"{quoted(str(path), 200)} has no value {quoted(missing[0])} of the program",
                hint="`gptrs replay PROGRAM --record FILE` writes one",
            )
        # Copies, since the file is closed below.
        return {name: np.array(archive.read(name)) for name in names}
    finally:
        archive.close()
