"""The table of operations of StableHLO says what the code does."""

from __future__ import annotations

import pytest

pytest.importorskip("jax", reason="the table lists operations that the bindings of JAX know")

import gptrs_backend_jax
import stablehlo_table


def test_the_page_is_up_to_date():
    page = stablehlo_table.PAGE.read_text(encoding="utf-8")
    assert page == stablehlo_table.page_text(), "run tools/stablehlo_table.py"


def test_what_is_refused_is_not_converted():
    converted = gptrs_backend_jax.supported_operations()
    assert not [name for name in stablehlo_table.REFUSED if f"stablehlo.{name}" in converted]
