"""Optimize a captured program for a backend; `compilation` imports it for programs that are not on
disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.backend.contract import Backend
from gptrs.capture.backend_calls import blamed, to_host
from gptrs.capture.fallback.parts_executable import compiled_in_parts
from gptrs.ir.ops.custom_call import Claim, Claimed, Composite
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.parameter_folding import fold_parameters
from gptrs.optimizer.pass_base import Pass
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import PassRun, Pipeline
from gptrs.optimizer.split import Split


def optimize(
    program: Program,
    backend: Backend,
    parameters: Sequence[bool] | None,
    share: bool,
    observe: Callable[[PassRun], None] | None,
    without: frozenset[str] = frozenset(),
) -> Split:
    """Run the pipeline for `backend` on `program`.

    Computations that depend only on `parameters` (one flag per input) are split off, unless it is
    None. With `share`, a backend that accepts functions gets those called several times; all others
    are inlined. `observe` is called after every pass. Passes named in `without` are left out, and
    composites of kinds in it, such as `softmax.v1`, are not claimed.
    """
    for_backend = _ForBackend(backend, without)
    shares = share and backend.shares_functions
    inlining = Inlining(for_backend.claim, share=shares)
    pipeline = replace(for_backend.pipeline(inlining, observe), without=without)
    canonical = pipeline.before_folding(program)
    if parameters is None:
        split = Split(canonical, tuple(range(len(canonical.main.body.params))))
    else:
        split = fold_parameters(canonical, parameters)
    return Split(pipeline.after_folding(split.program), split.inputs)


def claim_of(backend: Backend) -> Claim:
    """Return the claims of `backend` on composites."""
    return _ForBackend(backend).claim


def own_pass(program: Program, backend: Backend, name: str) -> tuple[Pass, Program] | None:
    """Return a pass of `backend` itself, and `program` as it gets it in the pipeline.

    None if the backend has no pass of this name.
    """
    for_backend = _ForBackend(backend)
    pipeline = for_backend.pipeline(Inlining(for_backend.claim), None)
    with blamed(backend, "`legalize` and `fuse`"):
        legalize, fuse = backend.legalize(), backend.fuse()
    for number, each in enumerate(legalize):
        if each.name == name:
            until = replace(pipeline, legalize=pipeline.legalize[:number])
            return each, until.before_folding(program)
    for number, each in enumerate(fuse):
        if each.name == name:
            program = pipeline.before_folding(program)
            for earlier in pipeline.fuse[:number]:
                program = earlier.apply(program)
            return each, program
    return None


class _ForBackend(Struct, frozen=True):
    backend: Backend
    unclaimed: frozenset[str] = frozenset()
    """Kinds of composites that it may not claim."""

    def pipeline(self, inlining: Inlining, observe: Callable[[PassRun], None] | None) -> Pipeline:
        with blamed(self.backend, "`legalize` and `fuse`"):
            legalize, fuse = self.backend.legalize(), self.backend.fuse()
        return Pipeline(
            inlining=inlining,
            legalize=tuple(_BackendPass(self.backend, each) for each in legalize),
            fuse=tuple(_BackendPass(self.backend, each) for each in fuse),
            evaluate=self._evaluate,
            ieee_floats=self.backend.ieee_floats,
            observe=observe,
        )

    def claim(
        self, op: Composite, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> Claimed:
        if op.kind in self.unclaimed:
            return None
        with blamed(self.backend, "`claim`"):
            return self.backend.claim(op, operands, results)

    def _evaluate(self, program: Program) -> list[np.ndarray]:
        executable = compiled_in_parts(self.backend, program, ())
        return [to_host(self.backend, result) for result in executable.run(())]


class _BackendPass(Struct, frozen=True):
    """A pass of a backend: its errors name the backend."""

    backend: Backend
    made: Pass

    @property
    def name(self) -> str:
        return self.made.name

    def apply(self, program: Program) -> Program:
        with blamed(self.backend, f"its pass `{self.name}`"):
            return self.made.apply(program)
