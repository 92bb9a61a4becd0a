"""Plans of transformers for parallel weights, `base_model_tp_plan`, as names of axes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, cast

from gptrs.backend.sharding import Axes
from gptrs.errors import ModelError
from gptrs.quoting import quoted, shown_value

PLAN: Final = "base_model_tp_plan"
"""The key in config.json."""
_OUTPUTS: Final = ("colwise", "colwise_rep", "colwise_gather_output", "embedding_rowwise")
_INPUTS: Final = ("rowwise", "rowwise_rep", "rowwise_split_input")


class TensorPlan:
    """A plan: patterns of module names, `layers.*.mlp.up_proj`, and how their weights are split.

    ModelError for a plan that is no mapping of texts, and for a style that is not known of a module
    with weights.
    """

    def __init__(self, plan: object, origin: str) -> None:
        given = cast("Mapping[object, object]", plan) if isinstance(plan, Mapping) else None
        entries: Mapping[object, object] = {"": None} if given is None else given
        self._styles: list[tuple[re.Pattern[str], str]] = []
        self._origin = origin
        for pattern, style in entries.items():
            if not isinstance(pattern, str) or not isinstance(style, str):
                found = shown_value(cast("object", plan))
                raise ModelError(f"`{PLAN}` in {origin} must map modules to styles, got {found}")
            form = re.escape(pattern).replace(r"\*", r"[^.]+")
            self._styles.append((re.compile(rf"(?:.+\.)?{form}"), style))

    def axes(self, name: str, rank: int, use: str | None) -> Axes:
        """Return the axes of the weight or bias `name`, all whole if the plan is silent."""
        module = name.rpartition(".")[0]
        style = next((style for form, style in self._styles if form.fullmatch(module)), None)
        whole: Axes = (None,) * rank
        if style is None or style == "replicated_with_grad_allreduce" or rank == 0:
            return whole
        if style not in _OUTPUTS and style not in _INPUTS:
            raise ModelError(
                f"`{PLAN}` in {self._origin} splits {quoted(module)} by `{style}`, which is not"
                " supported",
                hint=f"supported are {', '.join((*_OUTPUTS, *_INPUTS))}",
            )
        outputs = style in _OUTPUTS
        if rank == 1:
            return ("tensor",) if outputs else whole
        first = outputs != (use == "turned")
        return ("tensor", *whole[1:]) if first else (None, "tensor", *whole[2:])
