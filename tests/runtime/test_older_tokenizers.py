"""Tokenizers in `vocab.json` and `merges.txt` are read as transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from gptrs.errors import ModelError
from gptrs_runtime.converting.convert import convert
from gptrs_runtime.generation.text_stream import IncrementalDecoder
from gptrs_runtime.sources.byte_bpe_files import CLASSES
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.tokenization.tokenizer import TextTokenizer, tokenizer_of
from models.llama_support import edit_config
from runtime.tiny_gpt2 import save_tiny_gpt2

TEXTS = (
    "The quick brown fox isn't 12345 years old.",
    "  two spaces,\ttabs\n\nand lines  ",
    "Grüße, 世界! 🙂 don't STOP",
    "<s> a <mask> of it</s> <|endoftext|> and <extra> more",
    "",
)
OF_ROBERTA = ["<s>", "</s>", "<unk>", "<pad>", "<mask>"]
CASES = {
    "gpt2": ("GPT2Tokenizer", ["<|endoftext|>"], {}),
    "gpt2 with a space": ("GPT2TokenizerFast", ["<|endoftext|>"], {"add_prefix_space": True}),
    "gpt2 without its token": ("GPT2Tokenizer", [], {}),
    "gpt2 with a token before": ("GPT2Tokenizer", ["</s>"], {
        "add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>", "unk_token": None,
    }),
    "gpt2 with tokens around": (
        "GPT2Tokenizer", [], {"add_bos_token": True, "add_eos_token": True, "eos_token": "</s>"},
    ),
    "gpt2 with a numbered token": ("GPT2Tokenizer", [], {"added_tokens_decoder": {
        "600": {
            "content": "<mask>", "special": True, "lstrip": False, "rstrip": False,
            "normalized": False, "single_word": False,
        },
    }}),
    "qwen2 without special tokens": (
        "Qwen2Tokenizer", [], dict.fromkeys(("eos_token", "unk_token", "pad_token")),
    ),
    "roberta": ("RobertaTokenizer", OF_ROBERTA, {"mask_token": {
        "__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False,
        "normalized": False, "single_word": False, "special": True,
    }}),
    "bart": ("BartTokenizer", OF_ROBERTA, {}),
    "qwen2": ("Qwen2Tokenizer", [], {"eos_token": "<|im_end|>", "added_tokens_decoder": {
        str(number): {
            "content": text, "special": text[1] == "|", "lstrip": False, "rstrip": False,
            "normalized": False, "single_word": False,
        }
        for number, text in ((600, "<|endoftext|>"), (601, "<|im_end|>"), (602, "<extra>"))
    }}),
    "clip": ("CLIPTokenizer", ["<|startoftext|>", "<|endoftext|>"], {}),
}  # fmt: skip


def save(folder: Path, special: list[str], settings: dict[str, object], suffix: str = "") -> Path:
    """Save a model with a vocabulary of 600 entries that was learned from these tests."""
    save_tiny_gpt2(folder, tokenizer=False)
    learned = Tokenizer(models.BPE(end_of_word_suffix=suffix) if suffix else models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
        **({"end_of_word_suffix": suffix} if suffix else {}),
    )
    learned.train_from_iterator([Path(__file__).read_text().lower(), *TEXTS], trainer)
    model = json.loads(learned.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = [" ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *lines]) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_transformers(tmp_path, case):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    name, special, settings = CASES[case]
    suffix = "</w>" if name == "CLIPTokenizer" else ""
    folder = save(tmp_path / "m", special, {"tokenizer_class": name, **settings}, suffix)
    theirs = getattr(transformers, name).from_pretrained(folder)
    ours = tokenizer_of(find_model(folder), "m")
    for text in TEXTS:
        tokens = theirs(text)["input_ids"]
        assert ours.encode(text) == tokens, text
        if name != "CLIPTokenizer":  # whose text transformers takes the ends of words from
            wanted = theirs.decode(tokens, clean_up_tokenization_spaces=False)
            assert ours.decode(tokens, special=True) == wanted
    pair = ours.encode_pair("a fox", "so it is", 99).tokens
    if "Roberta" in name or name == "BartTokenizer" or "add_bos_token" in settings:
        assert list(pair) == theirs("a fox", "so it is")["input_ids"]


def test_such_a_folder_has_a_tokenizer_for_all_who_ask(tmp_path):
    folder = save(tmp_path / "m", ["<|endoftext|>"], {"tokenizer_class": "GPT2Tokenizer"})
    source = find_model(folder)
    assert source.has_file("tokenizer.json")
    convert(folder, tmp_path / "m.gptrschk")  # one file has what was made
    assert find_model(tmp_path / "m.gptrschk").has_file("tokenizer.json")
    read = TextTokenizer(source.read_bytes("tokenizer.json") or b"", "tokenizer.json")
    assert read.decode(read.encode("as it was")) == "as it was"


@pytest.mark.parametrize("config", [{"tokenizer_class": "GPT2TokenizerFast"}, {}])
def test_the_class_follows_from_config_json_too(tmp_path, config):
    folder = save(tmp_path / "m", ["<|endoftext|>"], {})
    edit_config(folder, **config)
    named = save(tmp_path / "n", ["<|endoftext|>"], {"tokenizer_class": "GPT2Tokenizer"})
    ours, wanted = (tokenizer_of(find_model(each), "m") for each in (folder, named))
    assert ours.as_json() == wanted.as_json()


def test_a_file_of_its_own_goes_first(tmp_path):
    folder = save(tmp_path / "m", [], {"tokenizer_class": "GPT2Tokenizer"})
    (folder / "tokenizer.json").write_text("{}")
    assert find_model(folder).read_bytes("tokenizer.json") == b"{}"


OF_BYTES = ("gap <extra_id_0>, <extra_id_1> end", "\0\x7f\xa0\xad\n\ufeff", "a <pad> b")
BYTE_SETTINGS: dict[str, dict[str, object]] = {
    "plain": {},
    "of fewer gaps": {"extra_ids": 7},
    "of listed gaps": {
        "extra_ids": 2,
        "additional_special_tokens": ["<extra_id_1>", "<extra_id_0>"],
    },
    "of its own end": {
        "eos_token": {
            "__type": "AddedToken", "content": "<end>", "lstrip": False, "rstrip": False,
            "normalized": False, "single_word": False,
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("case", BYTE_SETTINGS)
def test_bytes_are_the_tokens_of_byt5(tmp_path, case, saved):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    folder = save_tiny_gpt2(tmp_path / "m", tokenizer=False)
    settings = {"tokenizer_class": "ByT5Tokenizer", **BYTE_SETTINGS[case]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.ByT5Tokenizer.from_pretrained(folder)
    if saved:  # with the numbers of its tokens
        theirs.save_pretrained(folder)
    ours = tokenizer_of(find_model(folder), "m")
    assert ours.size == len(theirs)
    for text in (*TEXTS, *OF_BYTES):
        tokens = theirs(text)["input_ids"]
        assert ours.encode(text) == tokens, text
        assert ours.decode(tokens, special=True) == theirs.decode(tokens), text
        assert ours.encode(text, special=False) == tokens[:-1], text
    pair = ours.encode_pair("a fox", "so it is", 99).tokens
    assert list(pair) == theirs("a fox", "so it is")["input_ids"]


BROKEN = {
    "a lead byte at the end": [0x61, 0xC3],
    "a lead byte before a letter": [0xC3, 0x61],
    "bytes that follow nothing": [0x80, 0x62, 0xBF],
    "a character of four bytes without its last": [0xF0, 0x9F, 0x98, 0x63],
    "a surrogate": [0xED, 0xA0, 0x80, 0x64],
    "two bytes for one": [0xC0, 0xAF],
    "the character that stands for damage": [0xEF, 0xBF, 0xBD, 0xEF, 0xBF],
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_characters_of_byt5_are_left_out(tmp_path, case):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    folder = save_tiny_gpt2(tmp_path / "m", tokenizer=False)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    theirs = transformers.ByT5Tokenizer.from_pretrained(folder)
    ours = tokenizer_of(find_model(folder), "m")
    tokens = [0, *(byte + 3 for byte in BROKEN[case]), 1, 0x78 + 3, 259]
    assert ours.decode(tokens, special=True) == theirs.decode(tokens)
    expected = theirs.decode(tokens, skip_special_tokens=True)
    assert ours.decode(tokens) == expected
    stream = IncrementalDecoder(ours.decode)
    assert "".join(map(stream.push, tokens)) + stream.finish() == expected
    convert(folder, tmp_path / "m.gptrschk")
    again = tokenizer_of(find_model(tmp_path / "m.gptrschk"), "m")
    assert again.decode(tokens) == expected


def test_bytes_in_a_converted_model(tmp_path):
    folder = save_tiny_gpt2(tmp_path / "m", tokenizer=False)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    convert(folder, tmp_path / "m.gptrschk")
    ours = tokenizer_of(find_model(tmp_path / "m.gptrschk"), "m")
    assert ours.encode("é</s>") == [0xC3 + 3, 0xA9 + 3, 1, 1]


@pytest.mark.parametrize("gaps", [-1, 10**9, "7"])
def test_a_number_of_gaps_that_cannot_be_is_told(tmp_path, gaps):
    folder = save_tiny_gpt2(tmp_path / "m", tokenizer=False)
    settings = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": gaps}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=f"`extra_ids` .* must be a number up to .*{gaps}"):
        tokenizer_of(find_model(folder), "m")


def test_a_tokenizer_in_python_is_told(tmp_path):
    folder = save(tmp_path / "m", [], {"tokenizer_class": "BioGptTokenizer"})
    with pytest.raises(ModelError, match=r"has no tokenizer\.json") as caught:
        tokenizer_of(find_model(folder), "m")
    assert "cut by code in Python" in str(caught.value.hint)
    assert "--prompt-ids" in str(caught.value.hint)


@pytest.mark.parametrize("settings", [{}, {"tokenizer_class": "BlenderbotTokenizer"}])
def test_a_class_that_is_not_known_is_told(tmp_path, settings):
    folder = save(tmp_path / "m", [], settings)
    edit_config(folder, model_type="llama")
    with pytest.raises(ModelError, match=r"has no tokenizer\.json") as caught:
        tokenizer_of(find_model(folder), "m")
    assert all(name in str(caught.value.hint) for name in [*list(CLASSES)[:2], "tokenizer_class"])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("vocab.json", '{"a": "b"}', "must number its tokens"),
        ("vocab.json", "[]", "must be an object"),
        ("merges.txt", "#version: 0.2\na b c\n", "line 2 of `merges.txt` must be two tokens"),
        ("merges.txt", "a q\n", "the tokenizer in `vocab.json and merges.txt` cannot be read"),
    ],
)
def test_malformed_files_are_told(tmp_path, file, content, message):
    folder = save(tmp_path / "m", [], {"tokenizer_class": "GPT2Tokenizer"})
    (folder / file).write_text(content)
    with pytest.raises(ModelError, match=message):
        tokenizer_of(find_model(folder), "m")
