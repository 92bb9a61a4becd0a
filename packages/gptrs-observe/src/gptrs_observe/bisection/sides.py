"""Ways of running a program: a backend, with the optimizer or without, here or elsewhere."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gptrs.backend.contract import Backend, Executable, InputRole
from gptrs.capture.backend_calls import to_device, to_host
from gptrs.capture.fallback.parts_executable import compiled_in_parts
from gptrs.capture.optimization import optimize
from gptrs.checkpoint.formats.tensor_archive import open_archive, write_archive
from gptrs.errors import BackendError, GptrsError, UsageError
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
_LASTING: Final = (InputRole.PARAMETER, InputRole.CONSTANT, InputRole.STREAMED)
"""Roles of inputs that are the same buffer in every run of an executable."""
_NO_ROLES: Final[Mapping[str, InputRole]] = {}


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
            without.append(value)
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
    made = get_backend(backend, threads)
    for name in without:
        _require_pass(name, made)
    return Here(text, made, optimizer, frozenset(without))


def _require_pass(name: str, backend: Backend) -> None:
    """UsageError unless it is the name of a pass, also of the backend, or a kind of composites."""
    # Constant folding is a pass only with an evaluator.
    passes = (*known_passes(lambda _: []), *backend.legalize(), *backend.fuse())
    names = [each.name for each in passes]
    # Kinds of composites have a version; those of functionals of users are not known here.
    if KIND.fullmatch(name) is None and name not in names:
        guess = did_you_mean(name, names)
        raise UsageError(f"there is no pass {quoted(name)}", hint=f"{guess}{', '.join(names)}")


class Here(Struct, frozen=True):
    """A backend of this process. Programs are compiled for the occasion, past the caches of gptrs.

    Without the optimizer, composites and calls are inlined and the backend replaces ops that it
    lacks; nothing is fused. `without` names passes that are left out, and kinds of composites that
    are not claimed. Each program is called so many times as `calls` says; the results of the last
    call are returned.
    """

    name: str
    backend: Backend
    optimizer: bool = True
    without: frozenset[str] = frozenset()
    calls: int = 1
    _recent: MemoryCache[str, Executable] = field(
        default_factory=lambda: MemoryCache[str, Executable](_KEPT)
    )
    """Programs by their text: layers of a model are the same program."""

    def run(
        self,
        program: Program,
        arrays: Mapping[str, np.ndarray],
        roles: Mapping[str, InputRole] = _NO_ROLES,
    ) -> list[np.ndarray]:
        """Return the results for arrays by parameter name; SideError for what goes wrong.

        Inputs without a role are arguments; none of them may be changed, unless it is donated.
        """
        try:
            executable = self._executable(program, roles)
            lasting = {
                name: to_device(self.backend, arrays[name])
                for name in program.inputs
                if roles.get(name) in _LASTING
            }
            results: list[np.ndarray] = []
            for _ in range(self.calls):
                # Copies: backends whose buffers are arrays write into donated ones.
                given = {name: np.array(arrays[name]) for name in program.inputs.keys() - lasting}
                buffers = lasting | {
                    name: to_device(self.backend, array) for name, array in given.items()
                }
                made = executable.run([buffers[name] for name in program.inputs])
                results = [to_host(self.backend, result) for result in made]
                _require_unchanged(given, arrays, roles)
            return results
        except GptrsError as error:
            raise SideError(f"{type(error).__name__}: {error}") from error

    def _executable(self, program: Program, roles: Mapping[str, InputRole]) -> Executable:
        # Layers of a model are the same program, but with other weights; and a program that is
        # called for the first time has never run before.
        if self.calls > 1 or any(role in _LASTING for role in roles.values()):
            return self._compiled(program, roles)
        donated = sorted(name for name in program.inputs if name in roles)
        key = f"{donated}\n{print_program(program)}"
        return self._recent.find_or_make(key, lambda _: self._compiled(program, roles)).value

    def leaving_out(self, name: str | None) -> Here:
        """Return the same side without a pass, or, for None, without the optimizer."""
        if name is None:
            name = f"{self.name}, optimizer off"
            return Here(name, self.backend, optimizer=False, calls=self.calls)
        without = self.without | {name}
        return Here(f"{self.name}, without {name}", self.backend, without=without, calls=self.calls)

    def calling(self, calls: int) -> Here:
        """Return the same side with another number of calls."""
        return replace(self, calls=calls)

    def passes_applied(self, program: Program) -> list[str]:
        """Return the names of the passes that change a program, in order, each once."""
        names: dict[str, None] = {}

        def note(run: PassRun) -> None:
            if run.changed:
                names[run.name] = None

        optimize(program, self.backend, None, False, note, self.without)
        return list(names)

    def _compiled(self, program: Program, roles: Mapping[str, InputRole]) -> Executable:
        made = self._optimized(program)
        # By position: the optimizer keeps inputs, and may rename them.
        given = [roles.get(name, InputRole.ARGUMENT) for name in program.inputs]
        return compiled_in_parts(self.backend, made, given)

    def _optimized(self, program: Program) -> Program:
        if self.optimizer:
            return optimize(program, self.backend, None, False, None, self.without).program
        # Not optional: backends run no calls.
        program = Inlining().apply(program)
        for pass_ in self.backend.legalize():
            program = pass_.apply(program)
        return program


def _require_unchanged(
    given: Mapping[str, np.ndarray],
    arrays: Mapping[str, np.ndarray],
    roles: Mapping[str, InputRole],
) -> None:
    for name, array in given.items():
        if name not in roles and array.tobytes() != arrays[name].tobytes():
            raise BackendError(f"it overwrites its input {quoted(name)}, which is not donated")


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
