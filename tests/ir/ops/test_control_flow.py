"""Inference and refusals of `cond`, `while`, `scan` and `call`."""

from __future__ import annotations

import pytest

from gptrs.errors import ProgramError
from gptrs.ir import FunctionName, Signature, TensorType, dtypes
from gptrs.ir.ops.control_flow import Call, Cond, Scan, While

F32 = TensorType(dtypes.f32, (2,))
SI32 = TensorType(dtypes.si32, ())
I1 = TensorType(dtypes.i1, ())
XS = TensorType(dtypes.f32, (4, 3))
SLICE = TensorType(dtypes.f32, (3,))


def signature(params: list[TensorType], results: list[TensorType]) -> Signature:
    return Signature(tuple(params), tuple(results))


def test_cond_gives_the_results_of_its_regions() -> None:
    body = signature([F32, SI32], [SI32, F32])
    assert Cond().result_types([I1, F32, SI32], [body, body]) == (SI32, F32)
    empty = signature([], [I1])
    assert Cond().result_types([I1], [empty, empty]) == (I1,)


@pytest.mark.parametrize(
    ("operands", "then", "other", "message"),
    [
        ([SI32, F32], ([F32], [F32]), ([F32], [F32]), "needs a predicate of i1[]"),
        ([I1, F32], ([SI32], [F32]), ([F32], [F32]), "parameters of `then` (f32[2]), got (si32[])"),
        ([I1, F32], ([F32], [F32]), ([], [F32]), "parameters of `else` (f32[2]), got (none)"),
        ([I1, F32], ([F32], [F32]), ([F32], [SI32]), "results of `else` (f32[2]), got (si32[])"),
        ([I1, F32], ([F32], []), ([F32], []), "needs at least one result"),
    ],
)
def test_cond_refusals(
    operands: list[TensorType],
    then: tuple[list[TensorType], list[TensorType]],
    other: tuple[list[TensorType], list[TensorType]],
    message: str,
) -> None:
    with pytest.raises(ProgramError) as caught:
        Cond().result_types(operands, [signature(*then), signature(*other)])
    assert message in str(caught.value)


def test_while_keeps_the_types_of_its_state() -> None:
    bodies = [signature([F32, SI32], [I1]), signature([F32, SI32], [F32, SI32])]
    assert While().result_types([F32, SI32], bodies) == (F32, SI32)


@pytest.mark.parametrize(
    ("state", "condition", "body", "message"),
    [
        ([F32], ([], [I1]), ([F32], [F32]), "parameters of `condition` (f32[2]), got (none)"),
        ([F32], ([F32], [F32]), ([F32], [F32]), "results of `condition` (i1[]), got (f32[2])"),
        ([F32], ([F32], [I1]), ([SI32], [F32]), "parameters of `body` (f32[2]), got (si32[])"),
        ([F32], ([F32], [I1]), ([F32], [F32, F32]), "results of `body` (f32[2]), got (f32[2], "),
        ([], ([], [I1]), ([], []), "needs at least one result"),
    ],
)
def test_while_refusals(
    state: list[TensorType],
    condition: tuple[list[TensorType], list[TensorType]],
    body: tuple[list[TensorType], list[TensorType]],
    message: str,
) -> None:
    with pytest.raises(ProgramError) as caught:
        While().result_types(state, [signature(*condition), signature(*body)])
    assert message in str(caught.value)


def test_scan_stacks_what_it_does_not_carry() -> None:
    body = signature([F32, SLICE], [F32, SI32, SLICE])
    stacked = (F32, TensorType(dtypes.si32, (4,)), TensorType(dtypes.f32, (4, 3)))
    assert Scan(1).result_types([F32, XS], [body]) == stacked
    assert Scan(1, length=4).result_types([F32, XS], [body]) == stacked
    counted = signature([F32], [F32, SI32])
    assert Scan(1, length=0).result_types([F32], [counted]) == (F32, TensorType(dtypes.si32, (0,)))
    pure = signature([SLICE], [SLICE])
    assert Scan(0).result_types([XS], [pure]) == (XS,)


@pytest.mark.parametrize(
    ("op", "operands", "body", "message"),
    [
        (Scan(3), [F32, XS], ([F32, SLICE], [F32]), "carries 3 of 2 operands"),
        (Scan(-1), [F32, XS], ([F32, SLICE], [F32]), "carries -1 of 2 operands"),
        (Scan(1), [F32], ([F32], [F32]), "scans nothing and so needs `length`"),
        (
            Scan(1),
            [F32, SI32],
            ([F32, SI32], [F32]),
            "needs a leading axis in its scanned operands",
        ),
        (Scan(0), [XS, F32], ([SLICE, SI32], [F32]), "needs the leading dim 4 in all"),
        (Scan(1, 5), [F32, XS], ([F32, SLICE], [F32]), "needs the leading dim 5 in all"),
        (Scan(1, -1), [F32], ([F32], [F32]), "needs a length >= 0, got -1"),
        (Scan(1), [F32, XS], ([F32, XS], [F32]), "parameters of `body` (f32[2], f32[3])"),
        (Scan(1), [F32, XS], ([F32, SLICE], [SLICE]), "results of `body` that begin with (f32[2])"),
        (Scan(0), [XS], ([SLICE], []), "needs at least one result"),
    ],
)
def test_scan_refusals(
    op: Scan,
    operands: list[TensorType],
    body: tuple[list[TensorType], list[TensorType]],
    message: str,
) -> None:
    with pytest.raises(ProgramError) as caught:
        op.result_types(operands, [signature(*body)])
    assert message in str(caught.value)


def test_call_takes_the_arguments_of_its_function() -> None:
    op = Call(FunctionName("f"))
    assert op.callees() == ("f",)
    assert op.result_types([F32, I1], [signature([F32, I1], [SI32])]) == (SI32,)
    with pytest.raises(ProgramError, match=r"arguments for `@f` \(f32\[2\]\), got \(i1\[\]\)"):
        op.result_types([I1], [signature([F32], [SI32])])
    with pytest.raises(ProgramError, match="needs 0 regions and 1 functions"):
        op.result_types([F32])


def test_control_flow_is_chosen_as_i1() -> None:
    assert Cond().key_dtype([I1, F32], [F32]) is dtypes.i1
    assert While().key_dtype([F32], [F32]) is dtypes.i1
