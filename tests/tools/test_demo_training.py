"""The tokens of the demo model, and its shape."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models

import train_demo_model as script
from demo_model import recipe
from demo_model import tokenizer as tokens

TEXTS = ["def double(x):\n    return x + x\n\n\n" * 30, "class Node:\n    pass\n" * 30 + "=" * 90]
SIZE = 280


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokens.train_tokenizer(TEXTS, SIZE)


@pytest.mark.parametrize("text", [*TEXTS, "", " \n\t\n  x ", "naïve 你好 😀\r\n\x00"])
def test_any_text_can_be_encoded(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_lines_keep_their_structure(tokenizer: Tokenizer) -> None:
    found = tokenizer.encode("def double(x):\n    return x\n\n").tokens
    assert found.count("Ċ") == 3
    assert not any("Ċ" in token for token in found if token != "Ċ")
    assert found[found.index("Ċ") + 1] == "Ġ" * 4


def test_the_vocabulary_has_the_size_that_was_asked_for(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == list(range(SIZE))
    longest = max(len(token) for token in vocabulary if token != tokens.END_OF_TEXT)
    assert longest <= tokens.MAX_TOKEN_LENGTH


def test_documents_stand_between_ends(tokenizer: Tokenizer) -> None:
    ids = tokens.encode_documents(tokenizer, ["pass", "x + x"])
    first, second = tokenizer.encode("pass").ids, tokenizer.encode("x + x").ids
    end = tokens.end_of_text_id(tokenizer)
    assert ids.dtype == np.uint16
    assert ids.tolist() == [end, *first, end, *second, end]


def test_a_tokenizer_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no `<\|endoftext\|>` token"):
        tokens.end_of_text_id(Tokenizer(models.BPE()))


def test_the_bundled_model_has_the_shape_of_the_recipe() -> None:
    bundled: Path = script.BUNDLED
    config = json.loads((bundled / "config.json").read_bytes())
    wanted = recipe.model_config(recipe.ModelShape(), 0) | {"dtype": "float16"}
    assert {name: config[name] for name in wanted} == wanted
    weights = load_file(bundled / "model.safetensors")
    assert 3.1e6 < sum(math.prod(array.shape) for array in weights.values()) < 3.2e6
