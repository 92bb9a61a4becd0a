"""What a dump holds: texts, records of compilation, passes and runs; what adds to it, and when."""

from __future__ import annotations

import re
import threading

import pytest

import gptrs
from gptrs.capture.events import RunEnd
from gptrs.errors import UsageError
from gptrs_observe.dump import dumping
from runtime.dump_events import (
    CAPTURED,
    OPTIMIZED,
    PASS,
    compile_one,
    end,
    programs,
    read_json,
    read_lines,
    run,
    start,
)

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def test_a_program_has_its_two_texts_and_its_records(tmp_path):
    with dumping(tmp_path) as dump:
        compile_one(dump)
    folder = tmp_path / "program-000000-jit-step"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gptrs-dump.json", folder.name]
    assert sorted(path.name for path in folder.iterdir()) == [
        "meta.json",
        "optimized.ptir",
        "program.ptir",
        "stats.json",
    ]
    assert (folder / "program.ptir").read_text(encoding="utf-8") == CAPTURED
    assert (folder / "optimized.ptir").read_text(encoding="utf-8") == OPTIMIZED


def test_meta_says_what_the_program_is_and_why_it_was_compiled(tmp_path):
    with dumping(tmp_path) as dump:
        compile_one(dump)
    meta = read_json(tmp_path / "program-000000-jit-step" / "meta.json")
    assert TIME.fullmatch(meta.pop("time"))
    assert meta.pop("run")
    assert meta == {
        "number": 0,
        "origin": "jit step",
        "backend": "ref",
        "gptrs": gptrs.__version__,
        "ptir": "ptir.v0.5",
        "state": "compiled",
        "error": None,
        "cache": {"hit": False, "reason": "shape"},
        "compile_seconds": 0.5,
        "ops": {
            "before": {"instructions": 4, "tanh": 2, "dot_general": 1, "add": 1},
            "after": {"instructions": 3, "dot_general": 1, "tanh": 1, "add": 1},
        },
        "signature": {
            "inputs": [
                {"name": "x", "type": "f32[2, 3]", "role": "argument"},
                {"name": "w", "type": "f32[3, 4]", "role": "parameter"},
            ],
            "results": ["f32[2, 4]"],
        },
    }


def test_passes_are_lines_and_totals(tmp_path):
    with dumping(tmp_path) as dump:
        compile_one(dump, 7, "flush")
        start(dump)
        dump.after_pass(PASS)
        end(dump)
    fields = {
        "stage": "clean-up",
        "name": "common-subexpressions",
        "round": 1,
        "changed": True,
        "before": 4,
        "after": 3,
        "seconds": 0.25,
    }
    (line,) = read_lines(tmp_path / "passes.jsonl")
    assert line.pop("run")
    assert line == {"program": 1, **fields}
    stats = read_json(tmp_path / "program-000001-jit-step" / "stats.json")
    assert stats == {
        "program": 1,
        "passes": [fields],
        "totals": {"passes": 1, "changed": 1, "pass_seconds": 0.25, "compile_seconds": 0.5},
        "runs": {"count": 0, "failed": 0, "seconds": {"total": 0, "min": None, "mean": None}},
    }


def test_each_run_is_a_line_and_counts(tmp_path):
    with dumping(tmp_path) as dump:
        compile_one(dump)
        run(dump, seconds=0.5, cached=False)
        run(dump, seconds=0.25)
    first, second = read_lines(tmp_path / "executions.jsonl")
    assert first.keys() == {"run", "program", "cached", "time", "seconds", "error"}
    assert (first["program"], first["cached"], first["seconds"]) == (0, False, 0.5)
    assert (second["program"], second["cached"], second["seconds"]) == (0, True, 0.25)
    assert first["error"] is None
    assert TIME.fullmatch(first["time"])
    assert first["time"] <= second["time"]
    stats = read_json(tmp_path / "program-000000-jit-step" / "stats.json")
    assert stats["runs"] == {
        "count": 2,
        "failed": 0,
        "seconds": {"total": 0.75, "min": 0.25, "mean": 0.375},
    }


def test_mode_compile_leaves_out_executions_but_counts_them(tmp_path):
    with dumping(tmp_path, mode="compile") as dump:
        start(dump)
        dump.after_pass(PASS)
        end(dump)
        run(dump)
    assert not (tmp_path / "executions.jsonl").exists()
    assert len(read_lines(tmp_path / "passes.jsonl")) == 1
    stats = read_json(tmp_path / "program-000000-jit-step" / "stats.json")
    assert stats["runs"]["count"] == 1


def test_an_unknown_mode_is_refused_before_anything_is_written(tmp_path):
    with (
        pytest.raises(UsageError, match="the mode of a dump is `all` or `compile`, got `both`"),
        dumping(tmp_path / "new", mode="both"),  # pyright: ignore[reportArgumentType]
    ):
        pass
    assert not (tmp_path / "new").exists()


def test_programs_from_before_the_dump_have_lines_but_no_folder(tmp_path):
    with dumping(tmp_path) as dump:
        run(dump, 5)
        dump.after_pass(PASS)
        end(dump)
        dump.after_run(RunEnd(5, 0.5, None))
    assert programs(tmp_path) == []
    whole, half = read_lines(tmp_path / "executions.jsonl")
    assert (whole["program"], whole["cached"]) == (None, True)
    assert (half["program"], half["cached"], half["time"]) == (None, None, None)


def test_a_second_dump_adds_to_the_first(tmp_path):
    for _ in range(2):
        with dumping(tmp_path / "d") as dump:
            compile_one(dump)
            run(dump)
            assert dump.programs == 1
    assert programs(tmp_path / "d") == ["program-000000-jit-step", "program-000001-jit-step"]
    lines = read_lines(tmp_path / "d" / "executions.jsonl")
    assert [line["program"] for line in lines] == [0, 1]
    assert lines[0]["run"] != lines[1]["run"]
    meta = read_json(tmp_path / "d" / "program-000001-jit-step" / "meta.json")
    assert (meta["number"], meta["run"]) == (1, lines[1]["run"])


def test_a_closed_dump_ignores_what_comes_late(tmp_path):
    with dumping(tmp_path) as dump:
        start(dump)
        start(dump, 1)
        end(dump, 1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    compile_one(dump, 2)
    dump.after_pass(PASS)
    end(dump)
    run(dump, 1)
    dump.close()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_threads_and_dumps_at_once_lose_nothing_and_mix_nothing(tmp_path):
    barrier = threading.Barrier(8)
    failures: list[BaseException] = []

    def work(dump, first):
        try:
            barrier.wait()
            for number in range(first, first + 10):
                compile_one(dump, number, f"jit f{number}")
                run(dump, number)
        except BaseException as error:
            failures.append(error)

    with dumping(tmp_path) as one, dumping(tmp_path) as two:
        workers = [
            threading.Thread(target=work, args=(dump, 100 * dump_number + 10 * part))
            for dump_number, dump in enumerate((one, two))
            for part in range(4)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert failures == []
    found = programs(tmp_path)
    assert [int(name.split("-")[1]) for name in found] == list(range(80))
    lines = read_lines(tmp_path / "executions.jsonl")
    assert sorted(line["program"] for line in lines) == list(range(80))
    runs = {line["program"]: line["run"] for line in lines}
    for name in found:
        meta = read_json(tmp_path / name / "meta.json")
        assert (meta["state"], meta["run"]) == ("compiled", runs[meta["number"]])
        assert name.endswith(meta["origin"].replace(" ", "-"))
