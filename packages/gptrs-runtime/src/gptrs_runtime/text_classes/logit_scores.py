"""A language model as a reranker: the logits of two tokens after a query and a document.

The files are those of a `CrossEncoder` of sentence-transformers with the module `LogitScore`: the
chat template renders messages of the roles `query` and `document`, and the score is the logit of
one token, `yes`, minus that of another, `no`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, cast

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.config_fields import Fields
from gptrs.errors import ModelError
from gptrs.nn.cache_spec import cache_groups
from gptrs.nn.ragged_step import own_pages, ragged_step
from gptrs.progress import Progress
from gptrs.quoting import quoted
from gptrs_runtime.chat.conversation import Conversation
from gptrs_runtime.chat.messages import Message
from gptrs_runtime.generation.step_times import StepShapes
from gptrs_runtime.input_checks import require_known_tokens
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.sources.model_folder import MODULES, TRANSFORMER_CONFIG
from gptrs_runtime.sources.model_source import CONFIG, ModelSource
from gptrs_runtime.text_batches import MOST_TOKENS
from gptrs_runtime.tokenization.encoded_text import LongTexts, TextLength

Pair = tuple[str, str]
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"
_LENGTH: Final = "max_length"
_OF_TOKENIZERS: Final = ("padding", "truncation", "tokenize", "return_tensors", "return_dict")
_PROBES: Final = ("0", "1 2 3 4")
"""Contents with different ends, from sentence-transformers."""


class LogitScore(Struct, frozen=True):
    """The steps from a pair to its score.

    Without `false_token` the score is the logit of `true_token`. Pairs become messages if
    `as_messages`, else one text; `structured` ones are lists of parts. `variables` are for the
    chat template, `answer` is its `add_generation_prompt`. `longest` is the most tokens of a pair,
    None for the limit of the model.
    """

    true_token: int
    false_token: int | None
    as_messages: bool
    structured: bool
    answer: bool
    variables: Mapping[str, object]
    longest: int | None

    def score(self, logits: np.ndarray) -> np.ndarray:
        """Return the score of each text by the logits after it, f32 [B, V] -> f32 [B]."""
        found = logits[:, self.true_token]
        return found if self.false_token is None else found - logits[:, self.false_token]


def logit_score(files: ModelSource) -> LogitScore:
    """Read the files; ModelError for malformed ones and settings that are not supported."""
    modules = cast("list[Mapping[str, object]]", files.read_json_list(MODULES) or [])
    folder = str(modules[-1].get("path"))
    tokens = Fields(files.read_json(CONFIG, folder) or {}, f"in {quoted(f'{folder}/{CONFIG}')}")
    tokens.require("module_input_name", "causal_logits")
    fields = Fields(files.read_json(TRANSFORMER_CONFIG) or {}, f"in {quoted(TRANSFORMER_CONFIG)}")
    fields.require("transformer_task", "text-generation")
    fields.require("module_output_name", "causal_logits")
    modalities = fields.get("modality_config")
    known = cast("Mapping[str, object]", modalities if isinstance(modalities, Mapping) else {})
    message = known.get("message")
    form = cast("Mapping[str, object]", message if isinstance(message, Mapping) else {})
    template = _template_settings(fields)
    longest = template.pop(_LENGTH, fields.count("max_seq_length"))
    if longest is None:
        longest = Fields(files.read_json(_TOKENIZER_CONFIG) or {}, "").count("model_max_length")
    false = tokens.get("false_token_id")
    return LogitScore(
        true_token=tokens.integer("true_token_id", minimum=0),
        false_token=None if false is None else tokens.integer("false_token_id", minimum=0),
        as_messages="message" in known,
        structured=form.get("format") == "structured",
        answer=bool(template.pop("add_generation_prompt", False)),
        variables=template,
        longest=cast("int | None", longest),
    )


def _template_settings(fields: Fields) -> dict[str, object]:
    """Return `processing_kwargs.chat_template`; ModelError for other settings."""
    found = fields.get("processing_kwargs", {})
    table = cast("Mapping[str, object]", found if isinstance(found, Mapping) else {})
    stated = table.get("chat_template")
    template = dict(cast("Mapping[str, object]", stated)) if isinstance(stated, Mapping) else {}
    template.pop("restore_suffix", None)
    refused = [name for name in _OF_TOKENIZERS if name in template]
    length = template.get(_LENGTH, 1)
    if refused or not isinstance(length, int) or length < 1:
        name = refused[0] if refused else _LENGTH
        raise fields.error("processing_kwargs", f"has a `{name}` that is not supported")
    return template


def pair_logits(
    model: LoadedModel,
    pairs: Sequence[Pair],
    prompt: str,
    batch_size: int,
    long: LongTexts,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return the score of each pair before its activation, f32 [N].

    `prompt` is the instruction before each pair, empty for none. Texts run together without
    padding, the longest first. A text of more tokens than the model takes loses some before the end
    of the template, as `long` has it. ModelError for files that are not supported.
    """
    recipe, lm = logit_score(model.files), model.causal_lm()
    for token in (recipe.true_token, recipe.false_token or 0):
        if token >= lm.vocab_size:
            raise ModelError(
                f"the score is of token {token}, the model has {lm.vocab_size} tokens",
                hint=f"correct {quoted(MODULES)} and the folders that it names",
            )
    texts = _tokens(model, recipe, pairs, prompt, long)
    order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
    found = np.empty(len(texts), np.float32)
    done = 0
    for rows in _batches(order, [len(text) for text in texts], batch_size):
        if progress is not None:
            progress(done, len(texts))
        found[rows] = recipe.score(_last_logits(model, [texts[row] for row in rows]))
        done += len(rows)
    if progress is not None:
        progress(done, len(texts))
    return found


