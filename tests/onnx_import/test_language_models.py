"""Language models in ONNX files generate as ONNX Runtime's loop does, token for token."""

from __future__ import annotations

import itertools
import json
import logging
from contextlib import closing
from pathlib import Path
from typing import cast

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests write ONNX models")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is what they compare with")

import gptrs  # noqa: E402
from gptrs.api.backends import Backend  # noqa: E402
from gptrs.checkpoint.formats.tensor_archive import open_archive  # noqa: E402
from gptrs.checkpoint.quantized_tensor import QuantizedSource  # noqa: E402
from gptrs.errors import CheckpointError, ModelError, UnsupportedError  # noqa: E402
from gptrs.nn import PagedTexts  # noqa: E402
from gptrs_cli.main import main  # noqa: E402
from gptrs_runtime.content_digest import weights_digest  # noqa: E402
from support.onnx_decoders import CONTEXT, VOCAB, OrtLoop, decoder, folder, in_four_bits  # noqa: E402

CACHED = {
    "positions": {},
    "counted positions": {"counted": True},
    "a window": {"window": 7},
    "grouped queries": {"grouped": True},
    "a choice by an input": {"merged": True},
    "fused positions and counts": {"fused": True, "kept": True},
}
"""Graphs whose attention runs over pages."""
CARRIED = {
    "a bias by distance": {"tilted": True},
    "logits of the last token": {"last": True},
    "tokens that see others beside attention": {"smoothed": True},
    "a bias in a choice": {"tilted": True, "merged": True},
    "a bias and kept logits": {"tilted": True, "kept": True},
}
"""Graphs whose past is carried from step to step."""
KINDS = {**CACHED, **CARRIED}


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", KINDS)
def test_texts_that_share_steps_have_the_logits_of_each_alone(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    graph = decoder(**KINDS[kind])
    model = gptrs.load_model(folder(tmp_path, graph), backend="ref")
    caplog.set_level(logging.INFO, "gptrs")
    random = np.random.default_rng(3)
    texts = [random.integers(0, VOCAB, 40).tolist() for _ in range(2)]
    # A graph that smooths a step depends on how a text is cut: only one cut can be compared.
    cuts = [[9, 1, 1, 5, 1, 20], [3, 1, 1, 30, 1, 4]]
    if KINDS[kind].get("merged") and kind in CARRIED:
        cuts = [[9, *[1] * 5], [3, *[1] * 5]]
    wanted = [OrtLoop(graph).logits(text, cut) for text, cut in zip(texts, cuts, strict=True)]
    paged = PagedTexts(model.causal_lm(), 2, CONTEXT)
    at = [0, 0]
    for step in range(len(cuts[0])):
        new = [
            text[start : start + cut[step]]
            for text, start, cut in zip(texts, at, cuts, strict=True)
        ]
        logits = paged.append(new)
        for found, loop in zip(logits, wanted, strict=True):
            assert np.abs(found - loop[step]).max() <= 1e-5 * np.abs(loop[step]).max()
        at = [start + cut[step] for start, cut in zip(at, cuts, strict=True)]
    told = [each.getMessage() for each in caplog.records if "is not recognized" in each.message]
    assert len(told) == (kind in CARRIED)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["a window", "grouped queries", "a bias by distance"])
def test_generated_tokens_are_those_of_onnx_runtime(
    tmp_path: Path, kind: str, backend: Backend
) -> None:
    graph = decoder(**KINDS[kind])
    model = gptrs.load_model(folder(tmp_path, graph), backend=backend)
    prompts = [[5, 6, 7], [9], [1000, 4, 3, 2, 1500, 8]]
    found = gptrs.generate_batch(model, prompts, max_tokens=24, temperature=0, ignore_eos=True)
    for prompt, each in zip(prompts, found, strict=True):
        assert list(each.token_ids) == OrtLoop(graph).greedy(prompt, 24)


def test_weights_of_four_bits_are_read_as_quantized_ones(tmp_path: Path, backend: Backend) -> None:
    graph = in_four_bits(decoder())
    model = gptrs.load_model(folder(tmp_path, graph), backend=backend, precision="f32")
    found = gptrs.generate(model, [5, 6, 7], max_tokens=24, temperature=0, ignore_eos=True)
    assert list(found.token_ids) == OrtLoop(graph).greedy([5, 6, 7], 24)
    weights = cast("QuantizedSource", model.weights)
    described = [weights.quantized(name) for name in model.weights.names()]
    assert {each.shape for each in described if each is not None} == {(VOCAB, 32)}


def test_a_decoder_in_two_files_reads_prompts_with_the_first(tmp_path: Path) -> None:
    graph = decoder(tilted=True)
    folder(tmp_path, decoder(tilted=True, first=True), "decoder_model.onnx")
    later = decoder(tilted=True)
    later.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1  # tokens of a step
    folder(tmp_path, later, "decoder_with_past_model.onnx")
    model = gptrs.load_model(tmp_path, backend="ref")
    found = gptrs.generate(model, [5, 6, 7], max_tokens=12, temperature=0, ignore_eos=True)
    assert list(found.token_ids) == OrtLoop(graph).greedy([5, 6, 7], 12)


