"""`gptrs steer`: vectors of pairs, in a file that hooks and the server read."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gptrs import Hooks, load_model, read_vectors
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.checkpoint.formats.gguf_writer import GgufOutgoing, write_gguf
from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs.errors import CheckpointError, UsageError
from gptrs_observe.steering import learn_vectors

PAIRS = [("the cat sat", "the dog sat"), ("a cat", "a dog"), ("cat", "dog and dog")]


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    lines = [json.dumps({"positive": one, "negative": other}) for one, other in PAIRS]
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return path


def test_a_vector_is_the_mean_difference_at_the_ends(gptrs, model_directory, pairs, tmp_path):
    out = tmp_path / "v.safetensors"
    asked = ("steer", "--model", model_directory, "--pairs", pairs, "--out", out)
    result = gptrs(*asked, "--layer", "blocks.*.hook_resid_post", "--json")
    model = load_model(model_directory, backend="ref")

    def end(text, layer):
        states = model.hidden_states(np.array([model.prompt_tokens(text)]))
        return states["embeddings" if layer is None else f"layer.{layer}"][0, -1]

    found = read_vectors(out)
    assert list(found) == ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
    mean = np.mean([end(one, 0) - end(other, 0) for one, other in PAIRS], axis=0)
    np.testing.assert_allclose(found["blocks.0.hook_resid_post"], mean, rtol=1e-4, atol=1e-5)
    told = result.json["layers"][0]
    assert told["norm"] == pytest.approx(np.linalg.norm(mean), rel=1e-4)
    assert 0 <= told["separated"] <= 1
    shown = gptrs(*asked)
    assert shown.out.split()[:5] == [
        "LAYER",
        "TYPE",
        "NORM",
        "SEPARATED",
        "blocks.1.hook_resid_post",
    ]
    assert "learned from 3 pairs, written to" in shown.err


def test_a_learned_vector_moves_texts_towards_the_first_ones(model_directory):
    """What it is for: with the mean added, a second text ends where its first one does."""
    model = load_model(model_directory, backend="ref")
    ((name, learned),) = learn_vectors(model, PAIRS[:1], ["h.0"]).items()
    assert name == "h.0"
    first, second = (np.array([model.prompt_tokens(text)]) for text in PAIRS[0])
    reading = Hooks(model, ["h.0"])
    with reading:
        model.hidden_states(first)
    steered = Hooks(model, ["h.0"], add={"h.0": learned.vector})
    with steered:
        model.hidden_states(second)
    np.testing.assert_allclose(steered["h.0"][-1], reading["h.0"][-1], rtol=1e-4, atol=1e-5)


def test_directions_that_agree_are_separated_and_noise_is_not(model_directory):
    model = load_model(model_directory, backend="ref")
    same = learn_vectors(model, [PAIRS[0]] * 3, ["h.1"])["h.1"]
    assert same.separated == 1.0
    opposite = learn_vectors(model, [PAIRS[0], PAIRS[0][::-1]], ["h.1"])["h.1"]
    assert opposite.separated == 0.0
    assert not opposite.vector.any()


def test_what_cannot_be_learned_is_refused(gptrs, model_directory, pairs, tmp_path):
    model = load_model(model_directory, backend="ref")
    with pytest.raises(UsageError, match="no pairs"):
        learn_vectors(model, [])
    with pytest.raises(UsageError, match=r"no module is called `h\.7`"):
        learn_vectors(model, PAIRS, ["h.7"])
    with pytest.raises(UsageError, match="has no vector for each token"):
        learn_vectors(model, PAIRS, ["blocks.0.attn.hook_pattern"])
    asked = ("steer", "--model", model_directory, "--pairs", pairs)
    wrong = gptrs(*asked, "--out", tmp_path / "v.txt")
    assert wrong.code == 2
    pairs.write_text('{"positive": "a"}\n', encoding="utf-8")
    result = gptrs(*asked, "--out", tmp_path / "v.npz")
    assert result.code == 2
    assert "line 1 of" in result.err
    assert "`negative`" in result.err


def test_files_of_vectors_are_read_whatever_their_format(tmp_path):
    """Control vectors of llama.cpp among them."""
    vectors = {f"direction.{n}": np.linspace(n, 4, 8, dtype=np.float32) for n in (1, 2)}
    tensors = [
        GgufOutgoing(OutgoingTensor.of(name, vector.view(np.uint8)), "F32", (8,))
        for name, vector in vectors.items()
    ]
    with (tmp_path / "v.gguf").open("wb") as file:
        write_gguf(file, {"general.architecture": "controlvector"}, tensors)
    write_archive(tmp_path / "v.npz", vectors)
    for name in ("v.gguf", "v.npz"):
        found = read_vectors(tmp_path / name, scale=2.0)
        assert list(found) == ["blocks.1.hook_resid_post", "blocks.2.hook_resid_post"]
        np.testing.assert_array_equal(found["blocks.2.hook_resid_post"], 2 * vectors["direction.2"])
        (one,) = read_vectors(tmp_path / name, "direction.1").values()
        np.testing.assert_array_equal(one, vectors["direction.1"])
        with pytest.raises(CheckpointError, match=r"has 2 tensors, and none is called `h\.3`"):
            read_vectors(tmp_path / name, "h.3")
    for wrong, message in (
        (np.zeros((2, 3), np.float32), "not a vector"),
        (np.zeros(3, np.int32), "not a vector"),
        (np.full(3, np.inf, np.float32), "not finite"),
    ):
        write_archive(tmp_path / "w.npz", {"h.0": wrong})
        with pytest.raises(CheckpointError, match=message):
            read_vectors(tmp_path / "w.npz")
