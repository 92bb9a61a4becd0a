"""Classes of texts and of pairs of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import numpy as np

from gptrs.checkpoint.config_fields import Fields
from gptrs.errors import ModelError, UsageError
from gptrs.progress import Progress
from gptrs.quoting import listed, quoted, shown_value
from gptrs_runtime.capable_model import RERANKER
from gptrs_runtime.forward import class_label
from gptrs_runtime.input_checks import require_known_tokens
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import LabelScore, Ranked
from gptrs_runtime.sources.model_folder import MODEL_CONFIG, MODULES, TRANSFORMER_CONFIG
from gptrs_runtime.sources.tokenizer_class import TOKENIZER_CONFIG, tokenizer_class
from gptrs_runtime.text_batches import BATCH_SIZE, chosen_prompt, read_prompts, text_batches
from gptrs_runtime.text_classes.logit_scores import pair_logits
from gptrs_runtime.tokenization.encoded_text import EncodedText, Lengths, LongTexts
from gptrs_runtime.torch_activations import ACTIVATIONS, sigmoid, torch_activation, unchanged
from gptrs_runtime.verb_requests import TEMPLATE

# Logits to scores, by the settings that transformers and sentence-transformers use.


Scores = Callable[[np.ndarray], np.ndarray]
"""Maps logits f64 [..., classes] to scores of the same shape."""


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities that sum to 1 over the last axis, f64."""
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


_BY_PROBLEM: Final[dict[str, Scores]] = {
    "regression": unchanged,
    "single_label_classification": softmax,
    "multi_label_classification": sigmoid,
}


def class_scores(config: Mapping[str, object], classes: int) -> Scores:
    """Return the function from a classifier's logits to scores, by `problem_type` of config.json.

    Without it one class has a sigmoid, several have a softmax. ModelError for another problem.
    """
    problem = config.get("problem_type")
    if problem is None:
        return sigmoid if classes == 1 else softmax
    if not isinstance(problem, str) or problem not in _BY_PROBLEM:
        raise ModelError(
            f"`problem_type` must be one of {listed(_BY_PROBLEM)}, found {shown_value(problem)}"
        )
    # transformers applies a sigmoid to a single class for every problem type except regression.
    return sigmoid if classes == 1 and problem != "regression" else _BY_PROBLEM[problem]


def rank_scores(config: Mapping[str, object], saved: Mapping[str, object] | None = None) -> Scores:
    """Return the function from a reranker's logit to its score: a sigmoid unless its files differ.

    sentence-transformers names the function in config.json, or in `saved`, the content of
    config_sentence_transformers.json, which takes precedence. ModelError for another function.
    """
    own = config.get("sentence_transformers")
    table = cast("Mapping[str, object]", own if isinstance(own, Mapping) else {})
    name = (saved or {}).get("activation_fn") or table.get("activation_fn")
    name = name or config.get("sbert_ce_default_activation_function")
    if name is None:
        return sigmoid
    found = torch_activation(name) if isinstance(name, str) else None
    if found is None:
        raise ModelError(
            f"the function of scores must be of `torch.nn`: {listed(ACTIVATIONS)}, found"
            f" {shown_value(name)}"
        )
    return ACTIVATIONS[found]


Text = str | tuple[str, str]
"""A text, or a pair encoded as one."""
_SEGMENTS = "token_type_ids"
_WITHOUT_SEGMENTS = (
    *("PreTrainedTokenizer", "TokenizersBackend", "RobertaTokenizer", "XLMRobertaTokenizer"),
    *("CamembertTokenizer", "MPNetTokenizer", "DistilBertTokenizer", "EsmTokenizer"),
)
"""Classes of transformers that hand no segments to a model unless their inputs are listed."""


