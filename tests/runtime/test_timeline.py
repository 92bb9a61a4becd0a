"""Intervals nest: each counts the time that no inner one took."""

from __future__ import annotations

import threading

import pytest

from gptrs.spans import Span, span, spans_told
from gptrs_observe import timeline as module
from gptrs_observe.timeline import Interval, Timeline


def interval(name: str, started: float, seconds: float, thread: int | None = None) -> Interval:
    own = threading.get_ident() if thread is None else thread
    return Interval("span", name, "", started, seconds, own)


def test_an_outer_interval_counts_what_is_left():
    timeline = Timeline()
    for each in (
        interval("load", 0.0, 1.0),
        interval("kernel", 2.0, 0.5),
        interval("kernel", 2.5, 0.25),
        interval("run", 2.0, 1.0),
        interval("step", 1.5, 2.0),
    ):
        timeline.add(each)
    assert dict(timeline.own) == {
        ("span", "load"): 1.0,
        ("span", "kernel"): 0.75,
        ("span", "run"): 0.25,
        ("span", "step"): 1.0,
    }


def test_other_threads_are_kept_and_not_added():
    timeline = Timeline()
    timeline.add(interval("elsewhere", 0.0, 5.0, thread=-1))
    timeline.add(interval("here", 0.0, 1.0))
    assert timeline.own == {("span", "here"): 1.0}
    assert len(timeline.intervals) == 2


def test_beyond_the_most_intervals_only_sums_grow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_INTERVALS", 2)
    timeline = Timeline()
    for at in range(5):
        timeline.add(interval("step", float(at), 0.5))
    assert (len(timeline.intervals), timeline.left_out) == (2, 3)
    assert timeline.own["span", "step"] == 2.5


def test_spans_tell_listeners_only_and_end_with_errors():
    told: list[Span] = []
    with span("before"):
        pass
    with spans_told(told.append), pytest.raises(ValueError, match="no"), span("work", "detail"):
        raise ValueError("no")
    with span("after"):
        pass
    (found,) = told
    assert (found.name, found.detail, found.thread) == ("work", "detail", threading.get_ident())
    assert found.seconds >= 0
