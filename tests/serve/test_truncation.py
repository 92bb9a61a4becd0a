"""Texts that are longer than a model reads: refused unless they may be cut, counted as read."""

from __future__ import annotations

import pytest

from gptrs_runtime.load import load_model
from gptrs_runtime.text_classes.classify import longest_text
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_heads import save_tiny_head
from serve.clients import post
from serve.conftest import serving

CLASSES = "ForSequenceClassification"
SHORT, LONG = "the cat", "the cat sat " * 40
CALLS = {
    "/v1/embeddings": lambda texts: {"input": texts},
    "/v1/classify": lambda texts: {"input": texts},
    "/v1/rerank": lambda texts: {"query": "red", "documents": texts},
}
CUTS = ({"truncate": True}, {"truncate_prompt_tokens": -1})


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    root = tmp_path_factory.mktemp("readers")
    folders = {
        "/v1/embeddings": save_tiny_bert(root / "bert"),
        "/v1/classify": save_tiny_head(root / "classes", CLASSES, ("no", "maybe", "yes")),
        "/v1/rerank": save_tiny_head(root / "ranker", CLASSES, ("score",)),
    }
    models = {path: load_model(folder, backend="ref") for path, folder in folders.items()}
    with serving(models) as (address, _):
        yield address, models


def test_a_completion_reads_the_last_tokens_of_a_prompt(address, model):
    def ask(prompt, **fields):
        asked = {"temperature": 0, "max_tokens": 4, "return_token_ids": True, "prompt": prompt}
        return post(address, "/v1/completions", {**asked, **fields})

    tokens = model.tokenizer.encode(LONG)
    limit = model.causal_lm().context_length
    assert ask(LONG).status_code == 400
    for count, read in ((3, 3), (len(tokens), None), (-1, limit - 4), (-1, limit - 9)):
        most = 9 if read == limit - 9 else 4
        kept = tokens[-read:] if read else tokens
        for prompt in (LONG, tokens):
            found = ask(prompt, truncate_prompt_tokens=count, max_tokens=most)
            if read is None:  # nothing is cut, and it does not fit
                assert found.status_code == 400
                continue
            (choice,) = found.json()["choices"]
            assert choice["prompt_token_ids"] == kept
            assert (
                choice["token_ids"] == ask(kept, max_tokens=most).json()["choices"][0]["token_ids"]
            )
    echoed = ask(SHORT, truncate_prompt_tokens=1, echo=True).json()["choices"][0]["text"]
    assert echoed.startswith(model.tokenizer.decode(model.tokenizer.encode(SHORT)[-1:]))
    for wrong in (
        {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": 2, "suffix": "x"},
    ):
        refused = ask("a", **wrong)
        param = refused.json()["error"]["param"]
        assert (refused.status_code, param) == (400, "truncate_prompt_tokens")
    assert ask("a " * 300_000, truncate_prompt_tokens=2).status_code == 413


@pytest.mark.parametrize("path", CALLS)
def test_long_texts_are_refused_unless_they_may_be_cut(readers, path):
    address, models = readers
    embeds = path == "/v1/embeddings"
    model = models[path]
    limit = model.token_reader().context_length if embeds else longest_text(model)
    more = 1 + len(["red"]) if path == "/v1/rerank" else 0
    whole = 120 + 2 + more

    def ask(texts, **options):
        return post(address, path, {"model": path, **CALLS[path](texts), **options})

    for options in ({}, {"truncate": False}, {"truncate": None}, {"truncate": False, **CUTS[1]}):
        refused = ask([SHORT, LONG], **options)
        assert refused.status_code == 400, refused.text
        error = refused.json()["error"]
        named = "`query` with `documents[1]`" if path == "/v1/rerank" else "`input[1]`"
        told = f"{named} has {whole} tokens, the model reads {limit} of a text; `truncate` cuts it"
        assert error["message"] == told
        assert (error["code"], error["param"]) == ("context_length_exceeded", "truncate")
    short = ask([SHORT])
    assert short.json()["usage"] == {"prompt_tokens": 4 + more, "total_tokens": 4 + more}
    for options in CUTS:
        cut = ask([SHORT, LONG], **options)
        assert cut.status_code == 200, cut.text
        assert cut.json()["usage"]["prompt_tokens"] == 4 + more + limit
    assert ask([LONG], truncate_prompt_tokens=7).status_code == 400
