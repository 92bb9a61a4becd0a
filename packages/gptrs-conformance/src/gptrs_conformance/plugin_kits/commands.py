"""The kit of commands: help, exit codes, errors in words and as JSON, standard output as data.

The command runs in processes of its own, as users call it. No check uses the backend.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs_conformance.check import CheckFailure
from gptrs_conformance.plugin_kits.subject import KitCheck, absent

_SECONDS = 120.0
_HEAVY = 100
"""Modules of a package that `--help` should not import: NumPy has 150, torch over 1000."""
_OURS = (
    "gptrs",
    "numpy",
    "msgspec",
    "ml_dtypes",
    "typer",
    "click",
    "rich",
    "pygments",
    "encodings",
)
_EXIT_CODES = (1, 2, 3, 4, 5)
_NOISE = {
    "a traceback": re.compile(r"Traceback \(most recent call last\)"),
    "an exception that Python ignored": re.compile(r"^Exception ignored", re.MULTILINE),
    "a warning of Python": re.compile(r"\.py:\d+: \w*Warning"),
    "colours for a terminal": re.compile("\x1b\\["),
    "bytes that are not UTF-8": re.compile("\ufffd"),
    "a line that a terminal writes over": re.compile("\r"),
    "a line of Python's `logging`": re.compile(
        r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]+:", re.MULTILINE
    ),
    "the address of an object": re.compile(r" at 0x[0-9a-f]+>"),
}
"""Output that neither users nor scripts should meet."""
_PYTHON_ERROR = re.compile(r"\[Errno -?\d+\]|\b[A-Z]\w*(?:Error|Exception)\(")
_SURROUNDINGS = (
    {"COLUMNS": "80", "PYTHONHASHSEED": "1", "TZ": "UTC"},
    {"COLUMNS": "132", "PYTHONHASHSEED": "2", "TZ": "UTC-9"},
)
"""Variables that leave the output as it is: the width of the terminal, the order of sets, the time
zone."""
_FOLDER = "größe 50% v1.2"
"""The name of the folder for arguments: commands must take any."""
_IMPORTED = re.compile(r"import time:\s*\d+ \|\s*\d+ \| +([A-Za-z_][\w.]*)")

Words = Sequence[str | os.PathLike[str]]


class Command(Struct, frozen=True, kw_only=True):
    """A command under test, and what its author adds.

    `works` writes files into a folder, if need be, and returns arguments with which the command
    succeeds; `fails` returns arguments with which it ends with an error. `start` is what precedes
    the arguments of Python, by default `-m gptrs_cli NAME`.
    """

    name: str
    works: Callable[[Path], Words] | None = None
    fails: Callable[[Path], Words] | None = None
    start: Words | None = None


def installed_command(name: str) -> Command:
    """Return the command of a plugin."""
    return Command(name=name)


class _Ended(Struct, frozen=True):
    code: int
    out: str
    err: str


def _run(
    subject: Command,
    *words: str | os.PathLike[str],
    flags: Sequence[str] = (),
    surroundings: Mapping[str, str] = _SURROUNDINGS[0],
    cwd: Path | None = None,
) -> _Ended:
    start = subject.start or ["-m", "gptrs_cli", subject.name]
    # The output would otherwise depend on the terminal in which the tests run.
    environment = {**os.environ, **surroundings, "NO_COLOR": "1"}
    # The plugin under test may be importable only because of this process's own path.
    environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    try:
        ended = subprocess.run(
            [sys.executable, *flags, *start, *words],
            capture_output=True,
            env=environment,
            cwd=cwd,
            # A command that reads standard input would wait for the terminal of the tests.
            stdin=subprocess.DEVNULL,
            # A command that hangs must fail, not the whole run of the kit.
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckFailure(f"`{_shown(words)}` takes longer than {_SECONDS:g} s") from error
    out, err = (
        each.decode(errors="replace").replace(os.linesep, "\n")
        for each in (ended.stdout, ended.stderr)
    )
    for noise, pattern in _NOISE.items():
        found = pattern.search(out) or pattern.search(err)
        if found is not None:
            shown = found.string[max(found.start() - 60, 0) :].strip()[-200:]
            raise CheckFailure(f"`{_shown(words)}` writes {noise}: {shown!r}")
    return _Ended(ended.returncode, out, err)


def _shown(words: Sequence[str | os.PathLike[str]]) -> str:
    return " ".join(str(word) for word in words)[:120]


def helps(subject: Command, backend: Backend) -> None:
    """`--help` succeeds, names the command, and says what it does; standard error is empty."""
    ended = _run(subject, "--help")
    if ended.code:
        raise CheckFailure(f"`--help` ends with {ended.code}: {ended.err.strip()[-200:]}")
    if ended.err:
        raise CheckFailure(f"`--help` writes to standard error: {ended.err.strip()[:200]}")
    usage, _, rest = ended.out.strip().partition("\n")
    if "Usage" not in usage:
        raise CheckFailure(f"`--help` does not begin with the usage: {usage[:120]!r}")
    about = rest.strip().splitlines()
    if not about or not about[0].strip().strip("╭─╮│ ") or about[0].strip().startswith("╭"):
        raise CheckFailure("`--help` does not say what the command does: give it a docstring")


def helps_without_heavy_imports(subject: Command, backend: Backend) -> None:
    """`--help` imports no library of 100 modules or more, except NumPy."""
    ended = _run(subject, "--help", flags=["-X", "importtime"])
    names = _IMPORTED.findall(ended.err)
    if not names:
        raise absent("this Python does not say what it imports")
    counts = Counter(name.partition(".")[0] for name in names)
    # By the number of modules, not by time: times depend on the machine and on its caches.
    heavy = [
        f"`{name}` ({count} modules)"
        for name, count in counts.most_common()
        if count >= _HEAVY and name not in sys.stdlib_module_names and not name.startswith(_OURS)
    ]
    if heavy:
        raise CheckFailure(f"`--help` imports {', '.join(heavy)}: import it where it is used")


def refuses_unknown_options(subject: Command, backend: Backend) -> None:
    """An option that it lacks: exit code 2, a line on standard error, no standard output."""
    # With `--help` after it, an option that is taken for an argument goes unnoticed.
    for words in (["--no-such-option-of-the-kit"], ["--no-such-option-of-the-kit", "--help"]):
        ended = _run(subject, *words)
        if ended.code != 2:
            raise CheckFailure(f"an unknown option ends with {ended.code}, expected 2")
        if ended.out:
            raise CheckFailure(f"an unknown option writes to standard output: {ended.out[:120]!r}")
        _require_one_error(ended, "an unknown option")


def _require_one_error(ended: _Ended, what: str) -> None:
    if "this is a bug in gptrs or a plugin" in ended.err:
        raise CheckFailure(f"{what} raises an error of Python: {ended.err.strip()[-200:]}")
    errors = [line for line in ended.err.splitlines() if line.startswith("error:")]
    if [each.strip() for each in errors] == ["error:"]:
        raise CheckFailure(f"{what} does not say what is wrong: {ended.err[:200]!r}")
    words = _PYTHON_ERROR.search(ended.err)
    if words is not None:
        raise CheckFailure(
            f"{what} says `{words[0]}`, which are words of Python: {ended.err[:200]!r}"
        )
    # Two lines are two errors to a reader, none is a silent failure.
    if len(errors) != 1:
        raise CheckFailure(
            f"{what} gives {len(errors)} lines `error: ...`, expected one: {ended.err[:200]!r}"
        )


@contextmanager
def _folder() -> Generator[Path]:
    """A folder for the files of a command, with a name that is not plain.

    The folder that holds it is the current one of the command, and must stay as it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder).resolve() / _FOLDER
        path.mkdir()
        yield path
        left = [each.name for each in path.parent.iterdir() if each != path]
        if left:
            raise CheckFailure(f"it leaves `{left[0]}` in the current folder")


