"""`gptrs bench`: figures of a model and of the machine, for people and for scripts."""

from __future__ import annotations

import pytest

from gptrs.ir import dtypes
from gptrs.nn import CausalLMModule
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_gpt2 import save_tiny_gpt2
from runtime.tiny_resnet import save_tiny_resnet

CONTRACT = {"work", "threads", "ours", "peer", "peer_name", "ratio", "unit", "share_of_limit"}


@pytest.fixture
def quick(model_directory):
    return ("--model", model_directory, "--rounds", 1)


def test_generation_as_json(gptrs, quick):
    asked = ("--prompt-lengths", "4", "--context", 5, "--new-tokens", 2, "--threads", 1)
    asked += ("--new-lengths", 2, "--gaps", 3, "--texts", "2")
    found = gptrs("bench", "generate", *quick, *asked, "--json").json
    assert {"processor", "cores", "read_gb_per_s", "gflop_per_s"} <= found["machine"].keys()
    assert (found["model"], found["backend"]) == ("tiny", "ref")
    assert all(row.keys() >= CONTRACT for row in found["rows"])
    by_work = {row["work"]: row for row in found["rows"]}
    decode = by_work["decode after 5 tokens"]
    assert (decode["unit"], decode["threads"], decode["peer"]) == ("tok/s", 1, None)
    assert decode["ours"] > 0
    assert decode["share_of_limit"] > 0
    assert by_work["decode of 2 texts after 5 tokens"]["unit"] == "tok/s"
    assert by_work["gap between 3 tokens, longest"]["unit"] == "s"
    assert any(work.startswith("first token, 2 new lengths of ") for work in by_work)


def test_the_cache_has_the_elements_that_were_asked_for(gptrs, quick, monkeypatch):
    found = set()
    made = CausalLMModule.new_buffers

    def new_buffers(self, pages, dtype=dtypes.f32):
        found.add(dtype)
        return made(self, pages, dtype)

    monkeypatch.setattr(CausalLMModule, "new_buffers", new_buffers)
    asked = ("--prompt-lengths", "4", "--context", 5, "--new-tokens", 2, "--gaps", 3)
    assert gptrs("bench", "generate", *quick, *asked, "--cache-dtype", "bf16").code == 0
    assert found == {dtypes.bf16}


def test_several_numbers_of_threads_are_one_table(gptrs, quick):
    asked = ("bench", "forward", *quick, "--tokens", 6, "--thread-counts", "1,2")
    rows = gptrs(*asked, "--json").json["rows"]
    assert [row["threads"] for row in rows] == [1] * (len(rows) // 2) + [2] * (len(rows) // 2)
    works = [row["work"] for row in rows]
    assert works == 2 * works[: len(works) // 2]
    lines = gptrs(*asked).out.splitlines()
    assert lines[0].startswith("THREADS")
    assert {line.split()[0] for line in lines[1:]} == {"1", "2"}
    for wrong in (("--threads", 2), ()):
        refused = gptrs(*asked[:-1], "0,1" if not wrong else "1", *wrong)
        assert refused.code == 2


def test_forward_as_a_table(gptrs, quick):
    result = gptrs("bench", "forward", *quick, "--tokens", 6)
    assert result.code == 0
    assert "forward of [1, 6]" in result.out
    assert "tiny on ref" in result.err
    assert "GB/s" in result.err


@pytest.mark.parametrize(
    ("save", "options", "work", "unit"),
    [
        (save_tiny_bert, ("--tokens", 5, "--batch", 2), "forward of [2, 5]", "tok/s"),
        (save_tiny_resnet, ("--batch", 2), "forward of [2, 3, 32, 32]", "images/s"),
    ],
)
def test_models_of_every_kind(gptrs, tmp_path, save, options, work, unit):
    model = ("--model", save(tmp_path / "model"), "--rounds", 1)
    rows = {
        row["work"]: row
        for row in gptrs("bench", "forward", *model, *options, "--json").json["rows"]
    }
    assert rows[work]["ours"] > 0
    assert rows[f"{work}, rate"]["unit"] == unit
    refused = gptrs("bench", "generate", *model)
    assert refused.code == 3
    assert "generates no text; `gptrs bench forward` measures it" in refused.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("generate", "--context", 64), "do not fit into the context of 64 tokens"),
        (("forward", "--tokens", 65), "65 tokens do not fit into the context of 64 tokens"),
        (("generate", "--cache-dtype", "q3"), "elements of f32, bf16, f16, q8, got"),
        (("generate", "--prompt-lengths", "a"), "`--prompt-lengths` needs numbers of tokens"),
    ],
)
def test_what_does_not_fit_is_said_at_once(gptrs, quick, arguments, text):
    result = gptrs("bench", *arguments, *quick)
    assert result.code == 2
    assert text in result.err


