"""Files of rows, and the folder of results on the way."""

from __future__ import annotations

import json

import pytest

from gptrs.api import UsageError

pytest.importorskip("ray", reason="Ray is not installed")
pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from gptrs_ray.cluster import InputRowsError, OutputRowsError  # noqa: E402
from gptrs_ray.records import (  # noqa: E402
    Parts,
    count_rows,
    format_of,
    slices,
    write_rows,
)

ROWS = [{"id": number, "text": f"text {number}"} for number in range(7)]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_come_back_in_slices(tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    with path.open("wb") as file:
        write_rows(file, suffix, ROWS)
    assert count_rows(path) == 7
    assert list(slices(path, 3)) == [ROWS[:3], ROWS[3:6], ROWS[6:]]


def test_other_formats_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"neither \.jsonl nor \.parquet"):
        format_of(tmp_path / "rows.csv")
    bad = tmp_path / "rows.parquet"
    bad.write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(InputRowsError, match="cannot read"):
        count_rows(bad)
    lines = tmp_path / "rows.jsonl"
    lines.write_text('{"a": 1}\n[2]\n')
    with pytest.raises(InputRowsError, match="line 2 of"):
        list(slices(lines, 2))
    with pytest.raises(InputRowsError):
        count_rows(tmp_path / "missing.jsonl")


def test_numbers_that_json_lacks_are_refused(tmp_path):
    with (
        (tmp_path / "out.jsonl").open("wb") as file,
        pytest.raises(OutputRowsError, match="cannot be represented in JSON"),
    ):
        write_rows(file, ".jsonl", [{"output": [float("nan")]}])


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_parts_are_joined_in_order_and_then_gone(tmp_path, suffix):
    out = tmp_path / f"out{suffix}"
    with Parts(out, {"task": "embed"}) as parts:
        parts.write(1, [{"id": 3, "error": "no"}])
        parts.write(0, [{"id": 1, "error": None}, {"id": 2, "error": None}])
        assert not out.exists()
        parts.publish(2)
    (found,) = slices(out, 10)
    assert [row["id"] for row in found] == [1, 2, 3]
    assert found[2]["error"] == "no"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_what_is_done_is_found_again_and_nothing_else_is_taken_for_it(tmp_path):
    out = tmp_path / "out.jsonl"
    with Parts(out, {"task": "embed", "rows": 2}) as parts:
        parts.require_model("a")
        parts.write(4, [{"id": 1}])
    with Parts(out, {"task": "embed", "rows": 2}) as parts:
        assert parts.done == {4}
        with pytest.raises(OutputRowsError, match="before it was changed"):
            parts.require_model("b")
    with pytest.raises(OutputRowsError, match="another `rows`"), Parts(out, {"task": "embed"}):
        pass


def test_two_runs_do_not_write_the_same_results(tmp_path):
    out = tmp_path / "out.jsonl"
    with (
        Parts(out, {}),
        pytest.raises(OutputRowsError, match="another process writes"),
        Parts(out, {}),
    ):
        pass


def test_a_file_that_is_there_is_not_replaced(tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text(json.dumps({"mine": 1}))
    with pytest.raises(OutputRowsError, match="is there already"), Parts(out, {}):
        pass
    assert json.loads(out.read_text()) == {"mine": 1}