def _relative(words: Words, folder: Path) -> Words:
    """Return the arguments with the paths in `folder` as seen from the folder that holds it."""
    return [
        Path(word).relative_to(folder.parent)
        if isinstance(word, Path) and word.is_relative_to(folder)
        else word
        for word in words
    ]


def _takes_json(subject: Command) -> bool:
    return re.search(r"(?<![\w-])--json(?![\w-])", _run(subject, "--help").out) is not None


def works(subject: Command, backend: Backend) -> None:
    """With the arguments of its author it succeeds, twice, with the same output.

    The second time, paths are relative, and the terminal, the order of sets and the time zone are
    others.
    """
    if subject.works is None:
        raise absent("no arguments are given with which it works")
    printed: list[str] = []
    for surroundings in _SURROUNDINGS:
        # A folder for each: a command may refuse to write where it wrote before.
        with _folder() as folder:
            words = subject.works(folder)
            if printed:
                words = _relative(words, folder)
            ended = _run(subject, *words, surroundings=surroundings, cwd=folder.parent)
            shown = ended.err.strip()[-200:]
            if ended.code:
                raise CheckFailure(f"`{_shown(words)}` ends with {ended.code}: {shown}")
            if re.search(r"^error:", ended.err, re.MULTILINE):
                raise CheckFailure(f"`{_shown(words)}` ends with 0, and an error: {shown}")
            printed.append(ended.out.replace(f"{folder.parent}{os.sep}", ""))
    if printed[0] != printed[1]:
        raise CheckFailure(f"it prints {printed[0]!r:.100}, then {printed[1]!r:.100}")


