"""Composites that a backend claims: as close to their decompositions as functionals have to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from gptrs.backend.contract import Backend, Executable, InputRole
from gptrs.backend.op_table import refusals_of
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


def require_claims(functional: str, backend: Backend, *, claimed: bool = False) -> None:
    """Raise CheckFailure if a claimed call differs too much from its decomposition.

    Every use of the functional is run both ways in f32, and one use in each other float type. Where
    the backend refuses the decomposition, NumPy says what is expected; a use with other ops that it
    refuses is left out. A backend that does not claim it passes. UnsupportedError, with the
    reasons, for a backend that knows the composite but declines every use, so that its claim never
    fires, and for one that should have `claimed` it.
    """
    reasons: dict[str, None] = {}
    fired: set[DType] = set()
    for use in ALL_USES:
        for dtype, arrays in use.cases() if use.functional == functional else ():
            program = captured(use, arrays)
            found = list(claims_of(program, functional, backend))
            reasons |= {each.reason: None for each in found if isinstance(each, Declined)}
            declined = all(each is None or isinstance(each, Declined) for each in found)
            if declined or (dtype in fired and dtype is not dtypes.f32):
                continue
            try:
                executable = _compiled(program, backend)
            except UnsupportedError:
                lacking = _lacking(program, backend)
                if not lacking:  # the call of the kernel itself is refused
                    raise
                reasons |= dict.fromkeys(lacking)
                continue
            fired.add(dtype)
            _require_same(
                use, dtype, program, backend, arrays, run_on(backend, executable, *arrays)
            )
    if not fired and (reasons or claimed):
        listed = "; ".join(reasons) or f"`{backend.name}` has no kernel for it"
        raise UnsupportedError(f"no use of `{functional}` is claimed: {listed}")


def _lacking(program: Program, backend: Backend) -> list[str]:
    """Return why the backend refuses ops of a use beside its claimed call."""
    claimed = Inlining(backend.claim).apply(program)
    beside = [made for made in claimed.main.body.instructions if made.op.name != "custom_call"]
    return refusals_of(backend, claimed, beside)


def _require_same(
    use: Use,
    dtype: DType,
    program: Program,
    backend: Backend,
    arrays: Arrays,
    claimed: Sequence[np.ndarray],
) -> None:
    try:
        wanted, source = run_on(backend, _inlined(program, backend), *arrays), "its decomposition"
    except UnsupportedError:  # a backend of few ops may compute a functional whose ops it lacks
        wanted, source = several(use.expected(*map(wide, arrays))), "NumPy"
    try:
        use.require_close(claimed, list(map(wide, wanted)), dtype, "claimed")
    except CheckFailure as failure:
        raise CheckFailure(f"{use.name} {failure}, which {source} gives") from None


def captured(use: Use, arrays: Arrays) -> Program:
    """Return the program of a use, whose parameters are its inputs."""
    leaves = [Argument(TensorType.of(array), at, None) for at, array in enumerate(arrays)]
    results = several(use.call(*map(Tensor, leaves)))
    return GraphSlice([result.source for result in results]).lower(leaves)


def claims_of(program: Program, functional: str, backend: Backend) -> Iterator[Claimed]:
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


def claim_check(functional: str, *, claimed: bool = True) -> Check:
    """Return the check of a functional that the backend is said to have `claimed`.

    Then it is refused if the backend claims no call.
    """
    run = partial(require_claims, functional, claimed=claimed)
    return Check(f"claims of {functional}", "smoke", run)


CHECKS = [
    Check(f"claims of {name}", "full", partial(require_claims, name)) for name in composite_names()
]
