"""Access to the conformance kit, which is the separate package `gptrs-conformance`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct
from typing_extensions import override

from gptrs.backend.contract import Backend
from gptrs.errors import MissingLibraryError
from gptrs.install_hints import install_own
from gptrs.progress import StepProgress
from gptrs_runtime.results import Result

if TYPE_CHECKING:
    from gptrs_conformance.kit import Plan
    from gptrs_conformance.report import Report

_KIT = "gptrs_conformance"
Level = Literal["smoke", "core", "full"]
"""How much of the kit runs; each level includes those before it."""
Status = Literal["pass", "fail", "fallback", "refused"]
"""The outcome of a case, of a check, or of all cases of an op on an element type; `fallback`:
right, but by the backend that it falls back to, see `Backend.falls_back_to`."""
Verdict = Literal["pass", "fail", "refused", "interrupted"]


class ConformanceFailure(Struct, frozen=True):
    """A case or check that failed; `dtype` is empty for a check."""

    name: str
    dtype: str
    case: str
    reason: str

    @override
    def __str__(self) -> str:
        where = " ".join(part for part in (self.name, self.dtype) if part)
        return f"{where} ({self.case}): {self.reason}" if self.case else f"{where}: {self.reason}"


class Conformance(Result, frozen=True, kw_only=True, tag="gptrs.conformance/1"):
    """`gptrs conformance run`."""

    backend: str
    level: Level
    passed: int
    failed: int
    refused: int
    fell_back: int
    """Checks of ops that the backend refuses, and that its fallback computes rightly."""
    seconds: float
    coverage: dict[str, dict[str, Status]]
    """By op and element type: `fail` if a case failed, `refused` if all were, `fallback` if all
    that ran fell back, else `pass`."""
    checks: dict[str, Status]
    failures: list[ConformanceFailure]
    verdict: Verdict
    complete: bool
    """Whether nothing ended the run early."""
    claimed: bool
    """Whether the backend may refuse some; not with `--all` and `--for`."""
    model: str | None
    """The model whose needs were run, if any."""
    sample: int | None
    seed: int
    shard: tuple[int, int]
    derivatives: bool


def run_conformance(
    backend: Backend,
    level: Level = "core",
    *,
    ops: Sequence[str] = (),
    progress: StepProgress | None = None,
) -> Report:
    """Run the kit on `backend`; failures are in the report, never raised.

    See `gptrs_conformance.kit.run_conformance`. UsageError for an op that PTIR does not have,
    MissingLibraryError if the kit is not installed.
    """
    run = cast("Callable[..., Report]", _from_kit("kit", "run_conformance"))
    return run(backend, level, ops=ops, progress=progress)


def run_isolated(
    opened: Callable[[], AbstractContextManager[Backend]],
    plan: Plan,
    *,
    jobs: int = 1,
    seconds: float | None = None,
    progress: StepProgress | None = None,
    keep: Callable[[Report], object] | None = None,
) -> Report:
    """Run a plan in other processes: a backend that ends one is a failure, no more.

    See `gptrs_conformance.isolated.run_isolated`.
    """
    run = cast("Callable[..., Report]", _from_kit("isolated", "run_isolated"))
    limit = {} if seconds is None else {"seconds": seconds}
    return run(opened, plan, jobs=jobs, progress=progress, keep=keep, **limit)


def run_plugin_kit(
    kind: str, name: str, backend: Backend, progress: StepProgress | None = None
) -> Report:
    """Run the kit of a kind of plugins, other than backends, on the installed plugin `name`.

    See `gptrs_conformance.plugin_kits.short.run_plugin_kit`. MissingLibraryError if the kit is not
    installed.
    """
    run = cast("Callable[..., Report]", _from_kit("plugin_kits.short", "run_plugin_kit"))
    return run(kind, name, backend, progress)


def conformance_plan(**choices: object) -> Plan:
    """Return what of the kit is to be run; see `gptrs_conformance.kit.Plan`.

    UsageError for what makes no sense, MissingLibraryError if the kit is not installed.
    """
    return cast("Callable[..., Plan]", _from_kit("kit", "Plan"))(**choices)


def scoreboard(reports: Sequence[Conformance]) -> str:
    """Return a page of HTML that compares backends; see `gptrs_conformance.scoreboard`."""
    return cast("Callable[..., str]", _from_kit("scoreboard"))(reports)


def composite_support(backend: Backend) -> dict[str, dict[str, int]]:
    """Count, by functional, the kit's uses that a kernel of `backend`, its ops, or others compute.

    See `gptrs_conformance.op_support.composite_support`. MissingLibraryError if the kit is not
    installed.
    """
    find = _from_kit("op_support", "composite_support")
    return cast("Callable[[Backend], dict[str, dict[str, int]]]", find)(backend)


def op_support(backend: Backend) -> dict[str, dict[str, str]]:
    """Return which ops a backend claims: "all", "some" or "none", by op and element type.

    Nothing is run. MissingLibraryError if the kit is not installed.
    """
    find = cast("Callable[[Backend], dict[str, dict[str, str]]]", _from_kit("op_support"))
    return find(backend)


def _from_kit(module: str, name: str | None = None) -> object:
    """Import a name of the kit, by default the one named like its module."""
    try:
        return getattr(importlib.import_module(f"{_KIT}.{module}"), name or module)
    except ModuleNotFoundError as error:
        if error.name != _KIT:
            raise
        raise MissingLibraryError(
            "this needs the conformance kit, which is not installed",
            hint=install_own("gptrs-conformance"),
        ) from error
