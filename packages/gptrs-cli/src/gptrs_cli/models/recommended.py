"""Recommended models as `gptrs models recommended` and its page show them."""

from __future__ import annotations

from gptrs_runtime.sources.recommended import RecommendedModel


def example(model: RecommendedModel) -> str:
    """Return a command that tries the model."""
    after = {
        "generate": '"Once upon a time"',
        "embed": "--text cat --text dog --similarity",
        "rank": '--query "Who?" --text "I did." --text "No."',
        "forward": "--input cat.jpg",
        "transcribe": "talk.wav",
    }
    return f"gptrs {model.command} {model.short} {after.get(model.command, '')}".rstrip()


def parameters_shown(count: int) -> str:
    """Return a number of parameters as their cards write it: `135 M`, `1.7 B`."""
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"
