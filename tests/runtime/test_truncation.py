"""Texts that are longer than a model reads are cut and told, cut, or refused, by every call."""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import pytest

import gptrs
from gptrs.errors import ContextLengthError, UsageError
from gptrs_runtime.embedding.embed import embed, match
from gptrs_runtime.text_classes.classify import classify, longest_text, rank, zero_shot
from gptrs_runtime.tokenization.encoded_text import LongTexts, TextLength
from gptrs_runtime.tokenization.text_slices import SLICE
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_clip import save_tiny_clip
from runtime.tiny_heads import save_tiny_head

PICTURE = np.zeros((8, 8, 3), np.uint8)
CLASSES = "ForSequenceClassification"
NLI = ("contradiction", "neutral", "entailment")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("long")
    folders = {
        "embed": save_tiny_bert(root / "bert"),
        "nli": save_tiny_head(root / "nli", CLASSES, NLI),
        "ranker": save_tiny_head(root / "ranker", CLASSES, ("score",)),
    }
    save_tiny_clip(root / "clip")
    folders["clip"] = root / "clip"
    return {name: gptrs.load_model(folder, backend="ref") for name, folder in folders.items()}


def both(models, texts, **options):
    return match(models["clip"], [PICTURE], texts, **options).logits


CALLS = {
    "embed": lambda models, texts, **o: embed(models["embed"], texts, **o),
    "embed beside images": lambda models, texts, **o: embed(models["clip"], texts, **o),
    "match": both,
    "classify": lambda models, texts, **o: classify(models["nli"], texts, **o),
    "zero_shot": lambda models, texts, **o: zero_shot(models["nli"], texts, ["red", "a cat"], **o),
    "rank": lambda models, texts, **o: rank(models["ranker"], "a cat", texts, **o),
}
SHORT, LONG = "the cat", "the cat sat " * 40


@pytest.mark.parametrize("name", CALLS)
def test_long_texts_are_cut_and_told_cut_or_refused(models, caplog, name):
    call = partial(CALLS[name], models)
    lengths: list[TextLength] = []
    caplog.set_level(logging.INFO, "gptrs")
    call([SHORT, LONG, SHORT], lengths=lengths.extend)
    first, long, last = lengths
    assert (first.is_cut, long.is_cut, last.is_cut) == (False, True, False)
    assert first == last
    assert first.read == first.tokens < long.read < 120 < long.tokens
    assert f"1 of 3 texts were cut to {long.read} tokens" in caplog.text
    caplog.clear()
    told = call([SHORT, LONG], truncate=True)
    assert "were cut" not in caplog.text
    again = call([SHORT, LONG])
    assert np.all(told == again) if isinstance(told, np.ndarray) else told == again
    message = rf"^text 1 has {long.tokens} tokens, the model reads {long.read} of a text"
    with pytest.raises(ContextLengthError, match=message):
        call([SHORT, LONG], truncate=False)
    caplog.clear()
    short: list[TextLength] = []
    call([SHORT], truncate=False, lengths=short.extend)
    assert short == [first]
    call([SHORT])
    assert "were cut" not in caplog.text


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("name", ["embed", "classify"])
def test_the_longest_text_that_is_read_whole_is_not_cut(models, name, extra):
    model = models["embed" if name == "embed" else "nli"]
    limit = model.token_reader().context_length if name == "embed" else longest_text(model)
    text = "cat " * (limit - 2 + extra)
    lengths: list[TextLength] = []
    if extra:
        with pytest.raises(ContextLengthError):
            CALLS[name](models, [text], truncate=False)
    CALLS[name](models, [text], truncate=bool(extra), lengths=lengths.extend)
    assert lengths == [TextLength(limit + extra, limit)]


@pytest.mark.parametrize("name", ["embed", "classify"])
def test_tokens_far_beyond_the_limit_are_not_counted(models, monkeypatch, name):
    text = "cat " * 3 * SLICE
    model = models["embed" if name == "embed" else "nli"]
    encoded: list[str] = []
    encode = type(model.tokenizer)._interruptible

    def counted(tokenizer, part, offsets):
        encoded.append(part)
        return encode(tokenizer, part, offsets)

    monkeypatch.setattr(type(model.tokenizer), "_interruptible", counted)
    with pytest.raises(ContextLengthError, match=r"has \d+ tokens or more, the model reads"):
        CALLS[name](models, [text], truncate=False)
    assert sum(map(len, encoded)) < 2 * SLICE


def test_whole_texts_have_their_length(models):
    assert models["nli"].tokenizer.encode_with_offsets(SHORT).length == TextLength(4, 4)
    assert models["nli"].tokenizer.encode_within("cat cat", 0) == ([2, 3], TextLength(4, 2))


def test_lengths_are_those_of_the_longest_of_each():
    found = [TextLength(*pair) for pair in ((3, 3), (9, 5), (4, 4), (2, 2))]
    told: list[TextLength] = []
    LongTexts(True, told.extend, each=2).told(found, 5)
    assert told == [found[1], found[2]]
    with pytest.raises(ContextLengthError, match="text 0 has 9 tokens, the model reads 5"):
        LongTexts(False, each=2).told(found, 5)
    with pytest.raises(UsageError, match="text 1 has 0 tokens, the model takes from 1 to 5"):
        LongTexts().told([found[0], TextLength(0, 0)], 5)
    with pytest.raises(UsageError, match="text 0 has 6 tokens, the model takes from 1 to 5"):
        LongTexts(True).told([TextLength(6, 6)], 5)
