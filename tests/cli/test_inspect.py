"""`gptrs inspect`: every tensor with type, size and id, from the headers alone."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from blake3 import blake3
from safetensors.numpy import load_file, save_file

from fuzzing import tiny_gguf
from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs_cli.inspect.checkpoint import byte_size, count


def test_json_describes_every_tensor(gptrs, model_directory):
    report = gptrs("inspect", model_directory, "--json").json
    tensors = load_file(model_directory / "model.safetensors")
    assert report["kind"] == "gpt2"
    assert report["support"].startswith("loaded by gptrs-models")
    assert {tensor["name"] for tensor in report["tensors"]} == tensors.keys()
    for tensor in report["tensors"]:
        array = tensors[tensor["name"]]
        assert (tensor["dtype"], tensor["shape"]) == ("f32", list(array.shape))
        assert tensor["bytes"] == array.nbytes
        assert tensor["file"] == "model.safetensors"
        digest = blake3(tensor["name"].encode()).digest()[:16]
        assert tensor["id"] == f"{int.from_bytes(digest, 'little'):032x}"
    assert report["totals"] == {
        "tensors": len(tensors),
        "parameters": sum(array.size for array in tensors.values()),
        "bytes": sum(array.nbytes for array in tensors.values()),
        "bits_per_weight": 32.0,
        "parameters_by_dtype": {"f32": sum(array.size for array in tensors.values())},
    }
    size = (model_directory / "model.safetensors").stat().st_size
    assert report["files"] == [{"name": "model.safetensors", "bytes": size}]


def test_the_table_shows_types_as_programs_write_them(gptrs, model_directory):
    result = gptrs("inspect", model_directory)
    assert (result.code, result.err) == (0, "")
    assert "transformer.wte.weight" in result.out
    assert "f32[300, 32]" in result.out
    assert "no values were read" in result.out


def test_a_gguf_file(gptrs, tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(tiny_gguf.llama(("Q4_0",)))
    report = gptrs("inspect", tmp_path / "tiny.gguf", "--json").json
    (table,) = [each for each in report["tensors"] if each["name"] == "model.embed_tokens.weight"]
    assert (table["dtype"], table["shape"], table["bytes"]) == ("Q4_0", [40, 32], 40 * 18)
    shown = gptrs("inspect", tmp_path / "tiny.gguf").out
    assert "Q4_0[40, 32]" in shown
    assert "4.78 bits per weight" in shown


def test_a_single_file_with_a_mix_of_dtypes(gptrs, tmp_path):
    file = tmp_path / "mix.safetensors"
    save_file({"a": np.zeros((3, 4), np.float16), "b": np.zeros(4, np.int64)}, file)
    report = gptrs("inspect", file, "--json").json
    assert report["kind"] is None
    assert report["totals"]["parameters_by_dtype"] == {"f16": 12, "si64": 4}
    assert "f16 75.0%, si64 25.0%" in gptrs("inspect", file).out


def test_shards_are_told_apart(gptrs, tmp_path):
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "one.safetensors")
    save_file({"b": np.zeros(5, np.float32)}, tmp_path / "two.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "hopfield"}', encoding="utf-8")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    report = gptrs("inspect", tmp_path, "--json").json
    assert [tensor["file"] for tensor in report["tensors"]] == [
        "one.safetensors",
        "two.safetensors",
    ]
    assert report["support"] == "no installed plugin loads this kind"


def test_an_unknown_dtype_and_an_odd_name_can_be_listed(gptrs, tmp_path):
    fields = {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}
    header = json.dumps({"größe": fields}).encode()
    file = tmp_path / "new.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(1))
    (tensor,) = gptrs("inspect", file, "--json").json["tensors"]
    assert (tensor["name"], tensor["dtype"]) == ("größe", "F4")


@pytest.mark.parametrize(
    ("number", "parameters", "size"),
    [
        (0, "0", "0 B"),
        (999, "999", "999 B"),
        (1000, "1.0 k", "1.0 kB"),
        (124_439_808, "124.4 M", "124.4 MB"),
        (7_000_000_000, "7.0 G", "7.0 GB"),
        (2 * 10**12, "2.0 T", "2.0 TB"),
    ],
)
def test_numbers_for_people(number, parameters, size):
    assert (count(number), byte_size(number)) == (parameters, size)


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".gptrsten"])
def test_other_files_of_tensors_are_described_as_well(gptrs, tmp_path, suffix):
    file = tmp_path / f"a{suffix}"
    write_archive(file, {"a": np.zeros((3, 4), np.float16)})
    report = gptrs("inspect", file, "--json").json
    [tensor] = report["tensors"]
    assert (tensor["name"], tensor["type"], tensor["bytes"]) == ("a", "f16[3, 4]", 24)
    assert report["files"] == [{"name": file.name, "bytes": file.stat().st_size}]
    assert "f16 100.0%" in gptrs("inspect", file).out
    file.write_bytes(file.read_bytes()[:40])
    assert gptrs("inspect", file).code == 3


@pytest.mark.parametrize(
    "names",
    [
        ("n_layer", "n_embd", "n_head", "n_positions"),
        ("num_layers", "d_model", "attention_heads", "max_position_embeddings"),
        ("num_layers", "d_model", "num_heads", "max_position_embeddings"),
        ("n_layers", "d_model", "n_heads", "max_seq_len"),
    ],
)
def test_sizes_under_the_names_of_a_kind(gptrs, model_directory, tmp_path, names):
    """GPT-2, XGLM, T5 and MPT have one each."""
    folder = shutil.copytree(model_directory, tmp_path / "copy")
    sizes = dict(zip(names, (3, 8, 2, 16), strict=True))
    config = json.dumps({"model_type": "xglm", **sizes})
    (folder / "config.json").write_text(config, encoding="utf-8")
    assert "layers 3, width 8, heads 2, context 16" in gptrs("inspect", folder).out


def test_what_nothing_reads_is_listed(gptrs, model_directory, tmp_path):
    folder = shutil.copytree(model_directory, tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "h.0.odd.bias": np.ones(3, np.float32)}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "odd_factor": 2}))
    (folder / "generation_config.json").write_text(json.dumps({"token_healing": True}))
    assert gptrs("inspect", folder, "--json").json["unread"] == {
        "weights": ["h.0.odd.bias"],
        "config": ["odd_factor"],
        "generation_config": ["token_healing"],
    }
    shown = "weights: `h.0.odd.bias`; config: `odd_factor`; generation_config: `token_healing`"
    assert f"not read    {shown}\n" in gptrs("inspect", folder).out
    clean = gptrs("inspect", model_directory)
    assert "not read" not in clean.out
