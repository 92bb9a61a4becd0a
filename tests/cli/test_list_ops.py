"""`gptrs list ops`: ops by element types, from what the backend itself says."""

from __future__ import annotations

import gptrs as gptrs_core
from gptrs.ir.dtypes import ALL
from gptrs.ir.op import OPS
from gptrs.ir.ops.custom_call import CustomCall
from gptrs_conformance.op_case import legal_dtypes
from gptrs_conformance.op_support import op_support
from gptrs_runtime.load_options import LoadOptions


class Picky:
    """Refuses `exp`, `add` unless it is of f32, and `tanh` of tensors of rank 0."""

    name = "picky"
    falls_back_to = None

    def claim(self, op, operands, results) -> CustomCall | None:
        return None

    def legalize(self):
        return ()

    def refusal(self, op, operands, results) -> str | None:
        if op.name == "exp":
            return "`exp` (too hard)"
        if op.name == "add" and operands[0].dtype.name != "f32":
            return "`add` (f32 alone)"
        if op.name == "tanh" and not operands[0].rank:
            return "`tanh` (needs an axis)"
        return None


class Claiming(Picky):
    """Has a kernel for softmax."""

    def refusal(self, op, operands, results):
        return "`erf` (too hard)" if op.name == "erf" else None

    def claim(self, op, operands, results):
        return CustomCall("picky.softmax.v1", tuple(results)) if op.title == "softmax" else None


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
    rows, (blank, legend, summary, kernels) = rest[:-4], rest[-4:]
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
    assert "it runs their ops" in kernels


def test_who_computes_functionals_is_a_table_where_a_backend_has_kernels(gptrs, monkeypatch):
    monkeypatch.setattr(LoadOptions, "made_backend", lambda self: Claiming())
    out = gptrs("list", "ops").out
    table = out[out.index("who computes") :].splitlines()
    assert " ".join(table[1].split()) == "FUNCTIONAL A KERNEL FOR IT ITS OPS REFUSED"
    rows = {line.split()[0]: line.split()[1:] for line in table[2:]}
    assert len(rows["softmax"]) == 1
    found = gptrs("list", "ops", "--json").json["functionals"]
    assert found["softmax"].keys() == {"kernel"}
    assert found["gelu"].keys() == {"decomposition", "refused"}


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
