"""Explain a pass of the optimizer: what it does to a program, what it declines, and why."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.ir.program import Program
from gptrs.optimizer import recording
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.pipeline import find_pass
from gptrs.optimizer.stage import instruction_count
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True)
class DeclinedRewrite:
    """A rewrite whose pattern fits and that was not applied all the same."""

    rewrite: str
    instruction: str
    """The op and the types of its operands."""
    reason: str
    times: int


@dataclass(frozen=True)
class PassReport:
    """One pass, applied to a program as it is."""

    name: str
    before: int
    """Instructions of the program, those of regions and of all functions included."""
    after: int
    """Instructions that the pass left."""
    equations: dict[str, str]
    """Summaries of the rewrites of the pass, by name; empty for a pass without rewrites."""
    fired: dict[str, int]
    """Applications by rewrite; without those that were never applied."""
    declined: Sequence[DeclinedRewrite]

    def as_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        return {
            "pass": self.name,
            "instructions": {"before": self.before, "after": self.after},
            "fired": self.fired,
            "declined": [
                {
                    "rewrite": each.rewrite,
                    "instruction": each.instruction,
                    "reason": each.reason,
                    "times": each.times,
                }
                for each in self.declined
            ],
        }


def explain_pass(program: Program, name: str) -> PassReport:
    """Apply the pass called `name` to `program`, and report; UsageError for an unknown pass."""
    pass_ = find_pass(name)
    with recording() as journal:
        changed = pass_.apply(program)
    rewrites = pass_.rewrites if isinstance(pass_, RewritePass) else ()
    return PassReport(
        name,
        instruction_count(program),
        instruction_count(changed),
        {rewrite.name: rewrite.equation for rewrite in rewrites},
        dict(journal.fired),
        [
            DeclinedRewrite(refusal.rewrite, refusal.instruction, refusal.reason, times)
            for refusal, times in journal.refused.items()
        ],
    )
