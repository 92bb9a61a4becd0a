"""Any labels for texts, by a model that tells whether one sentence follows from another (NLI)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gptrs.errors import ModelError, UsageError
from gptrs.progress import Progress
from gptrs.quoting import listed, quoted
from gptrs_runtime.forward import class_label
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import LabelScore
from gptrs_runtime.text_batches import BATCH_SIZE
from gptrs_runtime.text_classes.classify import text_logits
from gptrs_runtime.text_classes.scores import softmax
from gptrs_runtime.tokenization.encoded_text import Lengths, LongTexts

TEMPLATE: Final = "This example is {}."
"""The sentence that must follow from a text for it to have a label."""
_FOLLOWS: Final = "entail"


def zero_shot(
    model: LoadedModel,
    texts: Sequence[str],
    labels: Sequence[str],
    template: str = TEMPLATE,
    *,
    multi_label: bool = False,
    batch_size: int = BATCH_SIZE,
    truncate: bool | None = None,
    lengths: Lengths | None = None,
    progress: Progress | None = None,
) -> list[tuple[LabelScore, ...]]:
    """Return `labels` with their scores for each text, the best first.

    A text has a label so far as `template`, with the label for `{}`, follows from it. Scores sum to
    1 over the labels, or with `multi_label` each is by itself. `truncate` and `lengths` are as of
    `embed`, a text with its longest label. UsageError for no labels, or a
    template without `{}`; ModelError for a model without a class that begins with `entail`.
    """
    if isinstance(texts, str) or not texts or isinstance(labels, str) or not labels:
        raise UsageError("`zero_shot` needs a list of texts and a list of labels")
    if template.count("{}") != 1:
        raise UsageError(f"the template needs `{{}}` once, got {quoted(template)}")
    pairs = [(text, template.replace("{}", label)) for text in texts for label in labels]
    long = LongTexts(truncate, lengths, len(labels))
    logits = text_logits(model, pairs, batch_size, progress, long)
    follows, against = _classes(model, logits.shape[1])
    by_text = logits.reshape(len(texts), len(labels), -1)
    if multi_label or len(labels) == 1:
        scores = softmax(by_text[..., [against, follows]])[..., 1]
    else:
        scores = softmax(by_text[..., follows])
    best = np.argsort(-scores, axis=1, kind="stable")
    return [
        tuple(LabelScore(labels[int(index)], float(row[index])) for index in order)
        for row, order in zip(scores, best, strict=True)
    ]


def _classes(model: LoadedModel, count: int) -> tuple[int, int]:
    """Return the class "entailment" and the class against it: the first, or the last for that."""
    names = [class_label(model.config, index) for index in range(count)]
    follows = [index for index, name in enumerate(names) if name.lower().startswith(_FOLLOWS)]
    if not follows or count < 2:
        raise ModelError(
            f"`{model.name}` has no class that begins with `{_FOLLOWS}`: it has {listed(names)}",
            hint="zero-shot labels need a model for natural language inference (NLI)",
        )
    return follows[0], count - 1 if follows[0] == 0 else 0
