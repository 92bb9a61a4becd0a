"""The byte-level BPE tokenizer of the demo model: how it is trained, and how it encodes files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
MAX_TOKEN_LENGTH = 24
# A newline is a token of its own, and so is the indentation of a line. GPT-2's own rule joins
# both, and leaves out the last space; then a prompt that ends with a newline ends unlike any text
# the model has seen, as the newline before an indented line is always part of a longer token.
LINE_STRUCTURE = r"\n|^[ \t]+"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Return a tokenizer of `vocab_size` tokens trained on `texts`; it can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LINE_STRUCTURE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=MAX_TOKEN_LENGTH,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """Return the id of the token between two documents."""
    token_id = tokenizer.token_to_id(END_OF_TEXT)
    if token_id is None:
        raise ValueError(f"the tokenizer has no `{END_OF_TEXT}` token")
    return token_id


def encode_documents(tokenizer: Tokenizer, texts: Sequence[str]) -> np.ndarray:
    """Return the token ids of `texts` as one u16 vector, an end-of-text token around each text."""
    end = end_of_text_id(tokenizer)
    ids = [end]
    for encoding in tokenizer.encode_batch(texts):
        ids += encoding.ids
        ids.append(end)
    return np.array(ids, np.uint16)
