"""Segments as subtitles: SubRip (SRT) and WebVTT."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs_runtime.results import Segment


def srt(segments: Sequence[Segment]) -> str:
    """Return segments as a SubRip file."""
    return "\n".join(
        f"{number}\n{_time(each.start, ',')} --> {_time(each.end, ',')}\n{each.text.strip()}\n"
        for number, each in enumerate(segments, start=1)
    )


def vtt(segments: Sequence[Segment]) -> str:
    """Return segments as a WebVTT file."""
    cues = (
        f"{_time(each.start, '.')} --> {_time(each.end, '.')}\n{_escaped(each.text)}\n"
        for each in segments
    )
    return "\n".join(["WEBVTT\n", *cues])


def _escaped(text: str) -> str:
    return text.strip().replace("&", "&amp;").replace("<", "&lt;")


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{milliseconds:03}"
