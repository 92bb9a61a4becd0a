"""Long texts have the same tokens in slices as together, and are given up on Ctrl-C."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from gptrs.errors import UsageError
from gptrs_runtime.tokenization import tokenizer as tokenizer_module
from gptrs_runtime.tokenization.encoded_text import Overrides
from gptrs_runtime.tokenization.text_slices import is_sliceable, slices
from gptrs_runtime.tokenization.tokenizer import TextTokenizer

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = (
    *("the", "theme", "a", "I'm", "don't", "they'LL", "über", "naïve", "日本語", "e\u0301t\u0301"),
    *("123456", "3.14", "x=y", "...", "<s>", "<mask>", "<mask>s", "\u0130", "ΣΑΣ", "ﬁn", "\u00a8"),
    *(
        "\n",
        "\t",
        " ",
        "  ",
        "\r\n",
        "\u00a0",
        "\u2028",
        "🙂",
        "👩‍👩‍👧",
        "\u0301",
        "a b c",
        "is it",
        "\0",
    ),
)


def random_text(seed: int, words: int = 400) -> str:
    chosen = random.Random(seed)
    parts = [chosen.choice(WORDS) for _ in range(words)]
    return "".join(part + chosen.choice(["", " ", " ", " is it ", "\n"]) for part in parts)


CORPUS = [random_text(seed) for seed in range(20)]


def byte_level(pre_tokenizer: object) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizer
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=600,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<s>"],
            show_progress=False,
        ),
    )
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return made


def gpt2() -> Tokenizer:
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def roberta() -> Tokenizer:
    made = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))
    made.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    made.post_processor = processors.RobertaProcessing(("<s>", 0), ("<s>", 0))
    return made


def split(expression: str) -> Tokenizer:
    isolated = pre_tokenizers.Split(Regex(expression), "isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made = byte_level(pre_tokenizers.Sequence([isolated, plain]))
    made.normalizer = normalizers.NFC()
    return made


def bert() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]", "<mask>"]
    made.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False),
    )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return made


def unigram(scheme: str, whitespace: bool) -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    spaces = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    both = [pre_tokenizers.WhitespaceSplit(), spaces]
    made.pre_tokenizer = pre_tokenizers.Sequence(both) if whitespace else spaces
    made.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=300, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False
        ),
    )
    return made


def modern_bert() -> Tokenizer:
    made = gpt2()
    made.add_tokens([" " * count for count in (2, 3, 4)])
    return made


TOKENIZERS = {
    "gpt2": gpt2,
    "modern bert": modern_bert,
    "roberta": roberta,
    "llama3": lambda: split(LLAMA3),
    "qwen": lambda: split(LLAMA3.replace("{1,3}", "")),
    "tekken": lambda: split(TEKKEN),
    "bert": bert,
    "t5": lambda: unigram("always", whitespace=True),
    "metaspace": lambda: unigram("always", whitespace=False),
    "metaspace first": lambda: unigram("first", whitespace=False),
}


@pytest.mark.long
@pytest.mark.parametrize("name", TOKENIZERS)
def test_slices_have_the_tokens_of_the_whole(name, monkeypatch):
    made = TOKENIZERS[name]()
    assert is_sliceable(made)
    ours = TextTokenizer(made.to_str().encode(), name)
    left = TextTokenizer(made.to_str().encode(), name, overrides=Overrides(cuts_left=True))
    monkeypatch.setattr(tokenizer_module, "SLICE", 0)
    monkeypatch.setattr(tokenizer_module, "slices", lambda text: slices(text, 1))
    cuts = 0
    for seed in range(100, 125):
        text = random_text(seed, 60)
        cuts += len(list(slices(text, 1))) - 1
        whole = made.encode(text)
        assert ours.encode(text) == whole.ids
        assert ours.encode(text, special=False) == made.encode(text, add_special_tokens=False).ids
        assert ours.prefix_length(text) == len(whole.ids) - (whole.special_tokens_mask[-1:] == [1])
        limited = Tokenizer.from_str(made.to_str())
        limited.enable_truncation(20)
        assert ours.encode_within(text, 20)[0] == limited.encode(text).ids
        limited.enable_truncation(20, direction="left")
        assert left.encode_within(text, 20)[0] == limited.encode(text).ids
    assert cuts > 120


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_long_text_has_the_tokens_of_the_whole(name):
    made = TOKENIZERS[name]()
    text = "".join(random_text(seed) for seed in range(200, 280))
    assert len(list(slices(text))) > 2
    assert TextTokenizer(made.to_str().encode(), name).encode(text) == made.encode(text).ids


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("words", ["A 1 ", "1, 2. ", "x)\n  - "])
def test_a_cut_text_is_read_as_far_as_its_tokens_need(monkeypatch, words, side):
    ours = TextTokenizer(
        gpt2().to_str().encode(), "t", overrides=Overrides(cuts_left=side == "left")
    )
    text = "begin " + words * 50_000 + "end"
    whole = ours.encode(text, special=False)
    read: list[str] = []
    encode = TextTokenizer._interruptible

    def noted(tokenizer, part, offsets):
        read.append(part)
        return encode(tokenizer, part, offsets)

    monkeypatch.setattr(TextTokenizer, "_interruptible", noted)
    tokens, length = ours.encode_within(text, 100)
    assert tokens == (whole[-100:] if side == "left" else whole[:100])
    assert length.or_more
    assert len(read) == 1


def test_special_tokens_surround_a_long_text_without_tokens(monkeypatch):
    made = bert()
    made.model = models.BPE({"[CLS]": 0, "[SEP]": 1}, [])
    made.post_processor = processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0))
    ours = TextTokenizer(made.to_str().encode(), "t")
    monkeypatch.setattr(tokenizer_module, "SLICE", 0)
    assert ours.encode("a b") == made.encode("a b").ids == [0, 1]
    assert ours.encode("a b", special=False) == []


def changed(change) -> Tokenizer:
    made = gpt2()
    change(made)
    return made


def _set(part: str, value: object):
    return lambda made: setattr(made, part, value)


@pytest.mark.parametrize(
    "change",
    [
        _set("pre_tokenizer", None),
        _set("pre_tokenizer", pre_tokenizers.ByteLevel(use_regex=False)),
        _set("pre_tokenizer", pre_tokenizers.Metaspace(split=False)),
        _set("pre_tokenizer", pre_tokenizers.Split(Regex(r"\s+"), "isolated")),
        _set("pre_tokenizer", pre_tokenizers.Split(Regex(LLAMA3), "merged_with_next")),
        _set("pre_tokenizer", pre_tokenizers.Split(Regex(LLAMA3), "isolated", invert=True)),
        _set("pre_tokenizer", pre_tokenizers.Split(Regex(LLAMA3 + "|a b"), "isolated")),
        _set("pre_tokenizer", pre_tokenizers.Split(Regex(LLAMA3[: -len(r"|\s+")]), "isolated")),
        _set("pre_tokenizer", pre_tokenizers.Split(" ", "isolated")),
        _set("pre_tokenizer", pre_tokenizers.CharDelimiterSplit("e")),
        _set("normalizer", normalizers.Strip()),
        _set("normalizer", normalizers.Prepend("x")),
        _set("normalizer", normalizers.Replace(" ", "x")),
        _set(
            "normalizer", normalizers.Sequence([normalizers.NFC(), normalizers.Replace("a", "b")])
        ),
        lambda made: made.add_tokens(["is it"]),
        lambda made: made.add_tokens(["x "]),
        lambda made: made.add_tokens([AddedToken(" x", single_word=True)]),
        lambda made: made.add_tokens([AddedToken("the", rstrip=True)]),
        _set("model", models.BPE(dropout=0.5)),
    ],
)
def test_others_are_not_cut(change):
    assert is_sliceable(gpt2())
    assert not is_sliceable(changed(change))


def test_a_text_that_cannot_be_cut_is_bounded(monkeypatch):
    ours = TextTokenizer(changed(_set("pre_tokenizer", None)).to_str().encode(), "t")
    monkeypatch.setattr(tokenizer_module, "MOST_BYTES", 1000)
    monkeypatch.setattr(tokenizer_module, "SLICE", 500)
    assert ours.encode("a" * 200)
    with pytest.raises(UsageError, match="a text of 1001 characters is too long for this"):
        ours.encode("a b " * 250 + "a")


SLOW = """
import sys
from gptrs_runtime.tokenization.tokenizer import TextTokenizer
tokenizer = TextTokenizer(open(sys.argv[1], "rb").read(), "slow")
print("started", flush=True)
try:
    tokenizer.encode("a" * 1_000_000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    import os
    os._exit(0)
"""


def test_a_slow_text_is_given_up_on_ctrl_c(tmp_path):
    pieces = [["<unk>", 0.0], *(["a" * length, -float(length)] for length in range(1, 400))]
    file = tmp_path / "tokenizer.json"
    model = {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}
    file.write_text(json.dumps({"model": model}))
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(file)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(0.5)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"
    assert time.monotonic() - begun < 20


def test_a_panic_of_the_library_prints_nothing(tmp_path):
    code = (
        "import os, sys\n"
        "from gptrs_runtime.tokenization.encoded_text import panics_unheard\n"
        "with panics_unheard():\n    os.write(2, b'kept\\n')\n"
        "try:\n    with panics_unheard():\n"
        "        os.write(2, b'panic\\n')\n        raise ValueError\n"
        "except ValueError:\n    os.write(2, b'after\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.stderr == b"kept\nafter\n"


def test_threads_encode_long_texts_at_once():
    ours = TextTokenizer(gpt2().to_str().encode(), "t")
    texts = ["".join(random_text(seed + i) for i in range(30)) for seed in range(4)]
    expected = [ours.encode(text) for text in texts]
    found: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: ours.encode(texts[n])}))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n] for n in range(4)] == expected
    assert os.fstat(2)
