"""Explain a pass of the optimizer, or the claims of a backend: what is declined, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from gptrs.capture.backend_choice import chosen_backend
from gptrs.capture.optimization import claim_of
from gptrs.errors import UsageError
from gptrs.ir.ops.custom_call import Composite
from gptrs.ir.program import Program
from gptrs.optimizer import recording
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.passes.inlining import Declined, Inlining
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


def explain(program: Program, name: str) -> PassReport:
    """Report on a pass, or on the composites of a functional in `program`: who computes them?

    UsageError for a name that is neither.
    """
    composites = [
        made.op
        for function in program.functions
        for made in function.body.walk()
        if isinstance(made.op, Composite)
    ]
    kinds = {op.kind for op in composites if name in (op.title, op.kind)}
    if kinds:
        return _explain_claims(program, name, kinds)
    try:
        return explain_pass(program, name)
    except UsageError as error:
        if not composites:
            raise
        calls = ", ".join(sorted({op.title for op in composites}))
        raise UsageError(error.message, hint=f"this program calls {calls}; {error.hint}") from None


def _explain_claims(program: Program, name: str, kinds: Collection[str]) -> PassReport:
    """Report which composites of `kinds` the backend claims, and why it declines others."""
    backend = chosen_backend()
    claim = claim_of(backend)
    fired: Counter[str] = Counter()
    declined: Counter[tuple[str, str, str]] = Counter()
    for made in (made for function in program.functions for made in function.body.walk()):
        op = made.op
        if not isinstance(op, Composite) or op.kind not in kinds:
            continue
        types = [value.type for value in made.operands]
        claimed = claim(op, types, [value.type for value in made.results])
        if claimed is None or isinstance(claimed, Declined):
            none = f"`{backend.name}` has no kernel of this kind"
            reason = none if claimed is None else claimed.reason
            declined[op.kind, f"composite of {', '.join(map(str, types))}", reason] += 1
        else:
            fired[op.kind] += 1
    return PassReport(
        f"claims of `{backend.name}` for `{name}`",
        instruction_count(program),
        instruction_count(Inlining(claim).apply(program)),
        {kind: f"a kernel of `{backend.name}` computes it" for kind in sorted(kinds)},
        dict(fired),
        [DeclinedRewrite(*each, times) for each, times in declined.items()],
    )


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
