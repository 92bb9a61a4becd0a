"""The op reference in the documentation is what the classes say."""

from __future__ import annotations

from pathlib import Path

import elementwise_functions
import gptrs
import op_reference
from gptrs.ir import OPS

TEXT = op_reference.PATH.read_text(encoding="utf-8")


def test_the_reference_is_up_to_date() -> None:
    assert op_reference.with_reference(TEXT) == TEXT, "run `python tools/op_reference.py`"


def test_every_op_has_an_entry_with_a_definition() -> None:
    for name, op in OPS.items():
        assert f"#### `{name}`\n" in TEXT
        assert op.__doc__
        assert op_reference.entry(op) in TEXT


def test_every_family_of_the_package_is_listed() -> None:
    modules = {op.__module__.rpartition(".")[2] for op in OPS.values()}
    assert modules == set(op_reference.FAMILIES)


def test_the_functions_of_elementwise_ops_are_up_to_date() -> None:
    for name, make in elementwise_functions.FILES.items():
        text = (Path(gptrs.__file__).parent / name).read_text(encoding="utf-8")
        advice = "run `python tools/elementwise_functions.py`"
        assert elementwise_functions.written(text, make()) == text, advice
