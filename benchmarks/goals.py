"""What each row of the standard set is to reach, and whether it does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from gptrs_observe.measure.bench import AGAIN

Row: TypeAlias = dict[str, object]
_WEIGHTS = "weights on disk"


@dataclass(frozen=True)
class Goal:
    """A bound for rows whose work and peer match: on the figure itself, or on the ratio."""

    work: str
    peer: str
    threads: int | None
    """None for any number."""
    ratio: float | None = None
    """At least so many times as fast as the peer."""
    most: float | None = None
    """In the unit of the row."""

    def concerns(self, row: Row) -> bool:
        """Whether the goal is one for this row."""
        peer = str(row["peer_name"] or "")
        return (
            self.threads in (None, row["threads"])
            and re.fullmatch(self.work, str(row["work"])) is not None
            and re.fullmatch(self.peer, peer) is not None
        )


def _ratios(work: str, peer: str, one: float, two: float) -> list[Goal]:
    return [Goal(work, peer, threads, ratio) for threads, ratio in ((1, one), (2, two))]


_DECODE = "decode after 128 tokens"
GOALS: tuple[Goal, ...] = (
    *_ratios(rf"GPT-2 124M f32: {_DECODE}", "torch", 2.2, 2.0),
    *_ratios(rf"GPT-2 124M bf16: {_DECODE}", "gptrs f32", 1.8, 1.6),
    *_ratios(r"GPT-2 124M f32: prefill of (128|512) tokens", "torch", 2.2, 2.0),
    Goal(r"GPT-2 124M f32: first token, .* new lengths .*", AGAIN, None, 0.87),
    Goal(r"GPT-2 124M f32: first token, .* new lengths .*", "torch", None, 2.5),
    Goal(r"GPT-2 124M f32: first token, .* new lengths .*", "llama.cpp", None, 1.5),
    Goal(r"Llama .* bf16: first token, .* new lengths .*", AGAIN, None, 0.91),
    Goal(r"GPT-2 124M f32: decode of 8 texts .*", "llama.cpp", None, 1.2),
    Goal(r"GPT-2 124M f32: decode of 32 texts .*", "llama.cpp", None, 2.0),
    Goal(r"GPT-2 124M f32: prefill of 8 texts .*", "one text .*", None, 0.9),
    Goal(r"GPT-2 124M f32: prefill of .* known ones", ".* alone", None, 0.83),
    *_ratios(r"ResNet-34 .*", "torch.*", 2.0, 1.7),
    *_ratios(r"ResNet-34 .*", "OpenVINO.*", 1.2, 1.1),
    *_ratios(r"MobileNetV2 .*", "torch.*", 4.5, 4.0),
    *_ratios(r"MobileNetV2 .*", "OpenVINO.*", 1.1, 1.0),
    Goal(r"MiniLM f32: .*", "sentence-transformers", None, 2.5),
    Goal(r"MiniLM f32: .*", "ONNX Runtime|OpenVINO", None, 1.3),
    Goal(r"ViT-B/16 f32: .*", "torch", None, 1.8),
    Goal(r"ViT-B/16 f32: .*", "OpenVINO", None, 1.2),
    Goal("first run ever, empty cache, to first token", "", None, most=40),
    Goal("first run, kernels installed, to first token", "", None, most=1.0),
    Goal("process start to first token, warm", "", None, most=1.5),
    Goal("Python for a token of the demo model", "", None, most=150),
)


def goal_text(row: Row, rows: list[Row]) -> str:
    """The goal for a row of `rows` and whether it is met; empty where there is none."""
    goal = _memory_goal(rows) if row["work"] == "resident memory in decode" else None
    goal = goal or next((each for each in GOALS if each.concerns(row)), None)
    if goal is None:
        return ""
    if goal.ratio is not None:
        met = isinstance(row["ratio"], float) and row["ratio"] >= goal.ratio
        return f">= {goal.ratio:.1f}x, {'met' if met else 'missed'}"
    assert goal.most is not None, "a goal bounds one or the other"
    met = isinstance(row["ours"], int | float) and row["ours"] <= goal.most
    return f"<= {goal.most:.4g} {row['unit']}, {'met' if met else 'missed'}"


def _memory_goal(rows: list[Row]) -> Goal | None:
    """A fifth more than the weights, and 150 MB for everything else."""
    weights = next((row["ours"] for row in rows if row["work"] == _WEIGHTS), None)
    if not isinstance(weights, int | float):
        return None
    return Goal("resident memory in decode", "", None, most=1.2 * weights + 150)
