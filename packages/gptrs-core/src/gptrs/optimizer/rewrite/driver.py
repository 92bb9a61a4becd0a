"""Applies rewrites to a region until none matches, revisiting only what changed."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Sequence

from gptrs.errors import GptrsError, ProgramError
from gptrs.ir.op import Op
from gptrs.ir.ops.custom_call import Declined
from gptrs.ir.program import Region, Value
from gptrs.optimizer.rewrite.pattern import Emitter, Rewrite, find_match
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Refusal, Rewriter, current_journal

FIRINGS_PER_INSTRUCTION = 32
"""Firings per instruction after which rewrites that undo each other are stopped."""


def rewrite_region(region: Region, rewrites: Sequence[Rewrite]) -> Region:
    """Return `region` with `rewrites` applied until none matches; `region` itself if none did.

    At an instruction, rewrites are tried in the given order. GptrsError if they exceed
    `FIRINGS_PER_INSTRUCTION`.
    """
    driver = _Driver(Rewriter(region), rewrites)
    driver.run(max_firings=FIRINGS_PER_INSTRUCTION * (1 + len(region.instructions)))
    return driver.rewriter.region()


ByRoot = dict[type[Op], list[Rewrite]]


@functools.lru_cache(maxsize=64)
def _table(rewrites: tuple[Rewrite, ...]) -> tuple[ByRoot, int]:
    """Return the rewrites by the root op of their patterns, and the greatest pattern depth."""
    by_root: ByRoot = {}
    for rewrite in rewrites:
        for op in rewrite.pattern.symbol.ops:
            by_root.setdefault(op, []).append(rewrite)
    return by_root, max((rewrite.pattern.depth for rewrite in rewrites), default=0)


class _Driver:
    """The worklist. Operands precede users, so that chains are folded in one sweep."""

    def __init__(self, rewriter: Rewriter, rewrites: Sequence[Rewrite]) -> None:
        self.rewriter = rewriter
        self._journal = current_journal()
        self._by_root, self._depth = _table(tuple(rewrites))
        self._worklist: deque[InstructionNode] = deque()
        self._queued: set[InstructionNode] = set()
        self._enqueue(rewriter)

    def run(self, max_firings: int) -> None:
        """Empty the worklist; GptrsError after `max_firings` rewrites."""
        firings = 0
        while self._worklist:
            node = self._worklist.popleft()
            self._queued.remove(node)
            if node.erased:
                continue
            if self._journal:
                self._journal.steps += 1
            fitting = self._find(node)
            if fitting is None:
                continue
            rewrite, values, emitted = fitting
            firings += 1
            if firings > max_firings:
                raise GptrsError(
                    f"the optimizer did not come to an end, `{rewrite.name}` fired last",
                    hint="rewrites undo each other; `gptrs.optimizer.recording` counts which fired",
                )
            self._apply(rewrite, node, values, emitted)

    def _find(
        self, root: InstructionNode
    ) -> tuple[Rewrite, tuple[Value, ...], list[InstructionNode]] | None:
        """Return the first rewrite that does not decline, its values, and the emitted
        instructions."""
        for rewrite in self._by_root.get(type(root.op), ()):
            match = find_match(rewrite.pattern, root, self.rewriter)
            if match is None:
                continue
            emit = Emitter(self.rewriter, root)
            found = rewrite.replacement(match, emit)
            if not isinstance(found, Declined):
                values = (found,) if isinstance(found, Value) else tuple(found)
                return rewrite, values, emit.emitted
            if emit.emitted:
                raise ProgramError(f"`{rewrite.name}` must decline before it emits instructions")
            if self._journal:
                self._journal.refused[_refusal(rewrite, root, found.reason)] += 1
        return None

    def _apply(
        self,
        rewrite: Rewrite,
        root: InstructionNode,
        values: tuple[Value, ...],
        emitted: list[InstructionNode],
    ) -> None:
        _require_same_types(rewrite, root, values)
        if self._journal:
            self._journal.fired[rewrite.name] += 1
        # Before the replacement: afterwards the old results have no users.
        self._enqueue_users(root)
        for old, new in zip(root.results, values, strict=True):
            self.rewriter.replace(old, new)
        read = (*values, *(operand for node in emitted for operand in node.operands))
        self._erase_or_enqueue([*emitted, *self._definitions(read), root])

    def _enqueue(self, nodes: Iterable[InstructionNode]) -> None:
        for node in nodes:
            if node not in self._queued:
                self._queued.add(node)
                self._worklist.append(node)

    def _enqueue_users(self, root: InstructionNode) -> None:
        """Revisit every instruction from which a pattern can reach `root`."""
        level = [root]
        for _ in range(self._depth - 1):
            results = (result for node in level for result in node.results)
            users = dict.fromkeys(user for value in results for user in self.rewriter.users(value))
            self._enqueue(users)
            level = list(users)

    def _erase_or_enqueue(self, candidates: list[InstructionNode]) -> None:
        """Erase unused `candidates`, and instructions that only they read.

        Revisit the others: each gained or lost a user, which a rewrite may check.
        """
        while candidates:
            node = candidates.pop()
            if node.erased:
                continue
            if any(self.rewriter.used(result) for result in node.results):
                self._enqueue((node,))
                continue
            self.rewriter.erase(node)
            candidates.extend(self._definitions(node.operands))

    def _definitions(self, values: Iterable[Value]) -> Iterable[InstructionNode]:
        nodes = (self.rewriter.definition(value) for value in values)
        return (node for node in nodes if node)


def _refusal(rewrite: Rewrite, node: InstructionNode, reason: str) -> Refusal:
    types = ", ".join(str(operand.type) for operand in node.operands)
    return Refusal(rewrite.name, f"`{node.op.name}` of {types}", reason)


def _require_same_types(rewrite: Rewrite, root: InstructionNode, values: Sequence[Value]) -> None:
    wanted = [result.type for result in root.results]
    found = [value.type for value in values]
    if wanted != found:
        listed = [", ".join(map(str, types)) for types in (wanted, found)]
        raise ProgramError(f"`{rewrite.name}` must give `{listed[0]}`, got `{listed[1]}`")
