"""The best classes or tokens in the outputs of an imported model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, cast

import numpy as np

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import quoted
from gptrs_runtime.forward import TOP, best_scores, class_label, softmax
from gptrs_runtime.imported.images import FilesBeside
from gptrs_runtime.imported.input_roles import token_inputs
from gptrs_runtime.imported.loaded_import import LoadedImport
from gptrs_runtime.results import Score

_LOGITS: Final = "logits"
_CONFIG: Final = "config.json"
_NO_LABELS: Final[Mapping[str, object]] = {}
_CLOSE: Final = 1e-3
"""How far the sum of probabilities of any element type may be from 1."""


@dataclass(frozen=True)
class ImportedScores:
    """The outcome of a run: the output with scores, [B, classes] or [B, T, V], and the best ones.

    Those of tokens are of the last position. `are_probabilities`: the model ends with a softmax.
    """

    output: str
    scores: np.ndarray
    best: tuple[tuple[Score, ...], ...]
    are_tokens: bool
    are_probabilities: bool
    seconds: float


def run_scores(
    loaded: LoadedImport, arrays: Mapping[str, np.ndarray], top: int = TOP
) -> ImportedScores:
    """Run a model and find the `top` best of each row, or all that there are.

    They are looked for in the output called `logits`, else in the first one of the right shape.
    UsageError where no output has one; other errors are those of `LoadedImport.run`.
    """
    started = time.perf_counter()
    outputs = loaded.run(arrays)
    seconds = time.perf_counter() - started
    reads_tokens = bool(token_inputs(loaded.model.inputs))
    name, scores = _scores(outputs, reads_tokens)
    rows = scores[:, -1] if scores.ndim == 3 else scores
    are_tokens = scores.ndim == 3
    label = _nameless if are_tokens else _labels(loaded, rows.shape[-1])
    sure = bool(rows.min() >= 0 and np.abs(rows.sum(-1, dtype=np.float64) - 1).max() < _CLOSE)
    best = tuple(best_scores(row, row if sure else softmax(row), top, label) for row in rows)
    return ImportedScores(name, scores, best, are_tokens, sure, seconds)


def _scores(outputs: Mapping[str, np.ndarray], reads_tokens: bool) -> tuple[str, np.ndarray]:
    """Return the name of the output with scores, and these, f32."""
    names = sorted(outputs, key=lambda name: name != _LOGITS)
    for name in names:
        array = outputs[name]
        if array.ndim == 4 and array.shape[2:] == (1, 1):
            array = array[:, :, 0, 0]
        if array.ndim in ((2, 3) if reads_tokens else (2,)) and array.size and _is_float(array):
            return name, array.astype(np.float32)
    shown = ", ".join(f"{quoted(each)} {list(outputs[each].shape)}" for each in outputs)
    raise UsageError(
        f"the model gives no scores of classes [batch, classes], but {shown}",
        hint="`gptrs run` prints the outputs as they are",
    )


def _nameless(index: int) -> str:
    del index
    return ""


def _is_float(array: np.ndarray) -> bool:
    return bool(np.can_cast(array.dtype, np.float64)) and array.dtype.kind not in "iub"


def _labels(loaded: LoadedImport, classes: int) -> Callable[[int], str]:
    """Return the names of classes by the config.json beside the file, where it has as many."""
    config = FilesBeside(loaded.path).read_json(_CONFIG) or {}
    labels = config.get("id2label")
    if isinstance(labels, Mapping) and len(cast("Mapping[object, object]", labels)) == classes:
        return partial(class_label, config)
    return partial(class_label, _NO_LABELS)
