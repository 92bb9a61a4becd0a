"""The op reference in the documentation is what the classes say, and its examples are PTIR."""

from __future__ import annotations

import re

import pytest

import op_reference
from gptrs.ir import OPS, parse_program, print_program

TEXT = op_reference.PATH.read_text(encoding="utf-8")
EXAMPLES = [match[1] for match in re.finditer(r"```ptir\n(.*?)```", TEXT, re.DOTALL)]


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


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_canonical_programs(text: str) -> None:
    assert print_program(parse_program(text)) == text


def test_there_are_examples() -> None:
    assert EXAMPLES
