"""`gptrs.profiling(folder)`: figures, verdict, traces for other programs, the page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import jsonschema
import numpy as np
import pytest

import gptrs
from gptrs.backend.contract import InputRole, KernelRun
from gptrs.capture.events import CompileEnd, CompileStart, KernelEvent, RunEnd, RunStart
from gptrs.ir import parse_program
from gptrs.spans import Span
from gptrs_observe.attribution import attribution
from gptrs_observe.measure.step_work import MachineLimits
from gptrs_observe.profile import Profile, layer_of
from gptrs_observe.profile_document import profile_document
from gptrs_observe.profile_files import chrome_trace, speedscope
from gptrs_observe.profile_report.page import report_page
from gptrs_observe.verdict import verdict_of

LIMITS = MachineLimits(10.0, 50.0, "ref", 2)
MOST_BYTES = 300_000
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
PROGRAM = parse_program("""
ptir.v0.5
func @main(%x: f32[2, 4], %p1_h_0_w_weight: f32[4, 4], %p2_h_1_w_weight: f32[4, 4]) -> f32[2, 4] {
  %0 = dot_general %x, %p1_h_0_w_weight {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
  %1 = dot_general %0, %p2_h_1_w_weight {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
  return %1
}
""")
ROLES = (InputRole.ARGUMENT, InputRole.PARAMETER, InputRole.PARAMETER)


def profile(
    runs: int = 3, kernel: str = "acme.fast.linear.f32.v1", origin: str = "jit step"
) -> Profile:
    """A profile of `runs` runs of two layers, each with a product and a sum."""
    made = Profile()
    now = made.started
    made.before_program(CompileStart(7, origin, PROGRAM, ROLES, "ref", "not cached"))
    made.after_program(CompileEnd(7, PROGRAM, 0.5, None, found=True))
    for _ in range(runs):
        made.before_run(RunStart(7, True, ((2, 4), (4, 4), (4, 4))))
        for layer in (1, 2):
            types = "f32[2, 4], f32[4, 4] -> f32[2, 4]"
            run = KernelRun(kernel, types, 1e-6, 128, 64, (0, layer), now)
            made.after_kernel(KernelEvent(7, run))
            now += 1e-6
            made.after_kernel(KernelEvent(7, KernelRun("add", "f32[] -> f32[]", 1e-6, None, 8)))
        made.after_run(RunEnd(7, 1e-5, None))
        made.after_span(Span("choose token", "", now, 1e-6, made.timeline.thread))
        now += 1e-5
    made.end()
    return made


def test_layers_are_named_by_weights():
    assert layer_of(["arg0", "p20_transformer_h_5_attn_c_attn_weight"]) == "transformer.h.5"
    assert layer_of(["p2_transformer_wte_weight"]) == "transformer_wte"
    assert layer_of(["derived_model_layers_12_mlp_weight"]) == "model.layers.12"
    assert layer_of(["arg0", "x"]) == ""


def test_a_kernel_belongs_to_the_layer_whose_weights_were_read_last():
    found = cast("Any", profile_document(profile()))
    assert [(each["layer"], each["calls"]) for each in found["layers"]] == [("h.0", 6), ("h.1", 6)]
    assert found["memory"]["weights"] == 128
    assert found["memory"]["arguments"] == 32
    assert found["caches"]["programs_optimized_before"] == 1


def test_the_verdict_says_speed_and_shares_of_the_limits():
    verdict = verdict_of(profile(), LIMITS)
    assert (verdict.program, verdict.tokens) == (7, 3)
    assert verdict.gb_per_s == pytest.approx(0.128)
    assert verdict.share_of_memory == pytest.approx(0.0128)
    assert verdict.gflop_per_s == pytest.approx(0.036)
    assert "tok/s while profiled" in verdict.sentences[0]
    assert "Neither limit is near" in verdict.sentences[-1]
    assert verdict_of(Profile(), LIMITS).sentences == ("No program ran.",)


def test_the_parts_of_the_wall_time_add_up_to_it():
    made = profile()
    parts = attribution(made)
    assert sum(part.seconds for part in parts) == pytest.approx(made.seconds, rel=0.01)
    assert parts[-1].name == "not attributed"


TRACE_SCHEMA = {
    "type": "object",
    "required": ["traceEvents", "displayTimeUnit"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object", "additionalProperties": {"type": "string"}},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["name", "cat", "ph", "ts", "dur", "pid", "tid", "args"],
                        "properties": {
                            "name": {"type": "string", "minLength": 1},
                            "cat": {"type": "string"},
                            "ph": {"const": "X"},
                            "ts": {"type": "number", "minimum": 0},
                            "dur": {"type": "number", "minimum": 0},
                            "pid": {"type": "integer"},
                            "tid": {"type": "integer"},
                            "args": {"type": "object"},
                        },
                    },
                    {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["name", "ph", "pid", "tid", "args"],
                        "properties": {
                            "name": {"enum": ["process_name", "thread_name"]},
                            "ph": {"const": "M"},
                            "pid": {"type": "integer"},
                            "tid": {"type": "integer"},
                            "args": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {"name": {"type": "string"}},
                            },
                        },
                    },
                ]
            },
        },
    },
}
"""The complete and metadata events of Chrome's Trace Event Format, as Perfetto reads them."""


def test_the_chrome_trace_keeps_to_its_format():
    trace = json.loads(json.dumps(chrome_trace(profile())))
    jsonschema.validate(trace, TRACE_SCHEMA)
    kernels = [each for each in trace["traceEvents"] if each.get("cat") == "kernel"]
    assert len(kernels) == 12
    assert kernels[0]["name"] == "linear"
    assert kernels[0]["args"]["layer"] == "h.0"


def test_speedscope_events_are_balanced_and_in_order():
    written = json.loads(json.dumps(speedscope(profile())))
    frames = [each["name"] for each in written["shared"]["frames"]]
    assert "linear" in frames
    for each in written["profiles"]:
        open_: list[int] = []
        last = each["startValue"]
        for event in each["events"]:
            assert event["at"] >= last
            last = event["at"]
            if event["type"] == "O":
                open_.append(event["frame"])
            else:
                assert open_.pop() == event["frame"]
        assert open_ == []
        assert last <= each["endValue"]


class _Page(HTMLParser):
    """Collects the tags and the text of a page; raises for what a strict policy would block."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.shown = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert name not in ("style", "src", "href"), (tag, name, value)

    def handle_data(self, data: str) -> None:
        self.shown += data


def parsed(page: str) -> _Page:
    found = _Page()
    found.feed(page)
    return found


def test_the_page_needs_nothing_from_outside_and_no_script():
    page = report_page(profile(), LIMITS, "gptrs generate")
    found = parsed(page)
    assert "script" not in found.tags
    assert "link" not in found.tags
    assert "default-src &#x27;none&#x27;" in page
    assert "http" not in re.sub(r'http-equiv="', "", page)
    assert "prefers-color-scheme: dark" in page
    assert found.shown.index("tok/s while profiled") < found.shown.index("Where the time went")
    for title in ("Roofline", "Time by layer", "Time by kernel", "A step in time", "Memory"):
        assert title in found.shown


def test_names_out_of_programs_stay_text():
    made = profile(kernel=HOSTILE, origin=f"jit {HOSTILE}")
    found = parsed(report_page(made, LIMITS, HOSTILE))
    assert "script" not in found.tags
    assert "img" not in found.tags
    assert "alert(1)" in found.shown


def test_a_page_stays_small_whatever_ran():
    made = profile(runs=400)
    for at in range(3000):
        run = KernelRun(f"kernel{at}" + "x" * 900, "f32[9], " * 200, 1e-3, 8, 8)
        made.after_kernel(KernelEvent(7, run))
    page = report_page(made, LIMITS)
    assert len(page.encode()) <= MOST_BYTES
    assert "more are in profile.json" in page


def test_a_real_run_writes_all_files(tmp_path: Path):
    inputs = {
        "x": np.ones((2, 4), np.float32),
        "p1_h_0_w_weight": np.eye(4, dtype=np.float32),
        "p2_h_1_w_weight": np.eye(4, dtype=np.float32),
    }
    with gptrs.profiling(tmp_path / "out", "two products") as made:
        gptrs.run_program(PROGRAM, inputs, backend="ref")
    assert made.programs
    found = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert [each["runs"] for each in found["programs"]] == [1]
    assert found["machine"] is None, "the reference backend times no kernels"
    assert "two products" in (tmp_path / "out" / "report.html").read_text()


def test_the_numba_backend_says_layers_and_operations():
    pytest.importorskip("gptrs_backend_numba")
    x, weight = np.ones((2, 4), np.float32), np.eye(4, dtype=np.float32)
    inputs = dict(
        zip(("x", "p1_h_0_w_weight", "p2_h_1_w_weight"), (x, weight, weight), strict=True)
    )
    with gptrs.profiling() as made:
        gptrs.run_program(PROGRAM, inputs, backend="numba")
    (program,) = made.programs.values()
    assert set(program.layers) >= {"h.0", "h.1"}
    assert sum(totals.operations or 0 for totals in program.kernels.values()) >= 2 * 2 * 2 * 4 * 4


def test_chromium_shows_the_page_without_errors(tmp_path: Path):
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    page = tmp_path / "report.html"
    page.write_text(report_page(profile(kernel=HOSTILE), LIMITS, HOSTILE), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    done = subprocess.run(
        [chromium, *flags, f"--user-data-dir={tmp_path / 'home'}", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "</html>" not in done.stdout:
        pytest.skip(f"chromium does not start here: {done.stderr[-200:]}")
    assert "CONSOLE" not in done.stderr, "a violation of the policy, or an error"
    assert "tok/s while profiled" in done.stdout
    assert "<script" not in done.stdout
