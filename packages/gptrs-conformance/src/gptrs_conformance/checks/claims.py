"""Composites that a backend claims: as close to their decompositions as functionals have to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from gptrs.backend.contract import Backend, Executable, InputRole
from gptrs.capture.compilation import compile_program
from gptrs.capture.graph import Argument, GraphSlice
from gptrs.capture.tensor import Tensor
from gptrs.errors import UnsupportedError
from gptrs.functionals.dispatch.registry import composite_names
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.custom_call import Claimed, Composite, Declined
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs_conformance.check import Check, CheckFailure
from gptrs_conformance.functional_use import Arrays, Use, several, wide
from gptrs_conformance.running import run_on
from gptrs_conformance.uses import ALL_USES


def require_claims(functional: str, backend: Backend) -> None:
    """Raise CheckFailure if a claimed call differs too much from its decomposition.

    Every use of the functional is run both ways in f32, and one use in each other float type. A
    backend that does not claim it passes. UnsupportedError, with the reasons, for a backend that
    knows the composite but declines every use: such a claim never fires.
    """
    reasons: dict[str, None] = {}
    fired: set[DType] = set()
    for use in ALL_USES:
        for dtype, arrays in use.cases() if use.functional == functional else ():
            program = captured(use, arrays)
            found = list(_claims(program, functional, backend))
            reasons |= {each.reason: None for each in found if isinstance(each, Declined)}
            declined = all(each is None or isinstance(each, Declined) for each in found)
            if declined or (dtype in fired and dtype is not dtypes.f32):
                continue
            fired.add(dtype)
            _require_same(use, dtype, program, backend, arrays)
    if reasons and not fired:
        listed = "; ".join(reasons)
        raise UnsupportedError(f"no use of `{functional}` is claimed: {listed}")


def _require_same(
    use: Use, dtype: DType, program: Program, backend: Backend, arrays: Arrays
) -> None:
    claimed = run_on(backend, _compiled(program, backend), *arrays)
    inlined = run_on(backend, _inlined(program, backend), *arrays)
    try:
        use.require_close(claimed, list(map(wide, inlined)), dtype, "claimed")
    except CheckFailure as failure:
        raise CheckFailure(f"{use.name} {failure}, which its decomposition gives") from None


def captured(use: Use, arrays: Arrays) -> Program:
    """Return the program of a use, whose parameters are its inputs."""
    leaves = [Argument(TensorType.of(array), at, None) for at, array in enumerate(arrays)]
    results = several(use.call(*map(Tensor, leaves)))
    return GraphSlice([result.source for result in results]).lower(leaves)


def _claims(program: Program, functional: str, backend: Backend) -> Iterator[Claimed]:
    """Yield the backend's decision on each call of the functional, including calls in functions."""
    for function in program.functions:
        for made in function.body.walk():
            if isinstance(made.op, Composite) and made.op.title == functional:
                operands = [value.type for value in made.operands]
                yield backend.claim(made.op, operands, [value.type for value in made.results])


def _compiled(program: Program, backend: Backend) -> Executable:
    return compile_program(program, backend, _roles(program))


def _inlined(program: Program, backend: Backend) -> Executable:
    """Return the decomposition as it is written, which no pattern turns into the kernel again."""
    inlined = Inlining().apply(program)
    try:
        return backend.compile(inlined, _roles(program))
    except UnsupportedError:  # the backend needs its own passes before
        return _compiled(inlined, backend)


def _roles(program: Program) -> Sequence[InputRole]:
    return [InputRole.ARGUMENT] * len(program.main.body.params)


CHECKS = [
    Check(f"claims of {name}", "full", partial(require_claims, name)) for name in composite_names()
]
