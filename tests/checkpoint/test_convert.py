"""Converting: nothing is lost or invented, rounding is exact, and a kill leaves the old or new."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from checkpoint import killed_conversion
from checkpoint.model_folders import ARRAYS, sharded, single, write_json
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.errors import CheckpointError, UsageError
from gptrs.ir import dtypes
from gptrs_runtime.converting.atomic_folder import atomic_folder
from gptrs_runtime.converting.convert import convert
from gptrs_runtime.converting.model_content import parse_size, rounded
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.hf_directory import HfDirectory
from gptrs_runtime.sources.model_source import ModelSource


def _weights(source: ModelSource) -> dict[str, np.ndarray]:
    return {name: source.weights.load(name) for name in source.weights.names()}


def _model(folder: Path) -> Path:
    sharded(folder)
    write_json(folder / "generation_config.json", {"eos_token_id": 7})
    (folder / "chat_template.jinja").write_text("ü")
    (folder / "tokenizer.model").write_bytes(b"\xff\x00")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / ".gitattributes").write_text("x")
    (folder / "2_Dense").mkdir()
    write_json(folder / "2_Dense" / "config.json", {"bias": False})
    save_file({"linear.weight": np.ones((2, 2), np.float32)}, folder / "2_Dense/model.safetensors")
    return folder


@pytest.mark.parametrize("by", [["m.gptrschk", "back"], ["copy"], ["a.gptrschk", "b.gptrschk"]])
def test_all_of_a_model_arrives(tmp_path, by):
    source = _model(tmp_path / "source")
    paths = [source, *(tmp_path / name for name in by)]
    written = [convert(*step) for step in itertools.pairwise(paths)]
    model, original = find_model(paths[-1]), find_model(source)
    found = _weights(model)
    assert found.keys() == ARRAYS.keys()
    for name, array in _weights(original).items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    assert model.config == original.config
    assert model.generation_config == {"eos_token_id": 7}
    assert model.read_bytes("chat_template.jinja") == "ü".encode()
    assert model.read_json("config.json", "2_Dense") == {"bias": False}
    dense = model.tensors_in("2_Dense")
    assert dense is not None
    np.testing.assert_array_equal(dense["linear.weight"], np.ones((2, 2)))
    binary = by == ["copy"]
    assert model.has_file("tokenizer.model") == binary
    if len(by) == 1:
        assert written[0].left_out == ("pytorch_model.bin",)
    assert not model.has_file("pytorch_model.bin")


def test_transformers_reads_the_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.GPT2Config(
        n_layer=1, n_embd=16, n_head=2, vocab_size=40, n_positions=16, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path / "m")
    convert(tmp_path / "m", tmp_path / "m.gptrschk")
    written = convert(tmp_path / "m.gptrschk", tmp_path / "out", shard_size=3000, dtype="bf16")
    assert "model.safetensors.index.json" in written.files
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    assert again.dtype == torch.bfloat16
    assert again.lm_head.weight.data_ptr() == again.transformer.wte.weight.data_ptr()
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value.to(torch.bfloat16)), name


def test_the_type_of_the_weights_is_stated_anew(tmp_path):
    folder = single(tmp_path / "m")
    config = {"model_type": "tiny", "dtype": "float32", "text_config": {"torch_dtype": "float16"}}
    write_json(folder / "config.json", config)
    convert(folder, tmp_path / "out", dtype="bf16")
    changed = {"dtype": "bfloat16", "text_config": {"torch_dtype": "bfloat16"}}
    assert find_model(tmp_path / "out").config == {**config, **changed}
    arrays = _weights(find_model(tmp_path / "out"))
    kinds = {name: str(dtypes.from_numpy(array.dtype)) for name, array in arrays.items()}
    assert kinds == {"wte.weight": "bf16", "h.0.bias": "bf16", "h.1.bias": "si64"}


def test_files_are_split_and_metadata_is_what_transformers_needs(tmp_path):
    written = convert(single(tmp_path / "m"), tmp_path / "out", shard_size=40)
    shards = [name for name in written.files if name.endswith(".safetensors")]
    assert shards == [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in ARRAYS.values())
    assert set(index["weight_map"]) == set(ARRAYS)
    for name in shards:
        with SafetensorsFile.open(tmp_path / "out" / name) as file:
            assert file.metadata == {"format": "pt"}


def _nearest_even(value: float, dtype: np.dtype) -> float:
    """By trying all finite values of a 16-bit type."""
    bits = np.arange(2**16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        every = bits.view(dtype).astype(np.float64)
    finite, bits = every[np.isfinite(every)], bits[np.isfinite(every)]
    distance = np.abs(finite - value)
    best = np.flatnonzero(distance == distance.min())
    even = [i for i in best if bits[i] % 2 == 0] or list(best)
    return float(finite[even[0]])


@pytest.mark.parametrize("target", [dtypes.bf16, dtypes.f16], ids=str)
@pytest.mark.parametrize("stored", [np.float64, np.float32], ids=["f64", "f32"])
def test_rounding_is_to_nearest_even_once(target, stored):
    random = np.random.default_rng(7)
    base = random.standard_normal(60).astype(target.numpy).astype(np.float64)
    step = np.spacing(base.astype(np.float32).astype(target.numpy)).astype(np.float64)
    tiny = 2.0**-40 if stored is np.float64 else 2.0**-14
    offsets = [0.5, 0.5 + tiny, 0.5 - tiny, 1.5, 0.25, 0.0]
    values = np.concatenate([base + step * offset for offset in offsets]).astype(stored)
    found = rounded(values, target).astype(np.float64)
    expected = [_nearest_even(float(value), target.numpy) for value in values]
    np.testing.assert_array_equal(found, expected)


def test_special_values_stay_what_they_are():
    values = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 5e-324, 1e300])
    for target in (dtypes.bf16, dtypes.f16):
        found = rounded(values, target).astype(np.float64)
        np.testing.assert_array_equal(found[:5], values[:5])
        assert np.signbit(found[4])
        assert (found[5], found[6]) == (0, np.inf)


def test_values_out_of_range_are_refused_and_nothing_is_written(tmp_path):
    folder = single(tmp_path / "m")
    arrays = {"w": np.array([1.0, np.inf], np.float32), "big": np.array([7e4, -2], np.float32)}
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"`big` has values up to 7e\+04, beyond .*f16"):
        convert(folder, tmp_path / "out", dtype="f16")
    assert os.listdir(tmp_path) == ["m"]
    convert(folder, tmp_path / "out", dtype="bf16")


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("1.5 kB", 1500), ("2GiB", 2**31), ("77", 77)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1GB", "GB", "1e3", "5XB", "nan"])
def test_what_is_no_size(text):
    with pytest.raises(UsageError, match="is not a size of files"):
        parse_size(text)


def test_a_source_that_shrinks_while_it_is_copied_is_an_error(tmp_path):
    folder = single(tmp_path / "m")
    save_file({"w": np.zeros(2**23, np.float32)}, folder / "model.safetensors")

    def cut(done: int, total: int, name: str) -> None:
        os.truncate(folder / "model.safetensors", 2**22)

    with pytest.raises(CheckpointError, match=r"the file had .* bytes when it was opened"):
        convert(folder, tmp_path / "m.gptrschk", progress=cut)
    assert os.listdir(tmp_path) == ["m"]


def test_progress_ends_at_the_total(tmp_path):
    seen: list[tuple[int, int, str]] = []
    convert(single(tmp_path / "m"), tmp_path / "o", progress=lambda *step: seen.append(step))
    total = sum(array.nbytes for array in ARRAYS.values())
    assert seen[0] == (0, total, "h.1.bias")  # the widest elements come first
    assert seen[-1] == (total, total, "")


KILLED = {
    "a new file": ("dst.gptrschk", False),
    "an old file": ("dst.gptrschk", True),
    "an old file of tensors": ("dst.npz", True),
    "a new folder": ("dst", False),
    "an old folder": ("dst", True),
}


@pytest.mark.long
@pytest.mark.parametrize("what", KILLED)
def test_a_kill_at_any_call_leaves_the_old_or_the_new_and_no_litter(tmp_path, what):
    name, is_old = KILLED[what]
    source, out = single(tmp_path / "source"), tmp_path / "out"
    write_json(source / "tokenizer.json", {})
    out.mkdir()
    if is_old:
        save_file({"w": np.ones(3, np.float32)}, source / "model.safetensors")
        convert(source, out / name)
        single(source)
    command = [sys.executable, killed_conversion.__file__, str(source), str(out / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert outcomes[-1] == "ended with 0", (outcomes, done.stderr)
    assert set(outcomes[:-1]) == {"old" if is_old else "none", "new"}
    assert len(outcomes) > 15


def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path):
    folder = single(tmp_path / "m")
    save_file({"w": np.zeros(20_000, np.float32)}, folder / "model.safetensors")
    script = (
        "import resource, signal, sys\n"
        "from gptrs_runtime.converting.convert import convert\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))\n"
        "for name in ('out', 'm.gptrschk', 'm.npz'):\n"
        "    try:\n"
        "        convert(sys.argv[1] + '/m', sys.argv[1] + '/' + name)\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    for line, name in zip(lines, ("out", "m.gptrschk", "m.npz"), strict=True):
        assert line == f"CheckpointError cannot write `{tmp_path / name}`: File too large"
    assert os.listdir(tmp_path) == ["m"]


def _fill_meanwhile(path: Path) -> None:
    with atomic_folder(path, replace=False) as folder:
        with folder.file("a") as file:
            file.write(b"new")
        path.mkdir()
        (path / "b").touch()


def test_a_folder_that_fills_up_meanwhile_is_not_replaced(tmp_path):
    with pytest.raises(CheckpointError, match="Directory not empty"):
        _fill_meanwhile(tmp_path / "m")
    assert os.listdir(tmp_path / "m") == ["b"]
    assert os.listdir(tmp_path) == ["m"]


def test_links_that_lead_out_are_not_carried_over(tmp_path):
    folder = single(tmp_path / "m")
    (tmp_path / "secret.json").write_text("{}")
    (folder / "secret.json").symlink_to("../secret.json")
    written = convert(folder, tmp_path / "out")
    assert written.left_out == ("secret.json",)
    assert not HfDirectory.open(tmp_path / "out").has_file("secret.json")
