"""The tables of operators say what the code does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the table lists operators of torch")
onnx = pytest.importorskip("onnx", reason="the table lists operators of onnx")

import import_tables  # noqa: E402
from gptrs_torch.conversion import converts  # noqa: E402


def test_the_page_of_torch_is_up_to_date():
    text = import_tables.torch_text()
    page = import_tables.TORCH_PAGE.read_text(encoding="utf-8")
    if f"torch {'.'.join(torch.__version__.split('.')[:2])}:" not in page:
        pytest.skip("the page is of another release of torch")
    assert page == text, "run tools/import_tables.py"


def test_the_page_of_onnx_is_up_to_date():
    page = import_tables.ONNX_PAGE.read_text(encoding="utf-8")
    if f"onnx {'.'.join(onnx.__version__.split('.')[:2])}." not in page:
        pytest.skip("the page is of another release of onnx")
    assert page == import_tables.onnx_text(), "run tools/import_tables.py"


def test_what_is_refused_is_not_converted():
    core = import_tables.core_operators()
    for name in import_tables.TORCH_REFUSED:
        assert name in core, f"{name} is no operator of core ATen"
        assert name not in converts, f"{name} is converted: take it off the list"
    states = import_tables.torch_states().values()
    assert sum(not state.startswith("refused") for state in states) >= 0.9 * len(states)
