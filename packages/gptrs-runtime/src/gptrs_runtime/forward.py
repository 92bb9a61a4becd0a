"""One run of a model from an input to logits, and the best scores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, cast

import numpy as np
from msgspec import Struct

from gptrs.errors import ModelError, UsageError
from gptrs.functionals.dispatch.active_overrides import Choice, Origin, entered
from gptrs.functionals.dispatch.override_policy import parse_choices
from gptrs.functionals.dispatch.override_scope import resolved
from gptrs.quoting import quoted, shown_value
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.model_inputs import Batch
from gptrs_runtime.results import Score
from gptrs_runtime.sources.model_source import runtime_settings

TOP = 5
"""Default number of best scores to report."""
WITH_CLASSES: Final = ("image_classifier", "text_classifier", "token_classifier")
"""The capabilities that score classes rather than tokens."""


class Forward(Struct, frozen=True):
    """The result of a run: logits f32 [B, classes] or [B, T, V], and the best scores of each row.

    Token scores are those of the last position.
    """

    logits: np.ndarray
    best: tuple[tuple[Score, ...], ...]
    seconds: float


def run_forward(model: LoadedModel, batch: Batch, top: int = TOP) -> Forward:
    """Run the model and find the `top` best scores of each row, or all if there are fewer.

    Raises the same errors as `LoadedModel.forward`.
    """
    started = time.perf_counter()
    logits = model.forward(batch.array)
    seconds = time.perf_counter() - started
    rows = logits[:, -1] if logits.ndim == 3 else logits
    name = partial(_name, model)
    return Forward(
        logits, tuple(best_scores(row, softmax(row), top, name) for row in rows), seconds
    )


def class_label(config: Mapping[str, object], index: int) -> str:
    """Return the name of a class by `id2label` of config.json, else `LABEL_3` for class 3.

    ModelError if `id2label` is not a table of names.
    """
    labels = config.get("id2label")
    if labels is not None and not isinstance(labels, Mapping):
        raise ModelError(f"`id2label` must be a table of names, found {shown_value(labels)}")
    names = cast("Mapping[str, object]", labels or {})
    name = names.get(str(index), f"LABEL_{index}")
    if not isinstance(name, str):
        raise ModelError(f"`id2label` must name class {index}, found {shown_value(name)}")
    return name


def best_scores(
    logits: np.ndarray, probabilities: np.ndarray, top: int, name: Callable[[int], str]
) -> tuple[Score, ...]:
    """Return the best of scores [N]; among equal scores the lower index first; NaN last."""
    order = np.argsort(-logits, kind="stable")[:top]
    return tuple(
        Score(
            index=int(index),
            name=name(int(index)),
            logit=float(logits[index]),
            probability=float(probabilities[index]),
        )
        for index in order
    )


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities, f64, of logits [N]; NaN where one is infinite."""
    wide = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinite logits have no probabilities
        powers = np.exp(wide - wide.max())
        return powers / powers.sum()


def _name(model: LoadedModel, index: int) -> str:
    if not model.capabilities.isdisjoint(WITH_CLASSES):
        return class_label(model.config, index)
    return (model.tokenizer.token_text(index) or "") if model.has_tokenizer else ""


# Overrides of functionals set outside Python: config, environment, command line.


VARIABLE = "GPTRS_OVERRIDES"
_KEY = "`runtime.functional_overrides`"


def model_choices(config: Mapping[str, object], origin: str) -> dict[str, Choice]:
    """Return the overrides for a model with this config.json; the environment's take precedence.

    `origin` names the config in errors. ModelError if its overrides are malformed or name unknown
    things, UsageError if those in `GPTRS_OVERRIDES` are.
    """
    stated = runtime_settings(config, origin).functional_overrides or {}
    try:
        own = resolved(stated, Origin.CONFIG)
    except UsageError as error:
        raise ModelError(
            f"{_KEY} of {quoted(origin, 200)}: {error.message}", hint=error.hint
        ) from error
    return {**own, **resolved(environment_overrides(), Origin.ENVIRONMENT)}


def environment_overrides() -> dict[str, str]:
    """Return the policies in `GPTRS_OVERRIDES`, a comma list of `FUNCTIONAL=POLICY`."""
    parts = os.environ.get(VARIABLE, "").split(",")
    return parse_choices([part for part in parts if part.strip()], f"`{VARIABLE}`")


@contextmanager
def command_line_overrides(items: Sequence[str]) -> Generator[None]:
    """Scope of the overrides given as `--override FUNCTIONAL=POLICY`.

    Raises as `gptrs.overrides` does; UsageError for an item of another form.
    """
    with entered(resolved(parse_choices(items, "`--override`"), Origin.COMMAND_LINE)):
        yield
