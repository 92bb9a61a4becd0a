"""The table of kernels: what it finds, what it refuses and how it says so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gptrs.backend.op_table import OpTable, require_supported
from gptrs.errors import UnsupportedError
from gptrs.ir import dtypes
from gptrs.ir.builder import Builder
from gptrs.ir.op import Op
from gptrs.ir.ops.creation import Iota
from gptrs.ir.ops.elementwise import Add, Cos, Exp, Log, Neg, Select, Sin, Sqrt, Tanh
from gptrs.ir.ops.indexing import Take
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_ref.backend import RefBackend

F32 = TensorType(dtypes.f32, (2, 3))
F64 = TensorType(dtypes.f64, (2, 3))
I1 = TensorType(dtypes.i1, (2, 3))
SI32 = TensorType(dtypes.si32, (2, 3))


class TableBackend(RefBackend):
    """A backend that takes what is in a table."""

    name = "tabled"

    def __init__(self, table: OpTable[str]) -> None:
        super().__init__()
        self.table = table

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        return self.table.refusal(op, operands, results)


@pytest.fixture
def table() -> OpTable[str]:
    table: OpTable[str] = OpTable("tabled")
    table.register(Neg, Add, dtypes=[dtypes.f32, dtypes.si32])("arithmetic")
    table.register(Select, Take, dtypes=[dtypes.f32])("moving")
    table.register(Iota, dtypes=[dtypes.si32])("counting")
    return table


def test_register_returns_the_kernel() -> None:
    def kernel() -> None: ...

    assert OpTable("tabled").register(Neg, dtypes=[dtypes.f32])(kernel) is kernel


def test_find_by_op_and_element_type(table: OpTable[str]) -> None:
    assert table.find(Neg(), [F32], [F32]) == "arithmetic"
    assert table.find(Add(), [SI32, SI32], [SI32]) == "arithmetic"
    assert table.find(Neg(), [F64], [F64]) is None
    assert table.find(Tanh(), [F32], [F32]) is None


def test_the_data_operand_decides(table: OpTable[str]) -> None:
    assert Select().key_dtype([I1, F32, F32], [F32]) is dtypes.f32
    assert Take().key_dtype([F32, SI32], [F32]) is dtypes.f32
    assert table.find(Select(), [I1, F32, F32], [F32]) == "moving"


def test_the_result_decides_without_operands(table: OpTable[str]) -> None:
    assert table.find(Iota((2, 3), 0, dtypes.si32), [], [SI32]) == "counting"
    assert table.find(Iota((2, 3), 0, dtypes.f32), [], [F32]) is None


def test_one_entry_for_an_op_and_type(table: OpTable[str]) -> None:
    with pytest.raises(ValueError, match="`neg` on f32 is registered twice"):
        table.register(Neg, dtypes=[dtypes.f32])("another")


def test_a_condition_may_decline() -> None:
    table: OpTable[str] = OpTable("tabled")
    table.register(Neg, dtypes=[dtypes.f32], when=lambda _, x: x[0].rank == 2)("of matrices")
    vector = TensorType(dtypes.f32, (3,))
    assert table.find(Neg(), [F32], [F32]) == "of matrices"
    assert table.find(Neg(), [vector], [vector]) is None
    assert table.accepted(Neg(), [vector], [vector]) == "of matrices"  # it asks nothing
    assert table.refusal(Neg(), [F32], [F32]) is None
    assert table.refusal(Neg(), [vector], [vector]) is not None


def test_dtypes_may_be_an_iterator() -> None:
    table: OpTable[str] = OpTable("tabled")
    table.register(Neg, Add, dtypes=iter([dtypes.f32]))("kernel")
    assert table.find(Add(), [F32, F32], [F32]) == "kernel"


def test_refusal_names_the_op_its_types_and_what_it_takes(table: OpTable[str]) -> None:
    assert table.refusal(Neg(), [F32], [F32]) is None
    assert table.refusal(Neg(), [F64], [F64]) == "`neg` of f64[2, 3] (it takes f32 si32)"
    assert table.refusal(Tanh(), [F64], [F64]) == "`tanh` of f64[2, 3] (no kernel for this op)"
    iota = Iota((2, 3), 0, dtypes.f32)
    assert table.refusal(iota, [], [F32]) == "`iota` of f32[2, 3] (it takes si32)"


def test_coverage_lists_element_types_by_op(table: OpTable[str]) -> None:
    both = (dtypes.f32, dtypes.si32)
    expected = {
        "neg": both,
        "add": both,
        "select": (dtypes.f32,),
        "take": (dtypes.f32,),
        "iota": (dtypes.si32,),
    }
    assert table.coverage() == expected


def test_a_supported_program_passes(table: OpTable[str]) -> None:
    builder = Builder()
    x = builder.param(F32)
    require_supported(TableBackend(table), builder.program(builder.emit(Neg(), x)))


def test_all_refusals_are_named_once(table: OpTable[str]) -> None:
    builder = Builder()
    x, y = builder.param(F32), builder.param(F64)
    for op, operand in ((Tanh(), x), (Tanh(), x), (Neg(), y), (Neg(), x)):
        builder.emit(op, operand)
    with pytest.raises(UnsupportedError) as caught:
        require_supported(TableBackend(table), builder.program())
    assert caught.value.message == (
        "backend `tabled` does not support `tanh` of f32[2, 3] (no kernel for this op); "
        "`neg` of f64[2, 3] (it takes f32 si32)"
    )
    assert caught.value.hint is not None


def test_long_lists_are_cut(table: OpTable[str]) -> None:
    builder = Builder()
    x = builder.param(F32)
    for op in (Tanh(), Sin(), Cos(), Exp(), Log(), Sqrt(), Tanh()):
        builder.emit(op, x)
    with pytest.raises(UnsupportedError, match=r"`log` of .* and 1 more") as caught:
        require_supported(TableBackend(table), builder.program())
    assert "`sqrt`" not in caught.value.message
