"""`gptrs list ops`: ops by element types, from what the backend itself says."""

from __future__ import annotations

import gptrs as gptrs_core
from gptrs.ir.dtypes import ALL
from gptrs.ir.op import OPS
from gptrs_conformance.op_case import legal_dtypes
from gptrs_conformance.op_support import op_support
from gptrs_runtime.load_options import LoadOptions


class Picky:
    """Refuses `exp`, `add` unless it is of f32, and `tanh` of tensors of rank 0."""

    name = "picky"
    falls_back_to = None

    def refusal(self, op, operands, results):
        if op.name == "exp":
            return "`exp` (too hard)"
        if op.name == "add" and operands[0].dtype.name != "f32":
            return "`add` (f32 alone)"
        if op.name == "tanh" and not operands[0].rank:
            return "`tanh` (needs an axis)"
        return None


def test_support_is_what_the_backend_says():
    support = op_support(Picky())  # pyright: ignore[reportArgumentType]
    assert support.keys() == OPS.keys()
    assert set(support["exp"].values()) == {"none"}
    assert {dtype for dtype, found in support["add"].items() if found == "all"} == {"f32"}
    assert set(support["tanh"].values()) == {"some"}
    assert set(support["mul"].values()) == {"all"}
    for name, types in support.items():
        assert list(types) == [dtype.name for dtype in legal_dtypes(OPS[name])]


def test_json_is_the_contract(gptrs):
    found = gptrs("list", "ops", "--backend", "ref", "--json").json
    assert found["backend"] == "ref"
    assert found["ops"].keys() == OPS.keys()
    assert found["ops"]["tanh"]["bf16"] == "all"
    assert {state for types in found["ops"].values() for state in types.values()} == {"all"}


def test_the_default_backend_is_asked_without_a_name(gptrs, monkeypatch):
    assert gptrs("list", "ops", "--json").json["backend"] == "ref"
    monkeypatch.delenv("GPTRS_BACKEND")
    assert gptrs("list", "ops", "--json").json["backend"] == gptrs_core.get_backend().name


def test_the_table_has_a_column_for_each_type_and_fits_80_columns(gptrs):
    result = gptrs("list", "ops", "--backend", "ref")
    assert (result.code, result.err) == (0, "")
    kinds, bits, *rest = result.out.splitlines()
    rows, (blank, legend, summary) = rest[:-3], rest[-3:]
    assert max(map(len, result.out.splitlines())) <= 80
    assert kinds.split() == ["i", "si", "ui", "f8", "bf", "f", "cf"]
    assert len(bits.split()) == 1 + len(ALL)
    assert [row.split()[0] for row in rows] == sorted(OPS)
    tanh = next(row for row in rows if row.startswith("tanh"))
    column = bits.index(" 1 ") + 1
    assert tanh.count("x") == len(legal_dtypes(OPS["tanh"]))
    assert tanh[column] == " "  # not defined on i1
    assert blank == ""
    assert "refused" in legend
    assert summary.startswith("backend `ref` takes ")


def test_marks_tell_the_three_states_apart(gptrs, monkeypatch):
    monkeypatch.setattr(LoadOptions, "made_backend", lambda self: Picky())
    lines = {line.split()[0]: line for line in gptrs("list", "ops").out.splitlines() if line}
    assert set(lines["exp"].split()[1:]) == {"-"}
    assert set(lines["tanh"].split()[1:]) == {"~"}
    assert sorted(set(lines["add"].split()[1:])) == ["-", "x"]


def test_an_unknown_backend_exits_with_4(gptrs):
    result = gptrs("list", "ops", "--backend", "abacus")
    assert result.code == 4
    assert "there is no backend `abacus`" in result.err