def works_with_json(subject: Command, backend: Backend) -> None:
    """`--json` gives one JSON value on one line, if the command has the option."""
    if subject.works is None or not _takes_json(subject):
        raise absent("it has no `--json`, or no arguments are given with which it works")
    with _folder() as folder:
        words = subject.works(folder)
        ended = _run(subject, *words, "--json", cwd=folder.parent)
        if ended.code:
            raise CheckFailure(
                f"`{_shown(words)} --json` ends with {ended.code}: {ended.err[-200:]}"
            )
        found = _require_json(ended.out, f"`{_shown(words)} --json`")
        if isinstance(found, str):
            raise CheckFailure(f"`--json` writes a string, {found[:120]!r}: is it JSON twice?")


def _require_json(text: str, what: str) -> object:
    def refuse(word: str) -> object:
        raise ValueError(f"`{word}` is not JSON")

    def fields(pairs: Sequence[tuple[str, object]]) -> object:
        if len(dict(pairs)) < len(pairs):
            raise ValueError(f"a name occurs twice among {[name for name, _ in pairs]}")
        return dict(pairs)

    read = partial(json.loads, parse_constant=refuse, object_pairs_hook=fields)
    lines = text.splitlines()
    try:
        # Lines first: streams of JSON lines are allowed, and then the last one is the result.
        found = [cast("object", read(line)) for line in lines]
    except ValueError:
        try:
            return cast("object", read(text))
        except ValueError as error:
            raise CheckFailure(f"{what} writes no JSON: {text[:120]!r} ({error})") from error
    if not found:
        raise CheckFailure(f"{what} writes nothing to standard output")
    if not text.endswith("\n"):
        raise CheckFailure(f"{what} does not end its line: {text[-120:]!r}")
    return found[-1]


def fails_with_one_line(subject: Command, backend: Backend) -> None:
    """An error has an exit code of gptrs and one line on standard error, no traceback."""
    ended = _failed(subject)
    if ended.code not in _EXIT_CODES:
        raise CheckFailure(f"an error ends with {ended.code}, expected one of {_EXIT_CODES}")
    _require_one_error(ended, "an error")
    if any(line in ended.out for line in ended.err.splitlines() if line.startswith("error:")):
        raise CheckFailure(f"an error is on standard output, too: {ended.out[:120]!r}")


def fails_with_json(subject: Command, backend: Backend) -> None:
    """With `--json`, an error is an object of the schema `gptrs.error/1` on standard output."""
    if not _takes_json(subject):
        raise absent("it has no `--json`")
    ended = _failed(subject, "--json")
    if not ended.code:
        raise CheckFailure("an error with `--json` ends with 0")
    found = _require_json(ended.out, "an error with `--json`")
    fields = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    if fields.get("schema") != "gptrs.error/1":
        raise CheckFailure(
            f"an error with `--json` writes {ended.out[:160]!r}, an object with the schema"
            " `gptrs.error/1` is needed: raise an error of gptrs and let gptrs write it"
        )
    if fields.get("code") == "internal":
        raise CheckFailure(f"an error of Python comes through: {str(fields.get('message'))[:200]}")
    plain = _failed(subject)
    if plain.code != ended.code:
        raise CheckFailure(f"an error ends with {plain.code}, with `--json` with {ended.code}")


def _failed(subject: Command, *more: str) -> _Ended:
    if subject.fails is None:
        raise absent("no arguments are given with which it fails")
    with _folder() as folder:
        words = subject.fails(folder)
        before = set(folder.rglob("*"))
        ended = _run(subject, *words, *more, cwd=folder.parent)
        if not ended.code:
            raise CheckFailure(f"`{_shown(words)}` ends with 0, an error is expected")
        left = sorted(set(folder.rglob("*")) - before)
        if left:
            raise CheckFailure(f"an error leaves `{left[0].name}`: write it whole, or not at all")
        return ended


KIT: Sequence[KitCheck[Command]] = (
    helps,
    helps_without_heavy_imports,
    refuses_unknown_options,
    works,
    works_with_json,
    fails_with_one_line,
    fails_with_json,
)
"""The checks of a command."""
