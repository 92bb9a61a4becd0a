"""`--json`: each command prints one object on a line, as docs/json.schema.json says."""

from __future__ import annotations

import base64
import json
import math

import jsonschema
import pytest

import json_results
from gptrs_cli.terminal.json_result import as_line
from gptrs_runtime.results import Result
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_chat import save_tiny_chat
from runtime.tiny_clip import save_tiny_clip
from runtime.tiny_heads import save_tiny_head
from runtime.tiny_whisper import save_sound, save_tiny_whisper

PROGRAM = """ptir.v0.5
func @main(%x: f32[2]) -> f32[2] {
  %0 = tanh %x : f32[2]
  return %0
}
"""
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
"""A red pixel."""
IDS = ("--tokens", "1,2")
SHORT = ("--max-tokens", 2, "--greedy", "--ignore-eos")
CASES = {
    "error": ("generate", "--model", "no-such-folder"),
    "generate": ("generate", "the", *SHORT, "--logprobs", 2, "--num-return", 2, "--profile"),
    "generate.line": ("generate", "--prompts", "prompts.jsonl", *SHORT),
    "forward": ("forward", *IDS),
    "trace": ("trace", *IDS, "--logit-lens", 2, "--module", "h.0"),
    "trace.modules": ("trace", "--modules"),
    "steer": ("steer", "--pairs", "pairs.jsonl", "--out", "vectors.npz"),
    "docs": ("docs", "kv_cache"),
    "bisect": ("bisect", "p.ptir", "ref", "ref:optimizer=off", "--random-seed", 1),
    "replay": ("replay", "p.ptir", "--random-seed", 1),
    "embed": ("embed", "--text", "a", "--text", "b", "--similarity"),
    "classify": ("classify", "--model", "nli", "--text", "a", "--pair", "the cat"),
    "rank": ("rank", "--model", "ranker", "--query", "a", "--text", "b", "--text", "the cat"),
    "match": ("match", "--model", "clip", "--image", "a.png", "--text", "a cat"),
    "tag": ("tag", "--model", "ner", "--text", "the cat", "--ignore", "none"),
    "fill": ("fill", "--model", "words", "--text", "the [MASK] sat", "--top", 2),
    "transcribe": ("transcribe", "talk.wav", "--model", "ear"),
    "tokenize": ("tokenize", "the cat"),
    "perplexity": ("perplexity", "the cat and the dog"),
    "run": ("run", "p.ptir", "--random-seed", 1),
    "bench": ("bench", "forward", "--tokens", 2, "--rounds", 1),
    "models.list": ("models", "list"),
    "models.recommended": ("models", "recommended"),
    "models.path": ("models", "path", "demo"),
    "list.backends": ("list", "backends"),
    "list.models": ("list", "models", "--all"),
    "list.plugins": ("list", "plugins"),
    "list.functionals": ("list", "functionals"),
    "list.ops": ("list", "ops"),
    "list.patterns": ("list", "patterns"),
    "inspect.checkpoint": ("inspect", "tiny"),
    "inspect.program": ("inspect", "p.ptir"),
    "inspect.pass": ("inspect", "p.ptir", "--why", "canonicalization"),
    "convert": ("convert", "tiny", "tiny.gptrschk"),
    "cache.info": ("cache", "info"),
    "cache.warm": ("cache", "warm", "--prompt-lengths", "1"),
    "cache.clear": ("cache", "clear", "--stale"),
    "plugins.check": ("plugins", "check", "demo"),
    "conformance": ("conformance", "run", "--level", "smoke", "--op", "tanh"),
}
ELSEWHERE = {
    "bench.serve",
    "conformance.report",
    "generate.event",
    "inspect.model",
    "models.pull",
    "models.remove",
    "compile",
    "quantize",
    "validate",
    "validate.against",
    "validate.outputs",
    "doctor",
}
"""Kinds that the tests of their commands check, which read `Outcome.json`."""
WITH_MODEL = (
    "generate",
    "forward",
    "trace",
    "steer",
    "tokenize",
    "perplexity",
    "bench",
    "cache warm",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    save_tiny_chat(folder / "tiny")
    save_tiny_bert(folder / "bert")
    save_tiny_head(folder / "nli", "ForSequenceClassification", ("no", "yes"))
    save_tiny_head(folder / "ranker", "ForSequenceClassification", ("score",))
    save_tiny_head(folder / "ner", "ForTokenClassification", ("O", "B-PER"))
    save_tiny_head(folder / "words", "ForMaskedLM")
    save_tiny_clip(folder / "clip")
    (folder / "a.png").write_bytes(PICTURE)
    save_tiny_whisper(folder / "ear")
    save_sound(folder / "talk.wav")
    (folder / "p.ptir").write_text(PROGRAM)
    (folder / "pairs.jsonl").write_text('{"positive": "the cat", "negative": "the dog"}\n')
    (folder / "prompts.jsonl").write_text('{"prompt": "the"}\n')
    return folder


def test_every_kind_is_tested():
    assert CASES.keys() | ELSEWHERE == json_results.KINDS.keys()


@pytest.mark.long
@pytest.mark.parametrize("kind", CASES)
def test_the_output_is_what_the_schema_says(gptrs, folder, monkeypatch, kind):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(folder / "cache"))
    arguments = [str(argument) for argument in CASES[kind]]
    if " ".join(arguments).startswith(WITH_MODEL) and "--model" not in arguments:
        arguments += ["--model", "tiny"]
    if kind == "match":
        pytest.importorskip("PIL", reason="images are read by Pillow")
    if kind == "embed":
        arguments += ["--model", "bert"]
    result = gptrs(*arguments, "--json")
    assert result.json["schema"] == f"gptrs.{kind}/1"
    assert result.out.count("\n") == 1
    assert (result.code == 0) is (kind != "error"), result.err
    jsonschema.validate(result.json, json.loads(json_results.SCHEMA.read_text()))


def test_a_stream_ends_with_the_result(gptrs, model_directory):
    asked = ("generate", "the cat", "--model", model_directory, *SHORT, "--json")
    *events, last = gptrs(*asked, "--stream").json_lines
    assert {event["schema"] for event in events} == {"gptrs.generate.event/1"}
    assert "".join(event["text"] for event in events) == last["text"]
    assert [token for event in events for token in event["token_ids"]] == last["token_ids"]
    assert last.keys() == gptrs(*asked).json.keys()


@pytest.mark.parametrize("more", [(), ("--json", "--num-return", "2")])
def test_a_stream_is_json_of_one_text(gptrs, more):
    result = gptrs("generate", "a", "--stream", *more)
    assert result.code == 2
    assert "`--stream` prints JSON of one text" in result.err + result.out


class Numbers(Result, frozen=True, tag="numbers/1"):
    x: list[float]
    y: dict[str, float]


def test_numbers_that_json_lacks_are_words():
    record = json.loads(as_line(Numbers([math.nan, -math.inf, 1.5], {"z": math.inf})))
    assert record == {"schema": "numbers/1", "x": ["nan", "-inf", 1.5], "y": {"z": "inf"}}


def test_the_documents_are_up_to_date():
    written = json_results.SCHEMA.read_text(), json_results.PAGE.read_text()
    assert written == (json_results.schema_text(), json_results.page_text()), (
        "run `python tools/json_results.py`"
    )
