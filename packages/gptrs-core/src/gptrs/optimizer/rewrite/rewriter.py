"""Mutable regions: instructions in order, with the definition and uses of each value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from msgspec import Struct, field

from gptrs.errors import ProgramError
from gptrs.ir.op import Op
from gptrs.ir.program import Instruction, Region, Value


class InstructionNode(Struct, eq=False):
    """An instruction with replaceable operands; compared by identity."""

    op: Op
    operands: list[Value]
    results: tuple[Value, ...]
    regions: tuple[Region, ...] = ()
    origin: Instruction | None = None
    """The instruction that this node still equals, None if it is new or an operand was replaced."""
    erased: bool = False
    previous: InstructionNode | None = None
    following: InstructionNode | None = None

    def __repr__(self) -> str:
        return repr(self.freeze())  # its neighbours would show the whole region

    def freeze(self) -> Instruction:
        """Return the node as an instruction: the original if nothing changed."""
        return self.origin or Instruction(self.op, tuple(self.operands), self.results, self.regions)


Use = tuple[InstructionNode | None, int]
"""A use of a value: an operand index of a node; None for the node means the region's return."""


class Rewriter:
    """A mutable region. Every change takes time proportional to the uses it touches.

    Instructions stay in executable order as long as `replace` gets values defined before all uses
    of the old value.
    """

    def __init__(self, region: Region) -> None:
        self._region = region
        self._results = list(region.results)
        self._definitions: dict[Value, InstructionNode] = {}
        # The inner dicts serve as ordered sets, so that runs are deterministic.
        self._uses: dict[Value, dict[Use, None]] = {}
        self._first: InstructionNode | None = None
        self._changed = False
        last: InstructionNode | None = None
        for instruction in region.instructions:
            operands, results = list(instruction.operands), instruction.results
            node = InstructionNode(
                instruction.op, operands, results, instruction.regions, instruction
            )
            self._link(last, node, None)
            last = node
        for position, value in enumerate(self._results):
            self._uses.setdefault(value, {})[None, position] = None

    def __iter__(self) -> Iterator[InstructionNode]:
        """Return the nodes in order.

        The one just yielded may be erased and others inserted before it.
        """
        node = self._first
        while node is not None:
            following = node.following
            yield node
            node = following

    def definition(self, value: Value) -> InstructionNode | None:
        """Return the node that defines `value`, None for a parameter of the region."""
        return self._definitions.get(value)

    def users(self, value: Value) -> list[InstructionNode]:
        """Return the nodes that read `value`, each once.

        The results of the region are not among them.
        """
        return list(dict.fromkeys(node for node, _ in self._uses.get(value, ()) if node))

    def reads(self, value: Value) -> int:
        """Return how often nodes read `value` or the region returns it."""
        return len(self._uses.get(value, ()))

    def used(self, value: Value) -> bool:
        """Return whether a node reads `value` or the region returns it."""
        return self.reads(value) > 0

    def insert(self, op: Op, operands: Sequence[Value], before: InstructionNode) -> InstructionNode:
        """Add an instruction in front of `before`; ProgramError if the operands do not fit."""
        types = op.result_types([operand.type for operand in operands])
        node = InstructionNode(op, list(operands), tuple(Value(type_) for type_ in types))
        self._link(before.previous, node, before)
        self._changed = True
        return node

    def replace(self, old: Value, new: Value) -> None:
        """Make every use of `old` read `new`; ProgramError unless their types are equal."""
        if old.type != new.type:
            raise ProgramError(f"a value of `{old.type}` cannot be replaced by one of `{new.type}`")
        if old is new:
            return
        uses = self._uses.pop(old, {})
        for node, position in uses:
            if node is None:
                self._results[position] = new
            else:
                node.operands[position] = new
                node.origin = None
        self._uses.setdefault(new, {}).update(uses)
        self._changed = True

    def erase(self, node: InstructionNode) -> None:
        """Remove a node whose results nothing reads; ProgramError if something does."""
        if any(self.used(result) for result in node.results):
            raise ProgramError(f"`{node.op.name}` cannot be erased: its result is still read")
        for position, operand in enumerate(node.operands):
            del self._uses[operand][node, position]
        for result in node.results:
            del self._definitions[result]
            self._uses.pop(result, None)
        self._join(node.previous, node.following)
        node.erased = self._changed = True

    def erase_dead(self, node: InstructionNode) -> None:
        """Remove `node` unless something reads its results, then the nodes that only it read."""
        pending = [node]
        while pending:
            dead = pending.pop()
            if dead.erased or any(self.used(result) for result in dead.results):
                continue
            self.erase(dead)
            defined = (self.definition(operand) for operand in dead.operands)
            pending.extend(made for made in defined if made is not None)

    def region(self) -> Region:
        """Return the region as immutable data: the original if nothing changed."""
        if not self._changed:
            return self._region
        instructions = tuple(node.freeze() for node in self)
        return Region(self._region.params, instructions, tuple(self._results))

    def _link(
        self,
        previous: InstructionNode | None,
        node: InstructionNode,
        following: InstructionNode | None,
    ) -> None:
        self._join(previous, node)
        self._join(node, following)
        for result in node.results:
            self._definitions[result] = node
        for position, operand in enumerate(node.operands):
            self._uses.setdefault(operand, {})[node, position] = None

    def _join(self, previous: InstructionNode | None, following: InstructionNode | None) -> None:
        """Make two nodes neighbors; None is before the first and after the last."""
        if previous is None:
            self._first = following
        else:
            previous.following = following
        if following is not None:
            following.previous = previous


# The journal of an optimization: which rewrites fired, and which declined and why.


class Refusal(Struct, frozen=True):
    """A rewrite that matched `instruction` but declined, and why."""

    rewrite: str
    instruction: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rewrite} at {self.instruction}: {self.reason}"


class Journal(Struct):
    """Counts over everything optimized while it was open."""

    steps: int = 0
    """Number of instructions that a driver visited."""
    fired: Counter[str] = field(default_factory=Counter[str])
    """How often each rewrite was applied, by name."""
    refused: Counter[Refusal] = field(default_factory=Counter[Refusal])
    """How often each refusal occurred."""


_open_journal: ContextVar[Journal | None] = ContextVar("open_journal", default=None)


@contextmanager
def recording() -> Generator[Journal]:
    """Scope in which optimizations in this thread write to the journal that it yields.

    >>> with recording() as journal:
    ...     optimize(program)
    >>> for refusal in journal.refused:
    ...     print(refusal)
    """
    journal = Journal()
    token = _open_journal.set(journal)
    try:
        yield journal
    finally:
        _open_journal.reset(token)


def current_journal() -> Journal | None:
    """Return the open journal of this thread, None if there is none."""
    return _open_journal.get()