def classify(
    model: LoadedModel,
    texts: Sequence[Text],
    batch_size: int = BATCH_SIZE,
    *,
    truncate: bool | None = None,
    lengths: Lengths | None = None,
    progress: Progress | None = None,
) -> list[tuple[LabelScore, ...]]:
    """Return the classes of each text or pair `(first, second)`, the best first.

    Scores are as the files of the model ask for: a softmax over several classes, a sigmoid of one
    or with `problem_type` `multi_label_classification`, the logit itself for a regression. A text
    longer than the model's limit is truncated with a note, in a pair the longer one; `truncate` and
    `lengths` are as of `embed`. UsageError if there is no text; ModelError for a model without the
    capability `text_classifier`, or without a tokenizer.
    """
    rows = all_classes(
        model, texts, batch_size, truncate=truncate, lengths=lengths, progress=progress
    )
    return [tuple(sorted(row, key=lambda each: -each.score)) for row in rows]


def all_classes(
    model: LoadedModel,
    texts: Sequence[Text],
    batch_size: int = BATCH_SIZE,
    *,
    truncate: bool | None = None,
    lengths: Lengths | None = None,
    progress: Progress | None = None,
) -> list[tuple[LabelScore, ...]]:
    """Like `classify`, but in the order of the classes."""
    logits = text_logits(model, texts, batch_size, progress, LongTexts(truncate, lengths))
    scores = class_scores(model.config, logits.shape[1])(logits)
    names = [class_label(model.config, index) for index in range(logits.shape[1])]
    return [
        tuple(LabelScore(name, float(score)) for name, score in zip(names, row, strict=True))
        for row in scores
    ]


def text_logits(
    model: LoadedModel,
    texts: Sequence[Text],
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
    long: LongTexts | None = None,
    longest: int | None = None,
) -> np.ndarray:
    """Return the logits of each text or pair, f32 [N, classes]; errors as of `classify`.

    `longest` is the most tokens of a text, None for what `longest_text` says.
    """
    classifier = model.text_classifier()
    if isinstance(texts, str):
        raise UsageError("a list of texts is needed, got one text", hint="write `[text]`")
    if not texts or batch_size < 1:
        raise UsageError(
            "at least 1 text and a batch of at least 1 are needed, got"
            f" {len(texts)} and {batch_size}"
        )
    rows = _encoded(model, texts, long or LongTexts(), longest)
    tokens = [row.tokens for row in rows]
    with_segments = has_segments(model)
    segments = [row.segments if with_segments else () for row in rows]
    found: list[np.ndarray] = []
    order: list[int] = []
    for batch in text_batches(tokens, batch_size, model.backend, classifier.context_length):
        if progress is not None:
            progress(len(order), len(texts))
        logits = classifier.classify_texts(batch.tokens, batch.laid(segments), batch.mask)
        found.append(logits[: len(batch.rows)])
        order.extend(batch.rows)
    if progress is not None:
        progress(len(texts), len(texts))
    stacked = np.concatenate(found)
    result = np.empty_like(stacked)
    result[order] = stacked
    return result


def longest_text(model: LoadedModel) -> int:
    """Return the most tokens of a text: of the model, or fewer as tokenizer_config.json says."""
    context = model.token_reader().context_length
    settings = model.files.read_json(TOKENIZER_CONFIG) or {}
    limit = Fields(settings, f"in `{TOKENIZER_CONFIG}`").count("model_max_length")
    return context if limit is None else min(limit, context)


def has_segments(model: LoadedModel) -> bool:
    """Return whether the tokenizer hands segments to the model: by its inputs, else its class."""
    settings = model.files.read_json(TOKENIZER_CONFIG) or {}
    inputs = settings.get("model_input_names")
    if isinstance(inputs, list):
        return _SEGMENTS in inputs
    return tokenizer_class(model.files) not in _WITHOUT_SEGMENTS


def _encoded(
    model: LoadedModel, texts: Sequence[Text], long: LongTexts, longest: int | None
) -> list[EncodedText]:
    reader = model.token_reader()
    limit = longest_text(model) if longest is None else min(longest, reader.context_length)
    known = reader.vocab_size
    pairs = [(text, None) if isinstance(text, str) else tuple(text) for text in texts]
    rows = [model.tokenizer.encode_pair(first, second, limit) for first, second in pairs]
    long.told([row.length for row in rows], limit)
    for row in rows:
        require_known_tokens(row.tokens, known)
    return rows