QUICK = ("--backend", "ref", "--rounds", 1, "--requests", 1, "--prompt-tokens", 2)


@pytest.mark.long
def test_load_on_an_engine_and_a_server(gptrs, tmp_path):
    pytest.importorskip("uvicorn", reason="gptrs-serve is not installed")
    model = ("--model", save_tiny_gpt2(tmp_path / "tiny"))
    asked = ("bench", "serve", *model, *QUICK, "--streams", "1,3", "--new-tokens", 4)
    found = gptrs(*asked, "--json").json
    rows = found["rows"]
    assert [(row["streams"], row["over"]) for row in rows] == [
        (1, "engine"), (1, "http"), (3, "engine"), (3, "http"),
    ]  # fmt: skip
    for row in rows:
        assert 0 < row["first_token_ms"] <= row["first_token_ms_99"]
        assert row["gap_ms"] <= row["gap_ms_99"]
        assert row["tokens_per_s"] > row["requests_per_s"] > 0
        assert row["requests"] == 8
    first, second = found["ratios"]
    assert (first["streams"], second["streams"]) == (1, 3)
    assert set(first["of_fewest"].values()) == {1.0}
    ours, over_http = rows[2]["tokens_per_s"], rows[3]["tokens_per_s"]
    assert second["of_engine"]["median"] == pytest.approx(over_http / ours)
    assert second["of_fewest"]["median"] == pytest.approx(ours / rows[0]["tokens_per_s"])
    text = gptrs(*asked)
    assert "3 streams: " in text.err
    assert "medians of 1 round, engine and HTTP in turn" in text.err


@pytest.mark.exhaustive
@pytest.mark.long
def test_a_server_has_the_cache_that_was_asked_for(gptrs, tmp_path):
    pytest.importorskip("uvicorn", reason="gptrs-serve is not installed")
    folder = save_tiny_gpt2(tmp_path / "tiny")
    asked = ("bench", "serve", "--model", folder, *QUICK, "--streams", 1, "--new-tokens", 2)
    assert gptrs(*asked, "--cache-dtype", "q8").code == 0
    assert gptrs(*asked, "--weights", "q8", "--precision", "f32").code == 0
    refused = gptrs(*asked, "--backend-option", "nothing=1")
    assert refused.code == 2
    assert "nothing" in refused.err
    refused = gptrs("serve", str(folder), "--port", 0, "--cache-dtype", "q3")
    assert refused.code == 2
    assert "elements of f32, bf16, f16, q8, got" in refused.err


def test_load_needs_a_tokenizer(gptrs, tmp_path):
    folder = save_tiny_gpt2(tmp_path / "tiny")
    (folder / "tokenizer.json").unlink()
    result = gptrs("bench", "serve", "--model", folder, *QUICK, "--streams", 1, "--new-tokens", 4)
    assert result.code == 2
    assert "has no tokenizer" in result.err


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--url", "ftp://x"), 2, "`ftp://x` is not an address of the form http://HOST:PORT"),
        (("--url", "http://127.0.0.1:9"), 1, "the server at 127.0.0.1 port 9 does not answer"),
        (("--url", "http://127.0.0.1:9", "--new-tokens", 9999), 2, "do not fit into the context"),
    ],
)
def test_load_that_cannot_be_measured(gptrs, words, code, message):
    result = gptrs("bench", "serve", *QUICK, "--streams", 1, *words)
    assert message in result.err
    assert result.code == code
