"""Captures on disk: reuses the step that an earlier process captured, without calling the function.
A wrong step would be the worst outcome. So captures are only sought and kept if everything that
determines them is known: the `Closure` of the function, the call, the code of all imported
packages, settings, and the machine. The author of the closure promises that nothing else matters.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec import Struct

from gptrs.backend.contract import Backend, InputRole
from gptrs.capture import events, execute, ports
from gptrs.capture.caching.optimized_programs import KeptCapture, optimized_programs
from gptrs.capture.caching.program_key import entry_key
from gptrs.capture.caching.source_identity import (
    foreign_names,
    other_sources,
    package_of,
    same_names,
    unchanged,
)
from gptrs.capture.compilation import Prepared, prepare_optimized, settings_for
from gptrs.capture.execute import chosen_backend
from gptrs.capture.graph import Leaf, common_backend
from gptrs.capture.jitting.captured_function import (
    Capture,
    Closure,
    Describe,
    JitCall,
    NotPlainError,
    plain_structure,
    structure_of,
)
from gptrs.capture.jitting.pytree import Structure
from gptrs.capture.parameter import Parameter
from gptrs.ir.size_guards import SizeGuards
from gptrs.ir.tensor_type import TensorType

_VARIABLES = "GPTRS_"
"""Prefix of the environment variables that may change a capture."""


class StepInterface(Struct, frozen=True):
    """The arguments, closed-over tensors and results of a step."""

    types: Sequence[TensorType]
    """Types of the tensors of the arguments."""
    bound: Sequence[Leaf]
    """Closed-over tensors, parameters last."""
    outputs: Structure
    output_types: Sequence[TensorType]

    @classmethod
    def of(cls, capture: Capture) -> StepInterface:
        """Return the interface of a captured function."""
        types = [argument.type for argument in capture.arguments]
        return cls(types, capture.bound, capture.outputs, capture.output_types)


def donating_roles(call: JitCall, bound: Sequence[Leaf]) -> list[InputRole]:
    """Return the roles of a step's inputs: arguments, then closed-over tensors."""
    donated = call.donated()
    roles = [
        InputRole.DONATED if position in donated else InputRole.ARGUMENT
        for position in range(len(call.tensors))
    ]
    return roles + [
        InputRole.PARAMETER if isinstance(leaf, Parameter) else InputRole.CONSTANT for leaf in bound
    ]


class CaptureRecord(Struct, frozen=True):
    """The record on disk of the capture of one call."""

    key: str
    closure: Closure
    backend: Backend
    packages: frozenset[str]
    name: str
    reads: int
    """Count of values read in this process before the capture."""

    @classmethod
    def of(
        cls,
        name: str,
        describe: Describe,
        call: JitCall,
        types: Sequence[TensorType],
        inputs: Sequence[Leaf],
    ) -> CaptureRecord | None:
        """Return the record of a call with tensors of these types.

        None if a part of its key is unknown, if it is traced, or without a cache folder.
        """
        ports.load_trace_sinks()
        if any(call.context) or events.sinks() or not optimized_programs().keeps:
            return None
        closure = describe()
        if closure is None:
            return None
        backend = common_backend([*inputs, *closure.leaves], name) or chosen_backend()
        packages = closure.packages | {"gptrs", package_of(type(backend).__module__)}
        try:
            arguments = list(map(plain_structure, call.structures))
        except NotPlainError:
            return None
        known = (
            "capture",
            name,
            closure.text,
            call.shape.labels,
            arguments,
            sorted(call.donated()),
            list(map(str, types)),
            [None if leaf.backend is None else leaf.backend.name for leaf in inputs],
            settings_for(backend),
            execute.streaming_of(closure.leaves),
            sorted((k, v) for k, v in os.environ.items() if k.startswith(_VARIABLES)),
        )
        key = entry_key(known, backend, packages)
        if key is None:
            return None
        return cls(key, closure, backend, packages, name, execute.values_read())

    def find(
        self, call: JitCall, types: Sequence[TensorType], guards: SizeGuards | None
    ) -> tuple[StepInterface, Prepared] | None:
        """Return the step of a call, compiled from the stored program; None if there is none."""
        found = optimized_programs().find_capture(self.key, guards, self._holds)
        if found is None:
            return None
        kept, split = found
        bound = [self.closure.leaves[position] for position in kept.bound]
        interface = StepInterface(types, bound, structure_of(kept.outputs), kept.output_types)
        prepared = prepare_optimized(
            split,
            self.backend,
            donating_roles(call, bound),
            origin=f"jit {self.name}",
            streaming=execute.streaming_of(bound),
            guards=guards,
        )
        return interface, prepared

    def _holds(self, kept: KeptCapture) -> bool:
        return unchanged(kept.sources) and same_names(kept.names, self.packages)

    def keep(
        self, interface: StepInterface, backend: Backend, optimized: str, decided: tuple[int, ...]
    ) -> None:
        """Store a capture unless it depends on more than this record covers.

        `optimized` names the optimized program, `decided` are its guards.
        """
        indices = {leaf: position for position, leaf in enumerate(self.closure.leaves)}
        if (
            backend is not self.backend
            or execute.values_read() != self.reads
            or not all(leaf in indices for leaf in interface.bound)
            or (sources := other_sources(self.packages)) is None
        ):
            return
        try:
            outputs = plain_structure(interface.outputs)
            structure_of(outputs)
        except NotPlainError:
            return
        kept = KeptCapture(
            optimized,
            decided,
            tuple([indices[leaf] for leaf in interface.bound]),
            outputs,
            tuple(interface.output_types),
            sources,
            foreign_names(self.packages),
        )
        optimized_programs().keep_capture(self.key, kept)
