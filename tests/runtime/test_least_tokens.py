"""The lower bound of the number of tokens of a text never exceeds what a tokenizer makes of it."""

from __future__ import annotations

import random

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from gptrs.errors import ContextLengthError
from gptrs_runtime.tokenization.least_tokens import LeastTokens
from gptrs_runtime.tokenization.tokenizer import TextTokenizer

TEXTS = ["the cat sat on the mat, and the dog too. " * 30, "éèê ünïcödé 日本語 " * 9, "가각" * 50]


def byte_level(alphabet=True, normalizer=None, added=()):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    initial = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    made.train_from_iterator(
        TEXTS[:1],
        trainers.BpeTrainer(vocab_size=300, initial_alphabet=initial, show_progress=False),
    )
    if normalizer is not None:
        made.normalizer = normalizer
    made.add_tokens(list(added))
    return made


def metaspace():
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    made.train_from_iterator(
        TEXTS[:1], trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    )
    return made


BOUNDED = {
    "all bytes": byte_level(),
    "some bytes": byte_level(alphabet=False),
    "nfc": byte_level(normalizer=normalizers.NFC()),
    "byte fallback": metaspace(),
    "strips": byte_level(added=[AddedToken("<mask>", lstrip=True)]),
    "long": byte_level(added=["<" + "long" * 30 + ">"]),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_no_text_has_fewer_tokens(name):
    tokenizer = BOUNDED[name]
    least = LeastTokens(tokenizer)
    draw = random.Random(3)
    parts = [*TEXTS, " ", "e\u0301", "ᄀ" + "ᅡ" + "ᆨ", "<mask>", "<" + "long" * 30 + ">", "\x13", "ﷺ"]
    texts = ["".join(draw.choices(parts, k=60)) for _ in range(40)]
    texts += [part * 3000 for part in parts if len(part) < 9] + [" " * 5000 + "<mask>"]
    assert all(least.of(text) <= len(tokenizer.encode(text).ids) for text in texts)
    assert least.of("the cat sat on the mat " * 9999) > 99


@pytest.mark.parametrize(
    "tokenizer",
    [
        byte_level(normalizer=normalizers.Strip()),
        byte_level(normalizer=normalizers.Replace("aa", "a")),
        Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")),
        Tokenizer(models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>", fuse_unk=True)),
    ],
)
def test_there_is_no_bound_where_text_may_be_dropped(tokenizer):
    assert LeastTokens(tokenizer).of("a" * 100_000) == 0


def test_a_long_text_is_refused_before_it_is_encoded():
    tokenizer = TextTokenizer(byte_level().to_str().encode(), "a file")
    tokenizer.require_fitting("the cat", 2)
    with pytest.raises(ContextLengthError, match="a prompt of 400000 characters"):
        tokenizer.require_fitting("cat " * 100_000, 512)
