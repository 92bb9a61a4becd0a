"""Every case of the kit on every backend, and that the cases cover all of PTIR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gptrs.backend.contract import Backend
from gptrs.errors import ProgramError
from gptrs.ir import OPS, TensorType, dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs_conformance.kit import run_conformance
from gptrs_conformance.op_case import ROWS, OpCase, cases, legal_dtypes, new_cases
from gptrs_conformance.op_runner import failures

# A type for each way to be computed and kept; the other types only change what kernels load.
FEW_TYPES = (dtypes.f32, dtypes.bf16, dtypes.si32, dtypes.ui8, dtypes.si4, dtypes.i1, dtypes.cf64)


PART_OF_FEW, PART = 3, 10
"""Where each case is compiled, one of so many is run, not the same ones of each type.

Of the first of the few types all are; on the reference all of all types. `make fuzz` runs the rest.
"""


NAMES = sorted(op.name for op in ROWS)


def test_only_calls_of_foreign_kernels_have_no_cases() -> None:
    assert set(OPS) - set(NAMES) == {"custom_call"}


def few_types(name: str) -> list[DType]:
    legal = legal_dtypes(OPS[name])
    return [dtype for dtype in FEW_TYPES if dtype in legal] or legal[:1]


def other_types(name: str) -> list[DType]:
    few = few_types(name)
    return [dtype for dtype in legal_dtypes(OPS[name]) if dtype not in few]


@pytest.mark.whole
@pytest.mark.usefixtures("fresh_memory_shows")
@pytest.mark.parametrize("name", NAMES)
def test_every_case_of_an_op(backend: Backend, name: str) -> None:
    """Of all types on the reference, and of one type where each case is compiled."""
    types = legal_dtypes(OPS[name]) if backend.name == "ref" else few_types(name)[:1]
    require_passed(backend, name, {dtype: cases(OPS[name], dtype) for dtype in types})


@pytest.mark.long
@pytest.mark.usefixtures("fresh_memory_shows")
@pytest.mark.parametrize("name", [name for name in NAMES if few_types(name)[1:]])
def test_some_cases_of_a_few_types(compiling: Backend, name: str) -> None:
    require_passed(compiling, name, some_cases(name, few_types(name)[1:], PART_OF_FEW, first=1))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("fresh_memory_shows")
@pytest.mark.parametrize("name", [name for name in NAMES if other_types(name)])
def test_some_cases_of_the_other_types(compiling: Backend, name: str) -> None:
    require_passed(compiling, name, some_cases(name, other_types(name), PART))


def some_cases(
    name: str, types: Sequence[DType], part: int, first: int = 0
) -> dict[DType, list[OpCase]]:
    """Return one of `part` cases of each type, from another one on for each; at least one."""
    made = {dtype: cases(OPS[name], dtype) for dtype in types}
    return {
        dtype: each[start % part % len(each) :: part]
        for start, (dtype, each) in enumerate(made.items(), first)
    }


def require_passed(backend: Backend, name: str, made: Mapping[DType, Sequence[OpCase]]) -> None:
    """Fail with a line for each case that fails; one that the backend refuses is none."""
    wrong = [
        f"`{name}` on {dtype}, {failure}"
        for dtype, of_type in made.items()
        for failure in failures(backend, of_type)
    ]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_claims_everything(name: str, reference: Backend) -> None:
    report = run_conformance(reference, "smoke", ops=[name])
    assert set(report.coverage[name].values()) == {"pass"}


@pytest.mark.parametrize("name", NAMES)
def test_each_case_is_of_its_op_and_type(name: str) -> None:
    for dtype in ROWS[OPS[name]]:
        made = cases(OPS[name], dtype)
        assert made
        labels = [case.label for case in made]
        assert len(set(labels)) == len(labels), "two cases have one label"
        for case in made:
            operands = [TensorType.of(array) for array in case.inputs]
            bodies = [region.signature for region in case.regions]
            bodies += [
                function.body.signature
                for name in case.op.callees()
                for function in case.functions
                if function.name == name
            ]
            results = case.op.result_types(operands, bodies)
            assert type(case.op) is OPS[name]
            assert case.op.key_dtype(operands, results) is dtype
            assert len(case.expected) == (0 if case.error else len(results))


@pytest.mark.parametrize("name", NAMES)
def test_cases_are_the_same_every_time(name: str) -> None:
    for dtype in ROWS[OPS[name]]:
        again = list(new_cases(ROWS[OPS[name]][dtype], OPS[name], dtype))
        for one, other in zip(cases(OPS[name], dtype), again, strict=True):
            assert (one.op, one.label, one.error) == (other.op, other.label, other.error)
            pairs = zip(one.inputs, other.inputs, strict=True)
            assert all(a.tobytes() == b.tobytes() for a, b in pairs)


@pytest.mark.parametrize("name", NAMES)
def test_attributes_take_several_values(name: str) -> None:
    """Each flag and choice of an op occurs with every value that it can have."""
    made = [case.op for dtype in ROWS[OPS[name]] for case in cases(OPS[name], dtype)]
    for attribute, kind in OPS[name].attribute_kinds.items():
        seen = {getattr(op, attribute) for op in made}
        if kind.wanted == "true or false":
            assert seen == {True, False}, attribute
        words = getattr(kind, "words", None)
        if words is not None:
            assert seen == set(words), attribute
        if attribute in ("accum_dtype", "out_dtype"):
            assert len(seen) > 1, attribute


def infers(op: Op, operands: list[TensorType]) -> bool:
    try:
        op.result_types(operands)
    except ProgramError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_element_types_without_cases_are_illegal(name: str) -> None:
    """Cases of a legal type, carried over to a type that has none, are refused by the op."""
    if OPS[name].region_names or name in ("call", "composite", "custom_call"):
        pytest.skip("chosen by i1 whatever the types are")
    covered = ROWS[OPS[name]]
    for dtype in set(dtypes.ALL) - set(covered):
        for other in covered:
            for case in cases(OPS[name], other)[:3]:
                op = _retyped(case.op, other, dtype)
                if not case.inputs:
                    continue
                operands = [
                    type_.with_dtype(dtype) if type_.dtype is other else type_
                    for type_ in map(TensorType.of, case.inputs)
                ]
                key = OPS[name].data_operand
                if operands[key].dtype is dtype:
                    assert not infers(op, operands), f"`{name}` takes {dtype}, but has no case"


def _retyped(op: Op, before: object, after: object) -> Op:
    """`op` with attributes that are the type `before` made the type `after`."""
    values = {name: getattr(op, name) for name in op.attribute_types}
    return type(op)(**{k: after if v is before else v for k, v in values.items()})
