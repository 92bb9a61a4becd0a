"""Runs a compiled step on new inputs, and takes care of the memory that is given away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gptrs.backend.protocol import Backend, Buffer
from gptrs.capture import execute
from gptrs.capture.compilation import Prepared
from gptrs.capture.graph import Leaf, Stored
from gptrs.capture.parameter import Parameter
from gptrs.capture.pytree import Structure, rebuild
from gptrs.capture.pytree_nodes import Tree
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.ir.tensor_type import TensorType


@dataclass(frozen=True, slots=True)
class Step:
    """A compiled capture: what to run, the inputs it brings along, and the shape of its result."""

    function: str
    prepared: Prepared
    backend: Backend
    bound: Sequence[Leaf]
    """What it uses without taking it; comes after the arguments."""
    bound_set: frozenset[Leaf]
    others: Sequence[tuple[int, Leaf]]
    """Those that are no parameters, with their positions in `bound`."""
    donated: Mapping[int, str]
    """The positions of the inputs that are given away, with the names of their arguments."""
    outputs: Structure
    output_types: Sequence[TensorType]
    _loaded: list[list[Buffer]] = field(default_factory=list[list[Buffer]])
    """The buffers of what is bound, once all parameters among it are loaded."""

    def bound_buffers(self) -> list[Buffer]:
        """Where the values of `bound` are now; those of parameters that stay never move."""
        if not self._loaded:
            self._loaded[:] = [[execute.input_of(leaf, self.backend) for leaf in self.bound]]
        buffers = list(self._loaded[0])
        for position, leaf in self.others:
            buffers[position] = execute.buffer_of(leaf, self.backend)
        return buffers


def replay(step: Step, inputs: Sequence[Leaf], cached: bool) -> Tree:
    """Run `step` on the tensors of its arguments; what the function would have returned.

    `cached` says whether an earlier call had compiled it.
    """
    backend = step.backend
    buffers = [
        leaf.buffer  # nearly always: no call for each
        if isinstance(leaf, Stored) and leaf.backend is backend and not leaf.consumed
        else execute.buffer_of(leaf, backend)
        for leaf in inputs
    ]
    buffers += step.bound_buffers()
    if step.donated:
        _prepare_donation(step, inputs, buffers)
    results = step.prepared.run(buffers, cached)
    made = [
        Tensor(Stored(type_, result, backend))
        for type_, result in zip(step.output_types, results, strict=True)
    ]
    return rebuild(step.outputs, iter(made))


def _prepare_donation(step: Step, inputs: Sequence[Leaf], buffers: list[Buffer]) -> None:
    """Mark what is given away; copy first where somebody else can still see the memory.

    Nothing is marked unless everything may be given away.
    """
    _require_donors(step, inputs)
    for position in step.donated:
        leaf = inputs[position]
        assert isinstance(leaf, Stored), "required above"
        if leaf.viewed:
            host = step.backend.to_host(buffers[position])
            buffers[position] = step.backend.to_device(host.copy())
        leaf.consumed = True


def _require_donors(step: Step, inputs: Sequence[Leaf]) -> None:
    """UsageError for a donated weight, and for a donated tensor that the call uses twice."""
    uses: Counter[Leaf] = Counter()
    if len(set(inputs)) < len(inputs) or not step.bound_set.isdisjoint(inputs):  # rarely
        uses.update((*inputs, *step.bound))
    for position, name in step.donated.items():
        leaf = inputs[position]
        if isinstance(leaf, Parameter):
            raise UsageError(
                f"`{step.function}` donates `{name}`, which holds the parameter `{leaf.name}`",
                hint="a parameter is needed again; donate a computed tensor, `x * 1` makes a copy",
            )
        if uses and uses[leaf] > 1:
            raise UsageError(
                f"`{step.function}` donates `{name}`, which holds a `{leaf.type}` that is used"
                " twice in one call",
                hint="pass a copy in one of the places, `x * 1` makes one",
            )
