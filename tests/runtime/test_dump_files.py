"""The folder of a dump: nothing foreign touched, names stay inside, failures are reported."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from gptrs.errors import ExecutionError, GptrsError, UsageError
from gptrs_observe.dump import DumpFolder, dumping
from runtime.dump_events import (
    compile_one,
    end,
    programs,
    read_json,
    read_lines,
    run,
    start,
)

MARKER = '{\n  "format": "gptrs-dump",\n  "version": 1\n}\n'


def refused(folder: Path) -> str:
    with pytest.raises(UsageError) as caught, dumping(folder):
        pass
    return str(caught.value)


def test_the_folder_is_made_and_is_private(tmp_path):
    with dumping(tmp_path / "a" / "b") as dump:
        compile_one(dump)
        run(dump)
        assert dump.path == tmp_path / "a" / "b"
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert (tmp_path / "a" / "b" / "gptrs-dump.json").read_text(encoding="utf-8") == MARKER


def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")
    assert refused(tmp_path) == (
        f"`{tmp_path}` is neither empty nor an earlier dump, nothing was written;"
        " name a new or empty folder, or one of an earlier dump"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("marker", ['{"format": "gptrs-dump", "version": 2}', "[1]", "\xff"])
def test_a_marker_that_does_not_fit_is_refused(tmp_path, marker):
    (tmp_path / "gptrs-dump.json").write_text(marker, encoding="latin-1")
    assert "is not a dump of version 1" in refused(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["gptrs-dump.json"]


def test_a_file_and_a_name_that_cannot_be_are_no_folder(tmp_path):
    (tmp_path / "file").touch()
    assert "file` is a file" in refused(tmp_path / "file")
    for wrong in (tmp_path / "file" / "below", Path("a\0b")):
        with pytest.raises(GptrsError, match="cannot write the dump"), dumping(wrong):
            pass


def test_a_program_may_change_its_directory(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with dumping("d") as dump:
        monkeypatch.chdir("other")
        compile_one(dump)
    assert programs(tmp_path / "d") == ["program-000000-jit-step"]
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("flush", "flush"),
        ("jit <lambda>", "jit-lambda"),
        ("jit ../../etc/passwd", "jit-etc-passwd"),
        ("jit größe\0\n\x1b[31m", "jit-gr-e-31m"),
        ("../..", "unnamed"),
        ("", "unnamed"),
        ("x" * 300, "x" * 40),
        ("\udcff", "unnamed"),
    ],
)
def test_names_have_no_way_out(tmp_path, origin, expected):
    with dumping(tmp_path / "d") as dump:
        compile_one(dump, origin=origin)
    assert programs(tmp_path / "d") == [f"program-000000-{expected}"]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    meta = read_json(tmp_path / "d" / f"program-000000-{expected}" / "meta.json")
    assert meta["origin"] == origin


def test_numbers_go_on_after_the_largest_whatever_else_is_there(tmp_path):
    with dumping(tmp_path):
        pass
    for name in ("program-000041-x", "program-9", "program-" + "9" * 40 + "-x", "program-abc-x"):
        (tmp_path / name).mkdir()
    with dumping(tmp_path) as dump:
        compile_one(dump)
    assert "program-000042-jit-step" in programs(tmp_path)


FULL = "/dev/full"  # every write to it fails as on a full disk


def test_a_full_disk_is_one_clear_error(tmp_path):
    folder = tmp_path / "program-000000-jit-step"
    with dumping(tmp_path) as dump:
        start(dump)
        (folder / "meta.json").unlink()
        (folder / "meta.json").symlink_to(FULL)
        with pytest.raises(GptrsError) as caught:
            end(dump)
        (tmp_path / "executions.jsonl").symlink_to(FULL)
        with pytest.raises(GptrsError, match=r"executions.jsonl`: No space left on device"):
            run(dump)
    assert str(caught.value) == (
        f"cannot write the dump `{folder}/meta.json`: No space left on device;"
        " make room or name another folder"
    )


def test_its_own_failure_does_not_hide_that_of_the_program(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "gptrs")
    with dumping(tmp_path) as dump:
        compile_one(dump)
        start(dump, 1)
        meta = tmp_path / "program-000001-jit-step" / "meta.json"
        meta.unlink()
        meta.symlink_to(FULL)
        end(dump, 1, error=ExecutionError("its own"))
        run(dump, 1, error=ExecutionError("its own"))
    assert len(caplog.messages) == 2
    assert all(message.startswith("the dump is incomplete: ") for message in caplog.messages)
    (line,) = read_lines(tmp_path / "executions.jsonl")
    assert line["error"] == {"type": "ExecutionError", "message": "its own"}


def test_what_ends_the_scope_is_raised_even_if_the_last_writes_fail(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "gptrs")
    monkeypatch.setattr(DumpFolder, "write", _refuse_stats)

    def dump_and_raise(error: Exception | None) -> None:
        with dumping(tmp_path) as dump:
            start(dump)
            run(dump)
            if error:
                raise error

    with pytest.raises(ZeroDivisionError):
        dump_and_raise(ZeroDivisionError())
    with pytest.raises(GptrsError, match="no room"):
        dump_and_raise(None)
    assert caplog.messages == ["the dump is incomplete: no room"]


def _refuse_stats(_: DumpFolder, folder: str, name: str, text: str) -> None:
    if name == "stats.json":
        raise GptrsError("no room")
