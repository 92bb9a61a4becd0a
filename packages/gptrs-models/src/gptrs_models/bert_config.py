"""The config of an encoder of the BERT family: sizes, switches, and the names of its weights."""

from __future__ import annotations

from dataclasses import dataclass

from gptrs_models.encoder_heads import Heads


@dataclass(frozen=True)
class Names:
    """Names of modules in a checkpoint: of the body, and of the parts of a layer below it."""

    body: str
    projection: str | None = None
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    norm: str = "output.LayerNorm"
    last_norm: str | None = None
    """A norm of the last states; where there is one, the others stand before what they norm."""


@dataclass(frozen=True)
class BertConfig:
    """The settings that shape the computation, under their names in config.json where it has one.

    `padding` is the token that has no position, wherever it stands; the row of position embeddings
    behind its own is that of the first token (RoBERTa). None counts every token, from row 0 on.
    `type_vocab_size` 0 is a kind without token types. `stored_layers` is the name of each layer
    below the body, one after another; the same name twice is one layer that is computed twice
    (ALBERT).
    `segments` is how many texts of a pair are told apart, 1 for kinds whose tokenizers do not.
    `relative_buckets` is how many distances of tokens a bias of the scores tells apart, 0 for no
    such bias. `task_types` is how many embeddings of tasks there are; every token has that of the
    first (ERNIE).
    """

    names: Names
    heads: Heads
    vocab_size: int
    hidden_size: int
    embedding_size: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    stored_layers: tuple[str, ...]
    padding: int | None = None
    relative_buckets: int = 0
    segments: int = 1
    task_types: int = 0
    tie_word_embeddings: bool = True

    @property
    def context_length(self) -> int:
        """Return the largest number of tokens of a text."""
        unused = 0 if self.padding is None else self.padding + 1
        return self.max_position_embeddings - unused
