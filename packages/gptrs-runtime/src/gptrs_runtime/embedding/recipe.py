"""The files of sentence-transformers beside a model: what makes a vector of a text."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal, cast

from gptrs.checkpoint.config_fields import Fields
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import quoted
from gptrs_runtime.embedding.modules import pooling_and_steps
from gptrs_runtime.embedding.pooling import Pooling
from gptrs_runtime.embedding.steps import Truncate, VectorStep
from gptrs_runtime.named_prompts import read_prompts
from gptrs_runtime.sources.model_source import ModelSource
from gptrs_runtime.sources.sentence_transformers import MODEL_CONFIG, MODULES, TRANSFORMER_CONFIG

TOKENIZER_CONFIG: Final = "tokenizer_config.json"

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
"""How two vectors are compared, by the names of sentence-transformers."""
SIMILARITIES: Final = ("cosine", "dot", "euclidean", "manhattan")

_MEAN: Final[tuple[Pooling, tuple[VectorStep, ...]]] = (Pooling(), ())
_logger = logging.getLogger("gptrs")


@dataclass(frozen=True)
class EmbeddingRecipe:
    """The steps on a text before the model, and on the vectors of its tokens after it.

    `max_length` is the most tokens of a text, None for as many as the model takes. `steps` follow
    the pooling. `prompts` are texts by name that may precede a text, `default_prompt` the one that
    does unless another is asked for. `similarity` is how vectors are compared.
    """

    pooling: Pooling
    steps: tuple[VectorStep, ...] = ()
    max_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    default_prompt: str = ""
    similarity: Similarity = "cosine"


def embedding_recipe(files: ModelSource) -> EmbeddingRecipe:
    """Read the files; without `modules.json` it is the mean of all tokens, and a note says so.

    ModelError for malformed files, and for modules and settings that are not supported, by name.
    """
    max_length, lower_case = _text_settings(files)
    prompts, default = read_prompts(files, "SentenceTransformer")
    modules = files.read_json_list(MODULES)
    pooling, steps = _MEAN if modules is None else pooling_and_steps(files, modules)
    if modules is None:
        _logger.info("there is no %s: vectors of tokens are averaged, not normalized", MODULES)
    fields = _fields(files, MODEL_CONFIG)
    if fields.get("truncate_dim") is not None:
        steps = (*steps, Truncate(fields.integer("truncate_dim")))
    # sentence-transformers leaves the function open where the file has null.
    similarity = cast("Similarity", fields.choice("similarity_fn_name", SIMILARITIES, "cosine"))
    return EmbeddingRecipe(pooling, steps, max_length, lower_case, prompts, default, similarity)


def _text_settings(files: ModelSource) -> tuple[int | None, bool]:
    fields = _fields(files, TRANSFORMER_CONFIG)
    fields.require("transformer_task", "feature-extraction")
    fields.require("module_output_name", "token_embeddings")
    longest = fields.count("max_seq_length")
    if longest is None:
        longest = _fields(files, TOKENIZER_CONFIG).count("model_max_length")
    return longest, fields.boolean("do_lower_case", False)


def _fields(files: ModelSource, name: str) -> Fields:
    return Fields(files.read_json(name) or {}, f"in {quoted(name)}")
