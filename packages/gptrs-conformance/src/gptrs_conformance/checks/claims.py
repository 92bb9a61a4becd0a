"""Composites that a backend claims: as close to their decompositions as functionals have to be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from gptrs import functionals as F
from gptrs.backend.contract import Backend, Buffer, Executable, InputRole
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
from gptrs_conformance.running import require, require_equal, run_on
from gptrs_conformance.uses import ALL_USES


def require_claims(functional: str, backend: Backend, *, claimed: bool = False) -> None:
    """Raise CheckFailure if a claimed call differs too much from its decomposition.

    Every use of the functional is run both ways in f32, and one use in each other float type; the
    first one also on views and on donated inputs. Runs leave inputs and earlier results as they
    are, and repeat to the bit. Where the backend refuses the decomposition, NumPy says what is
    expected; a use with other ops that it refuses is left out. A backend that does not claim it
    passes. UnsupportedError, with the reasons, for a backend that knows the composite but declines
    every use, so that its claim never fires, and for one that should have `claimed` it.
    """
    reasons: dict[str, None] = {}
    fired: set[DType] = set()
    forms: set[tuple[DType, int]] = set()
    for use in ALL_USES:
        for dtype, arrays in use.cases() if use.functional == functional else ():
            program = captured(use, arrays)
            found = list(claims_of(program, functional, backend))
            reasons |= {each.reason: None for each in found if isinstance(each, Declined)}
            if not _fires(found) or (dtype in fired and dtype is not dtypes.f32):
                continue
            try:
                executable = _compiled(program, backend)
            except UnsupportedError:
                lacking = _lacking(program, backend)
                if not lacking:  # the call of the kernel itself is refused
                    raise
                reasons |= dict.fromkeys(lacking)
                continue
            # One form of call a type is run again: kernels keep things by form, not by setting.
            given = [arrays] if (dtype, len(arrays)) in forms else [arrays, _others(arrays)]
            forms.add((dtype, len(arrays)))
            _require_same(use, dtype, program, backend, given, executable)
            if dtype not in fired and dtype is dtypes.f32:
                _require_same_of_views(use, functional, backend, arrays)
            fired.add(dtype)
    if not fired and (reasons or claimed):
        listed = "; ".join(reasons) or f"`{backend.name}` has no kernel for it"
        raise UnsupportedError(f"no use of `{functional}` is claimed: {listed}")


def _fires(claims: Iterable[Claimed]) -> bool:
    """Return whether any call is claimed."""
    return any(not (each is None or isinstance(each, Declined)) for each in claims)


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
    given: Sequence[Arrays],
    executable: Executable,
) -> None:
    """Raise CheckFailure unless a run on each of the arrays is right."""
    found = _runs(use, backend, executable, given)
    try:
        inlined, source = _inlined(program, backend), "its decomposition"
        wanted = [run_on(backend, inlined, *each) for each in given]
    except UnsupportedError:  # a backend of few ops may compute a functional whose ops it lacks
        wanted, source = list(map(use.wanted, given)), "NumPy"
    for claimed, expected in zip(found, wanted, strict=True):
        _require_close(use, dtype, claimed, expected, "claimed", source)


def _require_close(
    use: Use,
    dtype: DType,
    claimed: Sequence[np.ndarray],
    wanted: Sequence[np.ndarray],
    how: str,
    source: str,
) -> None:
    try:
        use.require_close(claimed, list(map(wide, wanted)), dtype, how)
    except CheckFailure as failure:
        raise CheckFailure(f"{use.name} {failure}, which {source} gives") from None


def _others(arrays: Arrays) -> Arrays:
    """Return the arrays with floats in reverse; integers, which may be positions, stay.

    A kernel that keeps weights by their shapes does not read these.
    """
    return tuple(
        array[(slice(None, None, -1),) * array.ndim].copy()
        if dtypes.from_numpy(array.dtype).is_float and not np.isnan(wide(array)).any()
        else array
        for array in arrays
    )


def _runs(
    use: Use, backend: Backend, executable: Executable, given: Sequence[Arrays]
) -> list[list[np.ndarray]]:
    """Return the results of a run on each of the arrays.

    CheckFailure if a run changes its inputs or earlier results, or gives other bits the next time.
    """
    found: list[list[np.ndarray]] = []
    kept: list[list[np.ndarray]] = []
    # A copy: a kernel at fault may write to it, and uses share their inputs.
    for arrays in [tuple(map(np.copy, each)) for each in given]:
        buffers: list[Buffer] = list(map(backend.to_device, arrays))
        inputs = [array.copy() for array in arrays]
        results = [backend.to_host(result) for result in executable.run(buffers)]
        after = list(map(backend.to_host, buffers))
        require_equal(after, inputs, f"{use.name}: after a run", "input")
        others = [*arrays, *(result for each in found for result in each)]
        shared = any(np.shares_memory(result, other) for result in results for other in others)
        require(not shared, f"{use.name}: results share memory with inputs or earlier results")
        found.append(results)
        kept.append([result.copy() for result in results])
    if len(given) > 1:
        again = run_on(backend, executable, *map(np.copy, given[0]))
        require_equal(again, kept[0], f"{use.name}: the same inputs again")
    for results, before in zip(found, kept, strict=True):
        require_equal(results, before, f"{use.name}: after later runs")
    return found


def _require_same_of_views(use: Use, functional: str, backend: Backend, arrays: Arrays) -> None:
    """Raise CheckFailure if operands that are transposed views, or donated, give other results."""
    plain = captured(use, arrays)
    wanted = run_on(backend, _compiled(plain, backend), *map(np.copy, arrays))
    views = captured(use, arrays, turned=True)
    turned = [np.ascontiguousarray(array.T) for array in arrays]
    for program, given, how, role in (
        (views, turned, "on transposed views", InputRole.ARGUMENT),
        (plain, arrays, "on donated inputs", InputRole.DONATED),
    ):
        # A backend may lack `transpose`, and one that it falls back to would give it copies.
        if not _fires(claims_of(program, functional, backend)) or _lacking(program, backend):
            continue
        executable = compile_program(program, backend, [role] * len(given))
        found = run_on(backend, executable, *map(np.copy, given))
        _require_close(use, dtypes.f32, found, wanted, how, "another run")


def captured(use: Use, arrays: Arrays, *, turned: bool = False) -> Program:
    """Return the program of a use, whose parameters are its inputs, transposed if `turned`."""
    given = [array.T if turned else array for array in arrays]
    leaves = [Argument(TensorType.of(array), at, None) for at, array in enumerate(given)]
    tensors = [F.transpose(Tensor(leaf)) if turned else Tensor(leaf) for leaf in leaves]
    results = several(use.call(*tensors))
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
