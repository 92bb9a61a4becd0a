"""The bytes of tokens: joined they are the text, whatever the family of the tokenizer."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from gptrs_runtime.generation.text_stream import IncrementalDecoder, TokenOffsets
from gptrs_runtime.sources import gguf_metadata
from gptrs_runtime.sources.gguf_tokenizer import GgufTokenizer
from gptrs_runtime.tokenization.tokenizer import TextTokenizer

LEARNED = [
    "The quick brown fox jumps over the lazy dog. It isn't here, is it?",
    "für Elise, größer; 日本語のテキスト; emoji 😀👩‍👩‍👧‍👦 and 한국어",
    "def add(a, b):\n    return a + b\n",
] * 4
SPECIAL = ["<unk>", "<s>", "</s>"]
ADDED = ["für", "<日本>", "  ", "<|x|>", "▁é"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def of_bytes():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(LEARNED, trainer)
    return made


def of_bytes_with_added():
    made = of_bytes()
    made.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return made


def of_sentencepiece(strips=True):
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    first = [normalizers.Prepend("▁")] if strips else []
    made.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=[*SPECIAL, *BYTES], show_progress=False
    )
    made.train_from_iterator(["The quick brown fox jumps"] * 4, trainer)
    told = json.loads(made.to_str())  # bytes are entries, and no added tokens
    told["added_tokens"] = told["added_tokens"][: len(SPECIAL)]
    made = Tokenizer.from_str(json.dumps(told))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if strips else [])])
    return made


def of_metaspace(scheme="always"):
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(LEARNED, trainer)
    made.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return made


def of_wordpiece(cleanup):
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(cleanup=cleanup)
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    made.train_from_iterator(LEARNED, trainer)
    return made


def of_words(decoder=None):
    made = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "fox": 2, "é😀": 3}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder is not None:
        made.decoder = decoder
    return made


def of_suffixes():
    made = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=SPECIAL, end_of_word_suffix="</w>", show_progress=False
    )
    made.train_from_iterator(LEARNED, trainer)
    return made


def of_byt5():
    data = gguf_metadata.tokenizer_json(lambda _: b'{"tokenizer_class": "ByT5Tokenizer"}')
    return Tokenizer.from_buffer(data)


def of_gguf(kind):
    model = json.loads((of_bytes() if kind == "gpt2" else of_sentencepiece()).to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda each: each[1])]
    tokens.append("<für|>")
    types = np.array([3 if token in SPECIAL else 1 for token in tokens], np.int32)
    types[-1] = 4
    found = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.scores": -np.arange(len(tokens), dtype=np.float32),
    }
    return Tokenizer.from_buffer(GgufTokenizer(found, "here").tokenizer_json())


FAMILIES = {
    "bytes": of_bytes,
    "bytes, added tokens": of_bytes_with_added,
    "byte fallback, a space first": of_sentencepiece,
    "byte fallback": lambda: of_sentencepiece(strips=False),
    "metaspace": of_metaspace,
    "metaspace, no space first": lambda: of_metaspace("never"),
    "word pieces": lambda: of_wordpiece(cleanup=False),
    "word pieces, tidy": lambda: of_wordpiece(cleanup=True),
    "words": of_words,
    "words, expressions": lambda: of_words(
        decoders.Sequence([decoders.Replace("o", "0"), decoders.Strip("t", 1, 0)])
    ),
    "suffixes": of_suffixes,
    "ByT5": of_byt5,
    "GGUF, bytes": lambda: of_gguf("gpt2"),
    "GGUF, SentencePiece": lambda: of_gguf("llama"),
}
_made: dict[str, TextTokenizer] = {}


def tokenizer_of(family) -> TextTokenizer:
    if family not in _made:
        _made[family] = TextTokenizer(FAMILIES[family]().to_str().encode(), family)
    return _made[family]


def joined(tokenizer, tokens, *, special=True) -> bytes:
    return b"".join(tokenizer.token_bytes(token, special=special) or b"" for token in tokens)


def is_the_text(data: bytes, text: str, family: str) -> bool:
    """Whether bytes are a text, but for a space that a decoder leaves out at an end."""
    told = data.decode(errors="ignore" if family == "ByT5" else "replace")
    ends = {told, told.removeprefix(" ")}
    return text in (
        ends | {each.removesuffix(" ") for each in ends} if family == "suffixes" else ends
    )


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None)
@given(text=st.text(st.sampled_from("fox The.é日😀\u200d👧\n ▁ü'n<x|>")) | st.text(max_size=12))
@example(text=" für <日本>  <|x|>▁é 😀👩‍👩‍👧‍👦 n't  fox. <s>")
def test_bytes_of_the_tokens_of_a_text_are_the_text(family, text):
    tokenizer = tokenizer_of(family)
    tokens = tokenizer.encode(text)
    for special in (False, True):
        shown = tokenizer.decode(tokens, special=special)
        assert is_the_text(joined(tokenizer, tokens, special=special), shown, family)
    if "bytes" in family or family == "ByT5":
        assert joined(tokenizer, tokenizer.encode(text, special=False)) == text.encode()


def test_bytes_of_one_family_are_the_ones_that_were_written():
    tokenizer = tokenizer_of("byte fallback")
    for text in ("The fox", "日本😀", "a▁b"):
        written = text.replace("▁", " ").encode()
        assert joined(tokenizer, tokenizer.encode(text)) == written


@pytest.mark.parametrize("family", ["bytes", "byte fallback", "GGUF, bytes"])
def test_bytes_are_those_that_forms_are_kept_by(family):
    """One mechanism knows them for log-probabilities, another for grammars: llguidance."""
    llguidance = pytest.importorskip("llguidance", reason="forms need llguidance")
    tokenizer = tokenizer_of(family)
    theirs = llguidance.LLTokenizer(tokenizer.as_json(), eos_token=2)
    special = {tokenizer.number(piece) for piece in tokenizer.special_pieces()}
    for token in set(range(tokenizer.size)) - special:
        if tokenizer.token_bytes(token) != b"\xff":  # which stands for special ones there
            assert tokenizer.token_bytes(token) == theirs.decode_bytes([token]), token


def test_a_token_that_there_is_not_has_no_bytes():
    for family in FAMILIES:
        tokenizer = tokenizer_of(family)
        assert tokenizer.token_bytes(tokenizer.size) is None
        assert tokenizer.token_bytes(-1) is None


def test_a_special_token_is_shown_as_its_own_text_or_not_at_all():
    tokenizer = tokenizer_of("bytes")
    end = tokenizer.number("</s>")
    assert tokenizer.token_bytes(end) == b"</s>"
    assert tokenizer.token_bytes(end, special=False) == b""


def test_an_added_token_is_its_own_text_in_a_vocabulary_of_bytes():
    tokenizer = tokenizer_of("bytes, added tokens")
    tokens = tokenizer.encode("für <日本>é")
    assert tokenizer.decode(tokens) == "für <日本>é"
    number = tokenizer.number("für")
    assert tokens[0] == number
    assert tokenizer.token_bytes(number) == "für".encode()
    assert tokenizer.decode([number, *tokenizer.encode("é")[:1]]) == "für\N{REPLACEMENT CHARACTER}"


def places(tokenizer, tokens):
    """The place of each token by `TokenOffsets`, and the text that pieces add up to."""
    decode = tokenizer.decode
    offsets = TokenOffsets(decode, lambda token: tokenizer.token_bytes(token, special=False) or b"")
    pieces = IncrementalDecoder(decode)
    found = [offsets.push(token) for token in tokens]
    return found, "".join(map(pieces.push, tokens)) + pieces.finish()


@pytest.mark.parametrize("family", [each for each in FAMILIES if each != "suffixes"])
@settings(max_examples=25, deadline=None)
@given(text=st.text(st.sampled_from("fox The.é日😀\u200d👧\n ▁ü'n<x|>")) | st.text(max_size=12))
@example(text=" für <日本>  <|x|>▁é 😀👩‍👩‍👧‍👦 n't  fox. <s> the")
def test_places_are_those_of_the_characters_that_tokens_are_of(family, text):
    tokenizer = tokenizer_of(family)
    tokens = tokenizer.encode(text)
    found, whole = places(tokenizer, tokens)
    data = [tokenizer.token_bytes(token, special=False) or b"" for token in tokens]
    lost = len(b"".join(data).decode(errors="ignore")) - len(whole)
    before = [b"".join(data[:number]).decode(errors="ignore") for number in range(len(data))]
    assert found == [max(0, len(each) - lost) for each in before]


@pytest.mark.parametrize("family", ["bytes", "byte fallback, a space first", "ByT5"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_places_in_any_bytes_stay_within_the_text(family, data):
    tokenizer = tokenizer_of(family)
    numbers = st.integers(0, tokenizer.size - 1)
    tokens = data.draw(st.lists(numbers, max_size=14))
    found, text = places(tokenizer, tokens)
    assert found == sorted(found)
    assert all(0 <= place <= len(text) for place in found)
    for place, token in zip(found[1:], tokens[1:], strict=True):
        own = tokenizer.token_bytes(token, special=False) or b""
        try:
            shown = own.decode()
        except UnicodeDecodeError:
            continue
        if family == "bytes":  # where it begins with what ends a character it is part of that
            assert text[place : place + len(shown)] == shown


@pytest.mark.parametrize("trims", [False, True])
@settings(max_examples=40, deadline=None)
@given(text=st.text(st.sampled_from("fox The.é日😀\u200d👧\n ü'n<x|>")) | st.text(max_size=12))
@example(text=" für <日本>  <|x|> 😀👩‍👩‍👧‍👦 n't  fox.")
@example(text=" ")
def test_places_in_a_text_that_is_given_are_those_in_one_that_is_made(trims, text):
    """Between special tokens, and where the library leaves spaces out of its offsets."""
    # A decoder holds U+FFFD back, as it stands for bytes that are no UTF-8. Special tokens have no
    # text; Hypothesis also draws texts that it finds in the code.
    assume(not any(each in text for each in ("\ufffd", *SPECIAL)))
    family = f"trims: {trims}"
    if family not in _made:
        made = of_bytes_with_added()
        around = [(piece, made.token_to_id(piece)) for piece in ("<s>", "</s>")]
        made.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=trims),
            processors.TemplateProcessing(
                single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=around
            ),
        ])  # fmt: skip
        _made[family] = TextTokenizer(made.to_str().encode(), family)
    tokenizer = _made[family]
    assert tokenizer.offsets(text) == places(tokenizer, tokenizer.encode(text))[0]