def test_ops_that_run_one_by_one_make_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPTRS_EAGER", "1")
    graph = decoder()
    model = gptrs.load_model(folder(tmp_path, graph), backend="ref")
    found = gptrs.generate(model, [5, 6, 7], max_tokens=3, temperature=0, ignore_eos=True)
    assert list(found.token_ids) == OrtLoop(graph).greedy([5, 6, 7], 3)


def test_all_logits_of_texts_are_those_of_one_step(tmp_path: Path) -> None:
    graph = decoder(window=7)
    model = gptrs.load_model(folder(tmp_path, graph), backend="ref")
    tokens = np.random.default_rng(1).integers(0, VOCAB, (2, 12))
    found = model.forward(tokens)
    for row, text in zip(found, tokens.tolist(), strict=True):
        for end in (1, 5, 12):
            (wanted,) = OrtLoop(graph).logits(text, [end])
            assert np.abs(row[end - 1] - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_commands_take_the_folder_or_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = decoder()
    inside = folder(tmp_path, graph, "onnx/model.onnx")
    asked = ["--prompt-ids", "5,6,7", "--max-tokens", "6", "--temperature", "0", "--json"]
    for name in (inside, inside / "onnx" / "model.onnx"):
        assert main(["generate", "--backend", "ref", "--model", str(name), *asked]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["token_ids"] == OrtLoop(graph).greedy([5, 6, 7], 6)


def test_settings_of_onnxruntime_genai_stand_for_both_files(tmp_path: Path) -> None:
    graph = decoder(grouped=True)
    model = gptrs.load_model(folder(tmp_path, graph, "text.onnx", genai=True), backend="ref")
    assert model.kind == "llama"
    assert model.eos_tokens == {0}
    assert model.causal_lm().context_length == CONTEXT
    assert dict(model.generation_config) == {
        "do_sample": False,
        "temperature": 0.5,
        "top_k": 3,
        "no_repeat_ngram_size": 2,
        "eos_token_id": [0],
    }
    text = gptrs.generate(model, [5, 6, 7], max_tokens=20, ignore_eos=True)
    pairs = list(itertools.pairwise([5, 6, 7, *text.token_ids]))
    assert len(set(pairs)) == len(pairs)


def test_weights_of_a_graph_are_written_by_their_names(tmp_path: Path) -> None:
    source = folder(tmp_path / "model", decoder())
    out = tmp_path / "weights.safetensors"
    assert main(["convert", str(source), str(out)]) == 0
    stored = gptrs.load_model(source, backend="ref").parameters()
    with closing(open_archive(out)) as archive:
        assert set(archive.names()) == set(stored)
        for name, each in stored.items():
            np.testing.assert_array_equal(archive.read(name), each.numpy())


def test_prompts_are_kept_apart_for_graphs_with_other_weights(tmp_path: Path) -> None:
    other = decoder()
    other.graph.initializer[0].raw_data = bytes(len(other.graph.initializer[0].raw_data))
    found = [
        weights_digest(gptrs.load_model(folder(tmp_path / name, graph), backend="ref").weights)
        for name, graph in (("a", decoder()), ("b", other), ("c", decoder()))
    ]
    assert found[0] == found[2] != found[1]


def test_a_file_that_changes_under_a_model_is_noticed(tmp_path: Path) -> None:
    at = folder(tmp_path, decoder())
    graph = onnx.load(at / "model.onnx")
    onnx.save(graph, at / "model.onnx", save_as_external_data=True, location="model.onnx.data")
    model = gptrs.load_model(at, backend="ref")
    assert gptrs.generate(model, [5, 6], max_tokens=2, temperature=0).token_ids
    data = at / "model.onnx.data"
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(CheckpointError, match="changed"):
        gptrs.generate(model, [5, 6], max_tokens=2, temperature=0)


def test_what_is_no_language_model_is_refused_with_a_reason(tmp_path: Path) -> None:
    graph = decoder()
    del graph.graph.input[3:]
    with pytest.raises(UnsupportedError, match="no inputs for the keys and values"):
        gptrs.load_model(folder(tmp_path / "a", graph), backend="ref")
    graph = decoder()
    graph.graph.input[0].name = "pixels"
    with pytest.raises(ModelError, match="not a language model"):
        gptrs.load_model(folder(tmp_path / "b", graph), backend="ref")
    several = folder(tmp_path / "c", decoder(), "one.onnx")
    folder(several, decoder(), "two.onnx")
    with pytest.raises(ModelError, match=r"has 2 models: `one.onnx`, `two.onnx`"):
        gptrs.load_model(several, backend="ref")
    plain = folder(tmp_path / "d", decoder())
    with pytest.raises(ModelError, match="`weights` does not apply"):
        gptrs.load_model(plain, backend="ref", weights="q8")
