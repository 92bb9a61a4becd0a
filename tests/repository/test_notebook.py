"""The notebook of the docs has the cells of its page, and outputs without errors."""

from __future__ import annotations

import json

import pytest

import notebook
from docs_site.notebook_outputs import with_outputs


def test_the_notebook_is_up_to_date():
    kept = json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    made = notebook.cells()
    assert [each["source"] for each in kept] == [each["source"] for each in made], (
        "run tools/notebook.py"
    )
    code = [each for each in kept if each["cell_type"] == "code"]
    assert [each["execution_count"] for each in code] == list(range(1, len(code) + 1))
    assert all(each["outputs"] for each in code)


def test_the_page_of_the_site_shows_the_outputs_of_the_notebook():
    page = notebook.PAGE.read_text(encoding="utf-8")
    shown = with_outputs(page, notebook.NOTEBOOK)
    assert "```\n\n```text\n<LoadedModel demo: " in shown
    assert "<svg" in shown
    assert len(shown) > len(page)
    with pytest.raises(ValueError, match="other cells than its page"):
        with_outputs(page.replace("temperature=0)", "temperature=1)"), notebook.NOTEBOOK)
