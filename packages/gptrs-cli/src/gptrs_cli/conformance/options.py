"""The options of `gptrs conformance run`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gptrs.errors import UsageError
from gptrs_cli.options.declare import option
from gptrs_runtime.conformance import conformance_plan

if TYPE_CHECKING:
    from gptrs_conformance.kit import Plan


class LevelChoice(StrEnum):
    """How much of the kit runs."""

    smoke = "smoke"
    core = "core"
    full = "full"


@dataclass
class KitOptions:
    """The part of the kit to run, and how to run it."""

    level: Annotated[
        LevelChoice,
        option(
            "--level",
            "smoke: a case of each op and type; core: all cases, whole graphs, the runtime"
            " contract; full: functionals, tiny models and generated programs too.",
        ),
    ] = LevelChoice.core
    op: Annotated[
        list[str] | None,
        option("--op", "Run this op alone; can be repeated.", metavar="NAME"),
    ] = None
    model: Annotated[
        str | None,
        option(
            "--for",
            "Run what this model needs instead: the ops of its programs on their types and shapes."
            " `demo` is the bundled one.",
            metavar="MODEL",
        ),
    ] = None
    claimed: Annotated[
        bool | None,
        option(
            "--claimed/--all",
            "Judge what the backend claims, or let refusals fail, too."
            "  [default: --all for smoke and --for, else --claimed]",
        ),
    ] = None
    jobs: Annotated[
        int, option("--jobs", "Run in N processes at a time.", metavar="N", min=1, max=256)
    ] = 1
    shard: Annotated[
        str | None,
        option("--shard", "Run part I of N, from 1, such as 2/4.", metavar="I/N"),
    ] = None
    sample: Annotated[
        int | None,
        option("--sample", "Run at most N of all cases, spread over ops and types.", metavar="N"),
    ] = None
    seed: Annotated[int, option("--seed", "Draw the sample by this number.", metavar="N")] = 0
    case_seconds: Annotated[
        float, option("--case-seconds", "Let a case take so long.", metavar="S", min=0.1)
    ] = 600.0
    out: Annotated[
        Path | None,
        option(
            "--out",
            "Keep the report in this file as JSON, every two seconds while it runs.",
            metavar="FILE",
        ),
    ] = None

    def plan(self) -> Plan:
        """Return what is to be run; UsageError for what makes no sense."""
        strict = self.model is not None or self.level is LevelChoice.smoke
        return conformance_plan(
            level=self.level.value,
            ops=tuple(self.op or ()),
            model=self.model,
            sample=self.sample,
            seed=self.seed,
            shard=_shard(self.shard),
            claimed=not strict if self.claimed is None else self.claimed,
        )


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    index, slash, count = text.partition("/")
    if not slash or not (index.isdecimal() and count.isdecimal()):
        raise UsageError(f"`--shard` takes I/N such as 2/4, got `{text}`")
    return int(index), int(count)