# Documents ranked by relevance to a query, by a model that reads both together.


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
    `prompt`, empty for none. `truncate` and `lengths` are as of `embed`, for the query with each
    document. UsageError if there is no document; ModelError for a model that does not give a pair
    one score.
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
        fields = _saved_settings(model)
        pairs = [(first + query, document) for document in documents]
        if fields.boolean("do_lower_case", False):
            lowered = model.tokenizer.lowered
            pairs = [(lowered(one), lowered(other)) for one, other in pairs]
        longest = fields.count("max_seq_length")
        logits = _only_class(model, text_logits(model, pairs, batch_size, progress, long, longest))
    to_scores = rank_scores(model.config, model.files.read_json(MODEL_CONFIG))
    scores = to_scores(logits.astype(np.float64))
    order = np.argsort(-logits, kind="stable")[:top_k]
    rows = [int(row) for row in order]
    return [Ranked(row, float(scores[row]), documents[row]) for row in rows]


def _saved_settings(model: LoadedModel) -> Fields:
    """Return the settings of texts that sentence-transformers saved with a `CrossEncoder`."""
    is_saved = model.files.read_json_list(MODULES) is not None
    settings = model.files.read_json(TRANSFORMER_CONFIG) if is_saved else None
    return Fields(settings or {}, f"in {quoted(TRANSFORMER_CONFIG)}")


def _only_class(model: LoadedModel, logits: np.ndarray) -> np.ndarray:
    if logits.shape[1] != 1:
        raise ModelError(
            f"`{model.name}` gives a pair {logits.shape[1]} classes, a reranker gives it one score",
            hint="`classify` takes pairs and returns their classes",
        )
    return logits[:, 0]


# Arbitrary labels for texts, by a model that decides whether one sentence follows from another
# (NLI).


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

    The score of a label is how far `template`, with the label for `{}`, follows from the text.
    Scores sum to 1 over the labels, or are independent with `multi_label`. `truncate` and `lengths`
    are as of `embed`, a text with its longest label. UsageError for no labels, or a template
    without `{}`; ModelError for a model without a class that begins with `entail`.
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


def label_texts(
    model: LoadedModel,
    texts: Sequence[str],
    batch_size: int = BATCH_SIZE,
    *,
    pairs: Sequence[str] = (),
    labels: Sequence[str] = (),
    template: str | None = None,
    multi_label: bool = False,
    truncate: bool | None = None,
    lengths: Lengths | None = None,
    progress: Progress | None = None,
) -> list[tuple[LabelScore, ...]]:
    """Return `zero_shot` of the labels, if there are any, else `classify` of texts or pairs."""
    if labels:
        stated = TEMPLATE if template is None else template
        return zero_shot(
            model, texts, labels, stated, multi_label=multi_label, batch_size=batch_size,
            truncate=truncate, lengths=lengths, progress=progress,
        )  # fmt: skip
    rows = list(zip(texts, pairs, strict=True)) if pairs else texts
    return classify(model, rows, batch_size, truncate=truncate, lengths=lengths, progress=progress)


def _classes(model: LoadedModel, count: int) -> tuple[int, int]:
    """Return the class "entailment" and its opposite: the first class, or the last if the first is
    "entailment"."""
    names = [class_label(model.config, index) for index in range(count)]
    follows = [index for index, name in enumerate(names) if name.lower().startswith(_FOLLOWS)]
    if not follows or count < 2:
        raise ModelError(
            f"`{model.name}` has no class that begins with `{_FOLLOWS}`: it has {listed(names)}",
            hint="zero-shot labels need a model for natural language inference (NLI)",
        )
    return follows[0], count - 1 if follows[0] == 0 else 0
