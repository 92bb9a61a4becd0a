"""A dump stays in its folder: no link is followed, nothing foreign touched, failures are told."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from pathlib import Path

import pytest

from gptrs.errors import ExecutionError, GptrsError, UsageError
from gptrs.runtime.observe.dump import dumping
from gptrs.runtime.observe.dump_files import DumpFolder
from runtime.dump_events import (
    PASS,
    compile_one,
    end,
    programs,
    read_json,
    read_lines,
    run,
    start,
)

MARKER = '{"format": "gptrs-dump", "version": 1}\n'


def refused(folder: Path) -> str:
    with pytest.raises(UsageError) as caught, dumping(folder):
        pass
    return str(caught.value)


def test_the_folder_is_made_and_is_private(tmp_path):
    with dumping(tmp_path / "a" / "b") as dump:
        compile_one(dump)
        run(dump)
        assert dump.path == tmp_path / "a" / "b"
    for path in [tmp_path / "a" / "b", *(tmp_path / "a" / "b").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert (tmp_path / "a" / "b" / "gptrs-dump.json").read_text(encoding="utf-8") == MARKER


def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")
    assert refused(tmp_path) == (
        f"`{tmp_path}` is neither empty nor an earlier dump, nothing was written;"
        " name a new or an empty folder, or that of an earlier dump"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "marker",
    [
        '{"format": "gptrs-dump", "version": 2}',
        '{"format": "other", "version": 1}',
        '{"version": 1, "version": 1}',
        "[1]",
        "",
        "[" * 5000,
    ],
)
def test_a_marker_that_does_not_fit_is_refused(tmp_path, marker):
    (tmp_path / "gptrs-dump.json").write_text(marker, encoding="utf-8")
    assert "gptrs-dump.json" in refused(tmp_path) or "no dump of version 1" in refused(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["gptrs-dump.json"]


def test_a_link_a_file_and_a_name_that_cannot_be_are_no_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "hanging").symlink_to("nowhere")
    (tmp_path / "file").touch()
    assert "link` is a link, which is not followed" in refused(tmp_path / "link")
    assert "link` is a link" in refused(Path(f"{tmp_path}/link/"))
    assert "hanging` is a link" in refused(tmp_path / "hanging")
    assert "file` is no folder" in refused(tmp_path / "file")
    for wrong in (tmp_path / "file" / "below", Path("a\0b")):
        with pytest.raises(GptrsError, match="cannot write the dump"), dumping(wrong):
            pass
    assert list((tmp_path / "real").iterdir()) == []
    assert not (tmp_path / "nowhere").exists()


def test_a_parent_may_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with dumping(tmp_path / "link" / "d") as dump:
        compile_one(dump)
    assert programs(tmp_path / "real" / "d") == ["program-000000-jit-step"]


def test_a_marker_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "outside").write_text(MARKER, encoding="utf-8")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "gptrs-dump.json").symlink_to("../outside")
    with pytest.raises(GptrsError, match="it is a link, which is not followed"):
        DumpFolder(tmp_path / "d")


@pytest.mark.parametrize("name", ["passes.jsonl", "executions.jsonl"])
@pytest.mark.parametrize("kind", ["symbolic", "hanging", "hard", "pipe"])
def test_a_link_is_not_followed_to_add_a_line(tmp_path, name, kind):
    outside, folder = tmp_path / "outside", tmp_path / "d"
    if kind != "hanging":
        outside.write_text("mine\n", encoding="utf-8")
    with dumping(folder) as dump:
        if kind == "hard":
            (folder / name).hardlink_to(outside)
        elif kind == "pipe":
            os.mkfifo(folder / name)
        else:
            (folder / name).symlink_to(outside)
        start(dump)
        with pytest.raises(GptrsError, match="cannot write the dump") as caught:
            dump.after_pass(PASS) if name == "passes.jsonl" else run(dump)
    kept = kind in ("hard", "pipe")
    assert ("it is no file of its own" if kept else "it is a link, which") in str(caught.value)
    assert f"d/{name}`" in str(caught.value)
    assert outside.exists() is (kind != "hanging")
    assert kind == "hanging" or outside.read_text(encoding="utf-8") == "mine\n"


def test_a_file_that_became_a_link_is_replaced_not_followed(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "d" / "program-000000-jit-step"
    outside.write_text("mine", encoding="utf-8")
    with dumping(tmp_path / "d") as dump:
        start(dump)
        for name in ("meta.json", "optimized.ptir", "stats.json"):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(outside)
        end(dump)
    assert outside.read_text(encoding="utf-8") == "mine"
    assert read_json(folder / "meta.json")["state"] == "compiled"
    assert not any(path.is_symlink() for path in folder.iterdir())


def test_a_program_folder_that_became_a_link_is_not_followed(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "d" / "program-000000-jit-step"
    outside.mkdir()
    with dumping(tmp_path / "d") as dump:
        start(dump)
        folder.rename(tmp_path / "aside")
        folder.symlink_to(outside)
        with pytest.raises(GptrsError, match="cannot write the dump"):
            end(dump)
    assert list(outside.iterdir()) == []


def test_a_folder_that_was_moved_away_is_still_the_one_written_to(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    with dumping(tmp_path / "d") as dump:
        (tmp_path / "d").rename(tmp_path / "moved")
        (tmp_path / "d").symlink_to(outside)
        compile_one(dump)
    assert list(outside.iterdir()) == []
    assert programs(tmp_path / "moved") == ["program-000000-jit-step"]


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


def test_a_line_that_was_cut_short_does_not_spoil_the_next(tmp_path, monkeypatch):
    write = os.write

    def cut(descriptor, data):
        return write(descriptor, data[:10])

    with dumping(tmp_path) as dump:
        compile_one(dump)
        run(dump)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", cut)
            with pytest.raises(GptrsError, match="No space left on device; make room or name"):
                run(dump)
        run(dump)
    first, torn, last = (tmp_path / "executions.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(first)["program"] == json.loads(last)["program"] == 0
    assert len(torn) == 10


def test_a_full_disk_is_one_clear_error_and_leaves_no_litter(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with dumping(tmp_path) as dump:
        start(dump)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(GptrsError) as caught:
                end(dump)
    folder = tmp_path / "program-000000-jit-step"
    assert str(caught.value) == (
        f"cannot write the dump `{folder}/meta.json`: No space left on device;"
        " make room or name another folder"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["meta.json", "program.ptir"]


def test_its_own_failure_does_not_hide_that_of_the_program(tmp_path, monkeypatch, caplog):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    caplog.set_level(logging.WARNING, "gptrs")
    with dumping(tmp_path) as dump:
        compile_one(dump)
        start(dump, 1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            end(dump, 1, error=ExecutionError("its own"))
            run(dump, error=ExecutionError("its own"))
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


def test_descriptors_are_given_back(tmp_path):
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with dumping(tmp_path / "d") as dump:
        compile_one(dump)
        run(dump)
        assert count() == before + 1
    refused(tmp_path / "other")
    assert count() == before
