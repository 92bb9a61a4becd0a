"""Runs a compiled step on new inputs, and takes care of the memory that is given away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from gptrs.backend.contract import Backend, BoundInputs, Buffer
from gptrs.capture import execute
from gptrs.capture.backend_calls import copied
from gptrs.capture.compilation import Prepared
from gptrs.capture.graph import Leaf, Stored
from gptrs.capture.jitting.pytree import Rebuild
from gptrs.capture.jitting.pytree_nodes import Tree
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.ir.symbolic_dim import evaluated
from gptrs.ir.tensor_type import TensorType
from gptrs.quick_dataclass import dataclass
from gptrs.spans import span


@dataclass(frozen=True, slots=True)
class CompiledStep:
    """A compiled capture: the program, its closed-over inputs, and the nesting of its result."""

    function: str
    prepared: Prepared
    backend: Backend
    constants: Sequence[Leaf]
    """Closed-over tensors other than parameters; appended after the arguments."""
    parameters: Sequence[Parameter]
    """Closed-over parameters; they come last."""
    donated: Mapping[int, str]
    """The positions of the donated inputs, with the names of their arguments."""
    rebuild: Rebuild
    """Nests the result tensors as the function returned them."""
    output_types: Sequence[TensorType]
    """With the symbols of a step for many sizes, see `at`."""
    symbolic_outputs: Sequence[tuple[int, int | None]]
    """The outputs with symbols, each with an input of the same type, None if there is none."""
    _loaded: list[BoundInputs] = field(default_factory=list[BoundInputs])
    """The buffers of the parameters, once they are loaded."""

    @property
    def weights(self) -> BoundInputs:
        """The buffers of the parameters, which are loaded once."""
        if not self._loaded:
            with span("read weights", self.function):
                buffers = [execute.input_of(leaf, self.backend) for leaf in self.parameters]
            self._loaded[:] = [BoundInputs(buffers)]
        return self._loaded[0]

    def at(self, sizes: Sequence[int], inputs: Sequence[Leaf]) -> CompiledStep:
        """Return the step for these sizes of its symbols, in a call with these inputs.

        ExecutionError for sizes for which there is not enough memory.
        """
        values = dict(enumerate(sizes))
        if self.prepared.memory is not None:
            self.prepared.memory.require(values)
        types = list(self.output_types)
        for output, source in self.symbolic_outputs:
            # The very type of an argument: the results of a step are mostly arguments of the next
            # one, and finding it compares types.
            known = None if source is None else inputs[source].type
            types[output] = known or _sized(types[output], values)
        return replace(self, output_types=types)


def _sized(type_: TensorType, sizes: Mapping[int, int]) -> TensorType:
    return type_.with_shape(tuple([evaluated(dim, sizes) for dim in type_.shape]))


def replay(step: CompiledStep, inputs: Sequence[Leaf], cached: bool) -> Tree:
    """Run `step` on the tensors of its arguments; return what the function would return.

    `cached`: an earlier call compiled the step.
    """
    backend = step.backend
    leaves = (*inputs, *step.constants)
    buffers = [
        leaf.buffer  # nearly always: no call for each
        if isinstance(leaf, Stored) and leaf.backend is backend and not leaf.consumed
        else execute.buffer_of(leaf, backend)
        for leaf in leaves
    ]
    weights = step.weights
    if step.donated:
        _prepare_donation(step, inputs, buffers)
    results, outcome = step.prepared.submit(leaves, buffers, cached, weights)
    made = [
        Tensor(Stored(type_, result, backend, outcome=outcome))
        for type_, result in zip(step.output_types, results, strict=True)
    ]
    return step.rebuild(made)


def _prepare_donation(step: CompiledStep, inputs: Sequence[Leaf], buffers: list[Buffer]) -> None:
    """Mark donated tensors as consumed; copy first where a host view shares the memory.

    Marks nothing unless all of them may be donated.
    """
    donors = [leaf for position in step.donated if isinstance(leaf := inputs[position], Stored)]
    distinct = {*inputs, *step.constants}
    if len(donors) < len(step.donated) or len(distinct) < len(inputs) + len(step.constants):
        _require_donors(step, inputs)
    for position, leaf in zip(step.donated, donors, strict=True):
        if leaf.viewed:
            buffers[position] = copied(step.backend, buffers[position])
        leaf.consumed = True


def _require_donors(step: CompiledStep, inputs: Sequence[Leaf]) -> None:
    """Raise UsageError for a donated parameter, or a donated tensor that the call uses twice."""
    uses = Counter[Leaf]((*inputs, *step.constants))
    for position, name in step.donated.items():
        leaf = inputs[position]
        if isinstance(leaf, Parameter):
            raise UsageError(
                f"`{step.function}` donates `{name}`, which holds the parameter `{leaf.name}`",
                hint="a parameter is needed again; donate a computed tensor, `x * 1` makes a copy",
            )
        if uses[leaf] > 1:
            raise UsageError(
                f"`{step.function}` donates `{name}`, which holds a `{leaf.type}` that is used"
                " twice in one call",
                hint="pass a copy in one of the places, `x * 1` makes one",
            )
