"""Helpers of the kits: checks by name, one error in words, arrays that are close."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.errors import GptrsError, PluginError, UnsupportedError
from gptrs.ir import dtypes
from gptrs.plugins.descriptions import FormatPlugin
from gptrs.plugins.manager import manager
from gptrs.progress import StepProgress
from gptrs_conformance.check import Check, CheckFailure, place_of
from gptrs_conformance.kit import run_check
from gptrs_conformance.numerics import EXACT, Tolerance, decode
from gptrs_conformance.report import CaseName, Report

Subject = TypeVar("Subject")
Result = TypeVar("Result")
KitCheck = Callable[[Subject, Backend], None]
"""A check of a kit; its name in words is the name of the check."""

CLOSE = Tolerance.close(1e-3, 1e-4)
"""Two ways through a model in f32: other shapes sum in another order."""
_LONGEST_MESSAGE = 2000


def name_of(check: KitCheck[Subject]) -> str:
    """Return the name of a check in words."""
    return check.__name__.replace("_", " ")


def checks_of(subject: Subject, kit: Sequence[KitCheck[Subject]]) -> list[Check]:
    """Return the checks of a kit on `subject`."""
    return [Check(name_of(check), "core", partial(check, subject)) for check in kit]


def run_kit(
    subject: Subject,
    kit: Sequence[KitCheck[Subject]],
    backend: Backend,
    progress: StepProgress | None = None,
) -> Report:
    """Run a kit on `backend`; failures are in the report, never raised."""
    report, started = Report(backend.name, "core"), time.perf_counter()
    checks = checks_of(subject, kit)
    for done, check in enumerate(checks):
        if progress:
            progress(done, len(checks), check.name)
        report.add(CaseName(check.name), run_check(backend, check))
    if progress:
        progress(len(checks), len(checks), "")
    report.seconds, report.complete = time.perf_counter() - started, True
    return report


def absent(what: str) -> UnsupportedError:
    """Return the refusal of a check that needs something the author did not give."""
    return UnsupportedError(what)


def partner_of(
    name: str, point: type[FormatPlugin], other: type[FormatPlugin]
) -> FormatPlugin | None:
    """Return the plugin of the other direction for the files of `name`, from its distribution.

    Files of one suffix from another distribution may be of another format.
    """
    plugins = manager()
    mine = plugins.record(point, name).distribution
    suffixes = set(plugins.find(point, name).suffixes)
    for each in plugins.descriptions(other):
        theirs = plugins.record(other, each.name).distribution
        if theirs == mine and suffixes & set(each.suffixes):
            return each
    return None


def require_error(
    act: Callable[[], object], what: str, kinds: tuple[type[GptrsError], ...] = (GptrsError,)
) -> GptrsError:
    """Return the error of gptrs that `act` raises.

    CheckFailure if it raises none or another one, a PluginError, which blames the plugin itself, or
    an error that is not one line.
    """
    wanted = " or ".join(f"`{kind.__name__}`" for kind in kinds)
    wanted = "an error of gptrs" if kinds == (GptrsError,) else wanted
    try:
        act()
    # A PluginError is an error of gptrs, too, so it comes first: it says that the plugin is broken,
    # which is no answer to a broken file.
    except PluginError as error:
        raise CheckFailure(f"{what} is blamed on the plugin: {error.message}") from error
    except kinds as error:
        require_clear(error, what)
        return error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # code under test may raise anything, SystemExit, too
        shown = f"{type(error).__name__}: {error}"
        raise CheckFailure(
            f"{what} raised {shown:.200}{place_of(error)}; {wanted} is needed"
        ) from error
    raise CheckFailure(f"{what} was accepted; {wanted} is needed")


def tried(act: Callable[[], Result], what: str) -> Result | None:
    """Return the result of `act`, None for a clear error of gptrs; CheckFailure for another one."""
    try:
        return act()
    except PluginError as error:
        raise CheckFailure(f"{what} is blamed on the plugin: {error.message}") from error
    except GptrsError as error:
        require_clear(error, what)
        return None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        shown = f"{type(error).__name__}: {error}"
        raise CheckFailure(
            f"{what} raised {shown:.200}{place_of(error)}; an error of gptrs is needed"
        ) from error


@contextmanager
def undisturbed(what: str) -> Generator[None]:
    """Scope in which the process stays as it is; CheckFailure otherwise.

    Nothing is written to standard output, not by libraries in C either, and the current folder,
    NumPy's random numbers and its handling of errors do not change. They are put back.
    """
    folder, numbers = Path.cwd(), np.random.get_state()
    np.random.random()  # an earlier check may have let the plugin seed it
    try:
        with np.errstate(divide="warn", over="warn", invalid="warn", under="ignore"):
            before = _process_state()
            with _output() as written:
                yield
            after = _process_state()
    finally:
        os.chdir(folder)
        np.random.set_state(numbers)
    if written:
        raise CheckFailure(f"{what} writes to standard output: {''.join(written)!r:.120}")
    changed = [name for name, value in after.items() if value != before[name]]
    if changed:
        raise CheckFailure(f"{what} changes {' and '.join(changed)} of the process")


@contextmanager
def _output() -> Generator[list[str]]:
    """Scope whose standard output, of Python and of libraries in C, is in the list at its end."""
    written: list[str] = []
    sys.stdout.flush()
    with tempfile.TemporaryFile() as file, redirect_stdout(io.StringIO()) as text:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield written
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        written += filter(None, (text.getvalue(), file.read().decode(errors="replace")))


def _process_state() -> dict[str, object]:
    return {
        "the current folder": Path.cwd(),
        "`numpy.random`": str(np.random.get_state(legacy=False)),
        "`numpy.geterr()`": np.geterr(),
    }


def require_clear(error: GptrsError, what: str) -> None:
    """Raise CheckFailure unless the message of an error is one line of words."""
    message = error.message
    if not message.strip():
        raise CheckFailure(f"{what} raised {type(error).__name__} without a message")
    if "\n" in message or len(message) > _LONGEST_MESSAGE:
        shown = f"{len(message)} characters, {message.count(chr(10)) + 1} lines"
        raise CheckFailure(f"{what} raised {type(error).__name__} with a message of {shown}")


def require_close(
    found: np.ndarray, wanted: np.ndarray, what: str, tolerance: Tolerance = CLOSE
) -> None:
    """Raise CheckFailure unless two arrays agree: floats within `tolerance`, others exactly."""
    dtype = dtypes.from_numpy(found.dtype)
    if not dtype.is_float:
        tolerance = EXACT
    expected = decode(wanted) if dtypes.from_numpy(wanted.dtype).is_float else wanted
    problem = tolerance.mismatch(found, expected, dtype)
    if problem:
        raise CheckFailure(f"{what} {problem}")


def require_close_by_name(
    found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], what: str
) -> None:
    """Raise CheckFailure unless the same names have arrays that agree."""
    if list(found) != list(wanted):
        raise CheckFailure(f"{what} gives {list(found)}, expected {list(wanted)}")
    for name, array in found.items():
        require_close(array, wanted[name], f"{what}: `{name}`")
