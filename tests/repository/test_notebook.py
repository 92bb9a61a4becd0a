"""The notebook of the docs has the cells of its page, and outputs without errors."""

from __future__ import annotations

import json

import notebook


def test_the_notebook_is_up_to_date():
    kept = json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    made = notebook.cells()
    assert [each["source"] for each in kept] == [each["source"] for each in made], (
        "run tools/notebook.py"
    )
    code = [each for each in kept if each["cell_type"] == "code"]
    assert [each["execution_count"] for each in code] == list(range(1, len(code) + 1))
    assert all(each["outputs"] for each in code)
