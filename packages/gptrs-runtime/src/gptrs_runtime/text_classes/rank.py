"""Documents in the order in which they answer a query, by a model that reads both together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.errors import ModelError, UsageError
from gptrs.progress import Progress
from gptrs_runtime.capable_model import RERANKER
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.named_prompts import chosen_prompt, read_prompts
from gptrs_runtime.results import Ranked
from gptrs_runtime.sources.sentence_transformers import MODEL_CONFIG
from gptrs_runtime.text_batches import BATCH_SIZE
from gptrs_runtime.text_classes.classify import text_logits
from gptrs_runtime.text_classes.logit_scores import pair_logits
from gptrs_runtime.text_classes.scores import rank_scores
from gptrs_runtime.tokenization.encoded_text import Lengths, LongTexts


def rank(
    model: LoadedModel,
    query: str,
    documents: Sequence[str],
    top_k: int | None = None,
    batch_size: int = BATCH_SIZE,
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    truncate: bool | None = None,
    lengths: Lengths | None = None,
    progress: Progress | None = None,
) -> list[Ranked]:
    """Return the documents, the best first, or the `top_k` best; of equal scores the earlier one.

    Scores are the sigmoid of the logit, or what the files of sentence-transformers name. The
    instruction before each pair is the default one of these files, the one called `prompt_name`, or
    the caller's own `prompt`, empty for none. `truncate` and `lengths` are as of `embed`, for the
    query with each document. UsageError if there is no document; ModelError for a model that does
    not give a pair one score.
    """
    if isinstance(documents, str) or not documents or (top_k is not None and top_k < 1):
        raise UsageError(
            "`rank` needs a list of documents and a `top_k` of at least 1",
            hint="write `rank(model, query, [document, ...])`",
        )
    model.ranker()
    prompts, default = read_prompts(model.files, "CrossEncoder")
    first = chosen_prompt(prompts, default, prompt_name, prompt)
    long = LongTexts(truncate, lengths)
    if RERANKER in model.capabilities:
        pairs = [(query, document) for document in documents]
        logits = pair_logits(model, pairs, first, batch_size, long, progress)
    else:
        pairs = [(first + query, document) for document in documents]
        logits = _only_class(model, text_logits(model, pairs, batch_size, progress, long))
    scores = rank_scores(model.config, model.files.read_json(MODEL_CONFIG))(logits)
    order = np.argsort(-logits, kind="stable")[:top_k]
    rows = [int(row) for row in order]
    return [Ranked(row, float(scores[row]), documents[row]) for row in rows]


def _only_class(model: LoadedModel, logits: np.ndarray) -> np.ndarray:
    if logits.shape[1] != 1:
        raise ModelError(
            f"`{model.name}` gives a pair {logits.shape[1]} classes, a reranker gives it one score",
            hint="`classify` takes pairs and tells their classes",
        )
    return logits[:, 0]