def _batches(order: Sequence[int], lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield rows in `order`, at most `size` and together `MOST_TOKENS`, one at least."""
    batch: list[int] = []
    for row in order:
        tokens = sum(lengths[each] for each in batch) + lengths[row]
        if batch and (len(batch) == size or tokens > MOST_TOKENS):
            yield batch
            batch = []
        batch.append(row)
    yield batch


def _last_logits(model: LoadedModel, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the logits after the last token of each text, f32 [B, V]; caches are thrown away."""
    lm = model.causal_lm()
    groups = cache_groups(lm.cache_specs())
    # Page 0 belongs to no text: padding writes there.
    table = own_pages(len(texts), max(map(len, texts))) + 1
    step = ragged_step(texts, [0] * len(texts), [table] * len(groups))
    step = StepShapes(model.backend).padded(step)
    pages = step.page_tables[0].size + 1
    logits = lm.step(step, lm.new_buffers([pages] * len(groups)))
    return logits[: len(texts)]


def _tokens(
    model: LoadedModel, recipe: LogitScore, pairs: Sequence[Pair], prompt: str, long: LongTexts
) -> list[list[int]]:
    limit = model.causal_lm().context_length
    limit = limit if recipe.longest is None else min(limit, recipe.longest)
    tokenizer = model.tokenizer
    if recipe.as_messages:
        rendered = _rendered(model, recipe, pairs, prompt)
        rows = [tokenizer.encode(text, special=False) for text in rendered]
        lengths = [TextLength(len(row), min(len(row), limit)) for row in rows]
        has_long = any(length.is_cut for length in lengths)
        kept = _ending(model, recipe, prompt)[-limit:] if has_long else []
        rows = [row if len(row) <= limit else row[: limit - len(kept)] + kept for row in rows]
    else:
        found = [tokenizer.encode_pair(prompt + first, second, limit) for first, second in pairs]
        rows, lengths = [list(text.tokens) for text in found], [text.length for text in found]
    long.told(lengths, limit)
    for row in rows:
        require_known_tokens(row, model.causal_lm().vocab_size)
    return rows


def _rendered(
    model: LoadedModel, recipe: LogitScore, pairs: Sequence[Pair], prompt: str
) -> list[str]:
    def said(role: str, text: str) -> Message:
        content = [{"type": "text", "text": text}] if recipe.structured else text
        return {"role": role, "content": content}

    before = [said("system", prompt)] if prompt else []
    conversations = [
        Conversation(
            [*before, said("query", query), said("document", document)],
            variables=recipe.variables,
            add_generation_prompt=recipe.answer,
        )
        for query, document in pairs
    ]
    return model.chat_template().render_all(conversations)


def _ending(model: LoadedModel, recipe: LogitScore, prompt: str) -> list[int]:
    """Return the tokens that the template appends to every document."""
    texts = _rendered(model, recipe, [(probe, probe) for probe in _PROBES], prompt)
    first, second = (model.tokenizer.encode(text, special=False) for text in texts)
    pairs = zip(reversed(first), reversed(second), strict=False)
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return first[len(first) - alike :]
