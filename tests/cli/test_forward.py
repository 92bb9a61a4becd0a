"""`gptrs forward`: images, tensors, tokens, text or made-up input in; the best out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gptrs import load_model
from gptrs.checkpoint.formats.tensor_archive import open_archive, write_archive
from gptrs_runtime.images.decoding import read_image
from runtime.tiny_resnet import LABELS, save_tiny_resnet

Image = pytest.importorskip("PIL.Image", reason="images need Pillow")


@pytest.fixture(scope="module")
def resnet(tmp_path_factory) -> Path:
    return save_tiny_resnet(tmp_path_factory.mktemp("forward") / "resnet")


@pytest.fixture(scope="module")
def cat(tmp_path_factory) -> Path:
    pixels = np.random.default_rng(8).integers(0, 256, (50, 70, 3), np.uint8)
    path = tmp_path_factory.mktemp("images") / "cat.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def logits(resnet, cat) -> np.ndarray:
    """What the model says of the image, [1, 7]."""
    model = load_model(resnet, backend="ref")
    return model.forward(model.image_processor(read_image(cat))[np.newaxis])


def _softmax(row: np.ndarray) -> np.ndarray:
    powers = np.exp(row.astype(np.float64) - row.max())
    return powers / powers.sum()


def test_the_best_five_of_an_image_are_printed_with_labels(gptrs, resnet, cat, logits):
    result = gptrs("forward", "--model", resnet, "--input", cat)
    assert result.code == 0
    best = np.argsort(-logits[0])[:5]
    shares = _softmax(logits[0])
    expected = [[f"{shares[n]:.4f}", str(n), LABELS[str(n)]] for n in best]
    header, *lines = result.out.splitlines()
    assert header.split() == ["PROBABILITY", "CLASS", "LABEL"]
    assert [line.split(maxsplit=2) for line in lines] == expected
    assert result.err.startswith("logits f32[1, 7] in ")
    assert "backend ref" in result.err


def test_json_is_the_contract(gptrs, resnet, cat, logits, backend):
    result = gptrs(
        *("forward", "--model", resnet, "--input", cat, "--json", "--backend", backend.name)
    )
    assert result.code == 0
    fields = result.json
    assert fields.keys() == {
        *("schema", "model", "kind", "backend", "inputs", "shape", "dtype", "top", "timings")
    }
    assert (fields["model"], fields["kind"]) == ("resnet", "resnet")
    assert fields["backend"] == backend.name
    assert fields["inputs"] == [str(cat)]
    assert (fields["shape"], fields["dtype"]) == ([1, 7], "f32")
    assert fields["timings"].keys() == {"load_s", "forward_s"}
    (best,) = fields["top"]
    order = np.argsort(-logits[0])[:5]
    assert [score["index"] for score in best] == order.tolist()
    assert [score["name"] for score in best] == [LABELS[str(n)] for n in order]
    np.testing.assert_allclose([score["logit"] for score in best], logits[0][order], rtol=1e-4)
    shares = _softmax(logits[0])[order]
    np.testing.assert_allclose([score["probability"] for score in best], shares, rtol=1e-3)


def test_logits_are_written(gptrs, resnet, cat, logits, tmp_path):
    out = tmp_path / "out.safetensors"
    result = gptrs("forward", "--model", resnet, "--input", cat, "--out", out)
    assert result.code == 0
    assert result.err.endswith(f", written to {out}\n")
    archive = open_archive(out)
    assert tuple(archive.names()) == ("logits",)
    np.testing.assert_array_equal(archive.read("logits"), logits)
    archive.close()


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".gptrsten"])
@pytest.mark.parametrize("batched", [True, False])
def test_tensors_are_taken_from_files(gptrs, resnet, cat, logits, tmp_path, suffix, batched):
    image = load_model(resnet, backend="ref").image_processor(read_image(cat))
    path = tmp_path / f"image{suffix}"
    write_archive(path, {"image": image[np.newaxis] if batched else image})
    fields = gptrs("forward", "--model", resnet, "--input", path, "--json").json
    assert fields["top"][0][0]["logit"] == pytest.approx(float(logits.max()), rel=1e-5)


def test_a_key_names_the_tensor_of_a_file(gptrs, resnet, tmp_path):
    path = tmp_path / "two.npz"
    images = np.random.default_rng(1).standard_normal((2, 2, 3, 32, 32)).astype(np.float32)
    write_archive(path, {"a": images[0], "b": images[1]})
    run = ("forward", "--model", resnet, "--input", path)
    result = gptrs(*run)
    assert result.code == 2
    assert "has 2 tensors; name one with --input-key: `a`, `b`" in result.err
    result = gptrs(*run, "--input-key", "c")
    assert result.code == 2
    assert "has no tensor `c`; it has `a`, `b`" in result.err
    found = [gptrs(*run, "--input-key", key, "--json").json for key in "ab"]
    assert found[0]["top"] != found[1]["top"]
    assert found[0]["shape"] == [2, 7]
    assert found[0]["inputs"] == [f"{path}[0]", f"{path}[1]"]


def test_several_images_make_a_batch(gptrs, resnet, cat, tmp_path):
    dog = tmp_path / "dog.jpg"
    Image.fromarray(np.full((40, 90, 3), 200, np.uint8)).save(dog)
    both = gptrs("forward", "--model", resnet, "--input", cat, "--input", dog)
    assert both.code == 0
    tables = both.out.split("\n\n")
    assert [table.splitlines()[0] for table in tables] == [str(cat), str(dog)]
    for path, table in zip((cat, dog), tables, strict=True):
        alone = gptrs("forward", "--model", resnet, "--input", path).out
        assert alone.splitlines() == table.splitlines()[1:]


def test_inputs_of_other_sizes_make_no_batch(gptrs, resnet, tmp_path):
    for name, size in (("a", 32), ("b", 40)):
        write_archive(tmp_path / f"{name}.npy", {name: np.zeros((3, size, size), np.float32)})
    result = gptrs(
        *("forward", "--model", resnet),
        *("--input", tmp_path / "a.npy", "--input", tmp_path / "b.npy"),
    )
    assert result.code == 2
    assert "inputs of one batch need one size, got `f32[1, 3, 32, 32]`" in result.err


def test_made_up_images_depend_on_the_seed_alone(gptrs, resnet):
    def run(*options: object):
        return gptrs("forward", "--model", resnet, "--json", *options).json["top"]

    assert run() == run("--seed", 0)
    assert run("--seed", 1) == run("--seed", 1)
    assert run("--seed", 1) != run()


def test_tokens_give_the_best_next_tokens(gptrs, model_directory):
    result = gptrs("forward", "--model", model_directory, "--tokens", "5,9,2", "--json")
    assert (result.code, result.err) == (0, "")
    model = load_model(model_directory, backend="ref")
    expected = model.forward(np.array([[5, 9, 2]]))
    assert result.json["shape"] == list(expected.shape)
    order = np.argsort(-expected[0, -1])[:5]
    (best,) = result.json["top"]
    assert [score["index"] for score in best] == order.tolist()
    assert [score["name"] for score in best] == [model.tokenizer.token_text(n) for n in order]


def test_text_is_encoded_and_shown_in_quotes(gptrs, model_directory):
    tokens = load_model(model_directory, backend="ref").tokenizer.encode("the cat")
    listed = ",".join(map(str, tokens))
    by_text = gptrs("forward", "--model", model_directory, "--prompt", "the cat")
    by_tokens = gptrs("forward", "--model", model_directory, "--tokens", listed)
    assert by_text.code == 0
    assert by_text.out == by_tokens.out
    header, *lines = by_text.out.splitlines()
    assert header.split() == ["PROBABILITY", "TOKEN", "TEXT"]
    assert len(lines) == 5
    assert all(line.count('"') >= 2 for line in lines)


def test_as_many_are_shown_as_asked_for(gptrs, model_directory):
    def best(*options: object):
        return gptrs("forward", "--model", model_directory, "--tokens", 7, *options)

    all_tokens = best("--top", 300).out.splitlines()[1:]
    assert len(all_tokens) == 300
    assert all(float(line.split()[0]) > 0 for line in all_tokens)  # tiny ones are no zeros
    assert best("--top", 2).out.splitlines()[1:] == all_tokens[:2]
    assert len(best("--top", 9, "--json").json["top"][0]) == 9
    assert len(best("--top", 5000, "--json").json["top"][0]) == 300
    refused = best("--top", 0)
    assert (refused.code, refused.out) == (2, "")
    assert "--top" in refused.err


def test_tokens_from_a_file_make_a_batch(gptrs, model_directory, tmp_path):
    path = tmp_path / "tokens.npy"
    write_archive(path, {"tokens": np.array([[1, 2, 3], [4, 5, 6]], np.int32)})
    fields = gptrs("forward", "--model", model_directory, "--input", path, "--json").json
    alone = gptrs("forward", "--model", model_directory, "--tokens", "4,5,6", "--json").json
    assert fields["shape"][:2] == [2, 3]
    assert [s["index"] for s in fields["top"][1]] == [s["index"] for s in alone["top"][0]]


def test_made_up_tokens_are_known_to_the_model(gptrs, model_directory):
    fields = gptrs("forward", "--model", model_directory, "--seed", 3, "--json").json
    assert fields["shape"][:2] == [1, 8]
    assert fields["inputs"] == ["random input 3"]
    shown = gptrs("forward", "--model", model_directory, "--seed", 3).err
    assert shown.startswith("logits f32[1, 8, 300] of random input 3 in ")


def test_labels_that_config_lacks_are_numbers(gptrs, cat, tmp_path):
    folder = save_tiny_resnet(tmp_path / "m", id2label=None, num_labels=7)
    fields = gptrs("forward", "--model", folder, "--input", cat, "--json").json
    assert {score["name"] for score in fields["top"][0]} <= {f"LABEL_{n}" for n in range(7)}


def test_a_folder_without_preprocessor_settings_says_what_is_done(gptrs, cat, tmp_path):
    folder = save_tiny_resnet(tmp_path / "m", preprocessor=None)
    result = gptrs("forward", "--model", folder, "--input", cat)
    assert result.code == 0
    assert "there is no preprocessor_config.json: images are resized to 256" in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tokens", "1", "--prompt", "a"), "`--tokens` and `--prompt` exclude each other"),
        (("--tokens", "1"), "takes images, not tokens or text; give --input IMAGE"),
        (("--prompt", "a"), "takes images, not tokens or text"),
        (("--tokens", "one"), "`--tokens` needs tokens such as 1,2,3"),
        (("--input-key", "x"), "`--input-key` names a tensor of a file; add `--input FILE`"),
        (("--seed", "-1"), "a seed is an integer >= 0, got -1"),
        (("--out", "x.txt"), "names no format of tensors"),
    ],
)
def test_wrong_options_are_usage_errors(gptrs, resnet, options, message):
    result = gptrs("forward", "--model", resnet, *options)
    assert result.code == 2
    assert message in result.err
    assert result.out == ""


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((1, 4, 32, 32), np.float32), "takes images of floats [B, 3, H, W], got float32"),
        (np.zeros((1, 3, 32, 32), np.int64), "takes images of floats"),
        (np.zeros((32, 32), np.float32), "takes a tensor [B, C, H, W] or [C, H, W]"),
        (np.zeros((0, 3, 32, 32), np.float32), "takes a tensor [B, C, H, W]"),
    ],
)
def test_tensors_that_are_no_images_are_usage_errors(gptrs, resnet, tmp_path, array, message):
    write_archive(tmp_path / "x.npy", {"x": array})
    result = gptrs("forward", "--model", resnet, "--input", tmp_path / "x.npy")
    assert result.code == 2
    assert message in result.err


def test_a_language_model_takes_no_images(gptrs, model_directory, cat, tmp_path):
    result = gptrs("forward", "--model", model_directory, "--input", cat)
    assert result.code == 2
    assert "would be an image, which `tiny` does not take" in result.err
    write_archive(tmp_path / "x.npy", {"x": np.zeros((1, 3), np.float32)})
    result = gptrs("forward", "--model", model_directory, "--input", tmp_path / "x.npy")
    assert result.code == 2
    assert "integer array [B, T]" in result.err


def test_files_that_cannot_be_read_are_file_errors(gptrs, resnet, tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    for path, message in (
        (tmp_path / "a.png", "is not an image that can be read"),
        (tmp_path / "none.jpg", "cannot open"),
        (tmp_path / "none.npy", "cannot open"),
    ):
        result = gptrs("forward", "--model", resnet, "--input", path)
        assert result.code == 3
        assert message in result.err


@pytest.mark.parametrize("labels", [{"0": 7, "1": 8, **dict.fromkeys("23456", 9)}, {"0": "cat"}])
def test_labels_that_are_no_names_are_model_errors(gptrs, cat, tmp_path, labels):
    folder = save_tiny_resnet(tmp_path / "m", id2label=labels)
    result = gptrs("forward", "--model", folder, "--input", cat)
    assert result.code == 3
    assert "`id2label` must name class" in result.err or "the model needs" in result.err
