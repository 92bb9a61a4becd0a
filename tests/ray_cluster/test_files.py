"""Files of rows, and the folder of results on the way."""

from __future__ import annotations

import json

import pytest

from gptrs.api import UsageError

pytest.importorskip("ray", reason="Ray is not installed")
pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from gptrs_ray.cluster import InputRowsError, OutputRowsError  # noqa: E402
from gptrs_ray.records import Results, format_of, records, write_rows  # noqa: E402

ROWS = [{"id": number, "text": f"text {number}"} for number in range(7)]


def rows_of(path):
    return [record.row for record in records(path)]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_come_back_with_their_numbers(tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    with path.open("wb") as file:
        write_rows(file, suffix, lambda: ROWS)
    found = list(records(path))
    assert [record.row for record in found] == ROWS
    word = "line" if suffix == ".jsonl" else "row"
    assert str(found[6]) == f"{word} 7 of `{path}` (id 6)"


def test_other_formats_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"neither \.jsonl nor \.parquet"):
        format_of(tmp_path / "rows.csv")
    bad = tmp_path / "rows.parquet"
    bad.write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(InputRowsError, match="cannot read"):
        list(records(bad))
    with pytest.raises(InputRowsError):
        list(records(tmp_path / "missing.jsonl"))


def test_a_line_that_is_no_row_keeps_the_others_readable(tmp_path, monkeypatch):
    monkeypatch.setattr("gptrs_ray.records.LONGEST_LINE", 40)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n[2]\n{"a": "' + "x" * 200 + '"}\n{"a": 3}')
    found = list(records(path))
    assert [record.row for record in found] == [{"a": 1}, {}, {}, {"a": 3}]
    assert [record.problem is None for record in found] == [True, False, False, True]
    assert "line 3 of" in found[1].problem
    assert "more than 40 bytes" in found[2].problem
    assert str(found[3]).startswith("line 5 of")


def test_equal_rows_are_told_apart_and_a_moved_row_is_known_again(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1, "b": 2}\n{"a": 1, "b": 2}\n{"a": 2}\n')
    keys = [record.key for record in records(path)]
    assert len(set(keys)) == 3
    path.write_text('{"a": 2}\n{"b": 2, "a": 1}\n{"a": 1, "b": 2}\n')
    assert [record.key for record in records(path)] == [keys[2], keys[0], keys[1]]


def test_numbers_that_json_lacks_are_refused(tmp_path):
    with (
        (tmp_path / "out.jsonl").open("wb") as file,
        pytest.raises(OutputRowsError, match="cannot be represented in JSON"),
    ):
        write_rows(file, ".jsonl", lambda: [{"output": [float("nan")]}])


def test_columns_of_other_types_in_later_rows_fit_or_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("gptrs_ray.parquet._AT_ONCE", 2)
    path = tmp_path / "out.parquet"
    rows = [{"a": None}, {"a": None}, {"a": 1}, {"a": 2, "late": "x"}, {"a": 0.5}]
    with path.open("wb") as file:
        write_rows(file, ".parquet", lambda: rows)
    found = rows_of(path)
    assert [row["a"] for row in found] == [None, None, 1.0, 2.0, 0.5]
    assert [row["late"] for row in found] == [None, None, None, "x", None]
    with (
        path.open("wb") as file,
        pytest.raises(OutputRowsError, match="do not fit one table"),
    ):
        write_rows(file, ".parquet", lambda: [*rows, {"a": "text"}, {"a": "text"}])


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_results_are_joined_in_order_and_the_folder_is_gone(tmp_path, suffix):
    source, out = tmp_path / "in.jsonl", tmp_path / f"out{suffix}"
    source.write_text('{"id": 1}\n{"id": 2}\n[]\n')
    one, two, bad = list(records(source))
    with Results(out, {"task": "embed"}) as results:
        results.write({two.key: {"found": [0.5]}, bad.key: {"error": "no"}})
        results.write({one.key: {"found": [float("inf") if suffix == ".parquet" else 1.5]}})
        assert not out.exists()
        results.publish(lambda: records(source), {"found": None, "error": None}, bad=True)
    found = rows_of(out)
    assert [row.get("id") for row in found] == [1, 2, None]
    assert [row["error"] for row in found] == [None, None, "no"]
    assert found[1]["found"] == [0.5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", out.name]


def test_what_is_done_is_found_again_and_nothing_else_is_taken_for_it(tmp_path):
    out = tmp_path / "out.jsonl"
    with Results(out, {"task": "embed"}) as results:
        results.require_model("a")
        results.write({b"1": {"found": 1}, b"2": {"error": "no"}})
    with Results(out, {"task": "embed"}) as results:
        assert results.find(b"1", bad=False) == {"found": 1}
        assert results.find(b"2", bad=False) is None
        assert results.find(b"2", bad=True) == {"error": "no"}
        with pytest.raises(OutputRowsError, match="before it was changed"):
            results.require_model("b")
    with pytest.raises(OutputRowsError, match="another `task`"), Results(out, {"task": "tag"}):
        pass
    (tmp_path / "out.jsonl.parts" / "results.sqlite").write_bytes(b"not a database" * 100)
    with (
        pytest.raises(OutputRowsError, match="cannot be used"),
        Results(out, {"task": "embed"}),
    ):
        pass


def test_rows_that_change_meanwhile_are_not_published(tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"id": 1}\n')
    with Results(out, {}) as results:
        results.write({record.key: {"found": 1} for record in records(source)})
        source.write_text('{"id": 2}\n')
        with pytest.raises(InputRowsError, match=r"line 1 of .* \(id 2\) was changed"):
            results.publish(lambda: records(source), {"found": None}, bad=False)
    assert not out.exists()


def test_two_runs_do_not_write_the_same_results(tmp_path):
    out = tmp_path / "out.jsonl"
    with (
        Results(out, {}),
        pytest.raises(OutputRowsError, match="another process writes"),
        Results(out, {}),
    ):
        pass


def test_a_file_that_is_there_is_not_replaced(tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text(json.dumps({"mine": 1}))
    with pytest.raises(OutputRowsError, match="already exists"), Results(out, {}):
        pass
    assert json.loads(out.read_text()) == {"mine": 1}
