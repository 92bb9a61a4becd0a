"""A stranger's kind of model in GGUF files and folders of timm, by what its description names."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gptrs
from gptrs.api import ModelPlugin
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.checkpoint.formats.gguf_header import MetadataValue
from gptrs.checkpoint.formats.gguf_writer import write_gguf
from gptrs.errors import ModelError, PluginError
from gptrs.plugins.manager import configure
from gptrs_runtime.gguf_export.tensors import as_bytes
from gptrs_runtime.sources.find_model import find_model
from plugins.attention_only_model import SETTINGS, save_attention_only
from plugins.conftest import HERE, Install

KIND = (HERE / "attention_only" / "attention_only.py").read_text(encoding="utf-8")
DESCRIPTION = """
from gptrs import api

PLUGIN = api.ModelPlugin(
    name="attention_only", summary="attention alone", factory="attention_only:load", api="0.1",
    gguf={"attn-only": "attention_only_gguf:ARCHITECTURE"},
    timm={"attn_only_*": "attention_only_timm:FAMILY"},
)
"""
FAMILY = r"""
from gptrs.api.models import TimmFamily


def settings(found, shapes):
    names = ("vocab_size", "width"), ("context", "width")
    sizes = dict(zip(names[0], shapes["tok.weight"])) | dict(zip(names[1], shapes["pos.weight"]))
    return {**sizes, "heads": int(found["heads"]), "layers": 2, "rotary": False}


FAMILY = TimmFamily(
    r"attn_only_h(?P<heads>\d)",
    [
        (r"tok\.weight", ("tokens.weight",)),
        (r"pos\.weight", ("places.weight",)),
        (r"head\.weight", ("unembed.weight",)),
        (r"blocks\.(\d)\.qkv\.weight", tuple(
            rf"layers.\1.{name}.weight" for name in ("query", "key", "value"))),
        (r"blocks\.(\d)\.proj\.weight", (r"layers.\1.out.weight",)),
    ],
    settings, "token", counted=lambda name, shapes: "" if name == "mask" else name,
)
"""
ARCHITECTURE = """
from gptrs.api.models import GgufArchitecture

ARCHITECTURE = GgufArchitecture(
    {
        "token_embd": "tokens", "position_embd": "places", "output": "unembed",
        "attn_q": "query", "attn_k": "key", "attn_v": "value", "attn_output": "out",
    },
    "layers", rotary=False, epsilon=("", ""),
    sizes=(
        ("hidden_size", "width"), ("num_hidden_layers", "layers"), ("num_attention_heads", "heads"),
        ("max_position_embeddings", "context"),
        *((name, "") for name in (
            "intermediate_size", "num_key_value_heads", "head_dim", "tie_word_embeddings",
        )),
    ),
    fixed=(("rotary", False, False),),
)
"""
STEMS = {
    "tokens": "token_embd", "places": "position_embd", "unembed": "output", "query": "attn_q",
    "key": "attn_k", "value": "attn_v", "out": "attn_output",
}  # fmt: skip
TOKENS = np.array([[4, 9, 2, 7, 1]])


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return save_attention_only(tmp_path / "folder")


def install_kind(
    install: Install, name: str = "attention-only", architecture: str = ARCHITECTURE
) -> None:
    """Install the kind as the package `name`, and a backend."""
    value = "attention_only_plugin:PLUGIN"
    modules = {
        "attention_only": KIND,
        "attention_only_plugin": DESCRIPTION,
        "attention_only_gguf": architecture,
        "attention_only_timm": FAMILY,
    }
    install(name, {"gptrs.models": {"attention_only": value}}, modules)
    backends = {"gptrs.backends": {"ref": "gptrs_backend_ref.plugin:PLUGIN"}}
    install("gptrs-backend-ref", backends)
    configure()  # earlier tests may have asked for plugins


def write_by_hand(folder: Path, path: Path, architecture: str = "attn-only") -> None:
    """Write the GGUF file of a folder with the words of its architecture spelled out here."""
    metadata: dict[str, MetadataValue] = {"general.architecture": architecture}
    words = {"context": "context_length", "width": "embedding_length", "layers": "block_count"}
    for name, key in {**words, "heads": "attention.head_count"}.items():
        metadata[f"{architecture}.{key}"] = SETTINGS[name]
    weights, tensors = find_model(folder).weights, []
    for name in weights.names():
        *layer, own, suffix = name.split(".")
        start = f"blk.{layer[1]}." if layer else ""
        stem = f"{start}{STEMS[own]}.{suffix}"
        tensors.append(as_bytes(OutgoingTensor.of(stem, weights.load(name)), stem))
    with path.open("wb") as file:
        write_gguf(file, metadata, tensors)


def logits(path: Path) -> np.ndarray:
    return gptrs.load_model(path, backend="ref").forward(TOKENS)


def test_a_file_gives_the_logits_of_the_folder(install, folder, tmp_path):
    install_kind(install)
    path = tmp_path / "x.gguf"
    write_by_hand(folder, path)
    assert find_model(path).model_type == "attention_only"
    np.testing.assert_array_equal(logits(path), logits(folder))


def test_a_model_goes_into_a_file_and_back(install, folder, tmp_path):
    install_kind(install)
    path = tmp_path / "x.gguf"
    gptrs.quantize(folder, path, "f32")
    np.testing.assert_array_equal(logits(path), logits(folder))
    assert {**find_model(path).config} == {**find_model(folder).config, "rotary": False}


def test_what_the_kind_says_it_takes_for_granted_is_checked(install, folder, tmp_path):
    install_kind(install, architecture=ARCHITECTURE.replace("False, False),)", "True, False),)"))
    with pytest.raises(ModelError, match="`rotary` of a `attention_only` model must be true"):
        gptrs.quantize(folder, tmp_path / "x.gguf", "f32")


def test_the_architecture_is_imported_for_gguf_files_alone(install, folder):
    install_kind(install, architecture="raise SystemExit(7)")
    assert logits(folder).shape == (1, 5, SETTINGS["vocab_size"])
    assert "attention_only_gguf" not in sys.modules


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise SystemExit(7)", "SystemExit"),
        ("", "no attribute 'ARCHITECTURE'"),
        ("ARCHITECTURE = 3", "`attention_only_gguf:ARCHITECTURE` must be a `GgufArchitecture`"),
    ],
)
def test_a_broken_description_is_the_plugins(install, folder, tmp_path, source, said):
    install_kind(install, architecture=source)
    path = tmp_path / "x.gguf"
    write_by_hand(folder, path)
    with pytest.raises(PluginError, match=re.escape(said)):
        find_model(path)


def test_a_file_that_no_kind_reads_is_refused_with_what_is_read(install, folder, tmp_path):
    install_kind(install)
    path = tmp_path / "x.gguf"
    write_by_hand(folder, path, "other")
    with pytest.raises(ModelError, match=r"is `other`, which gptrs does not read") as caught:
        find_model(path)
    assert "take the safetensors of the model" in str(caught.value)
    assert "architectures that are read: `attn-only`" in str(caught.value)


def install_two(install: Install, own: str, second: str, marker: str = "") -> None:
    """Install a second kind that names the same architecture, with a marker or without."""
    install_kind(install, own)
    source = f"""
from msgspec.structs import replace
from gptrs import api
from attention_only_gguf import ARCHITECTURE

MINE = replace(ARCHITECTURE, marker={marker!r})
PLUGIN = api.ModelPlugin(
    name="mine", summary="mine", factory="attention_only:load", api="0.1",
    gguf={{"attn-only": "mine_plugin:MINE"}},
)
"""
    group = {"gptrs.models": {"mine": "mine_plugin:PLUGIN"}}
    install(second, group, {"mine_plugin": source})


@pytest.mark.parametrize(
    ("own", "second", "marker", "kind"),
    [
        ("gptrs-models", "stranger", "", "attention_only"),
        ("stranger", "gptrs-models", "", "mine"),
        ("gptrs-models", "stranger", "blk.1.attn_v.weight", "mine"),
        ("one", "two", "blk.1.attn_v.weight", "mine"),
        ("one", "two", "blk.9.attn_v.weight", "attention_only"),
    ],
)
def test_markers_then_kinds_of_gptrs_come_first(
    install, folder, tmp_path, own, second, marker, kind
):
    install_two(install, own, second, marker)
    path = tmp_path / "x.gguf"
    write_by_hand(folder, path)
    assert find_model(path).model_type == kind


def test_two_kinds_of_strangers_are_not_chosen_from(install, folder, tmp_path, monkeypatch):
    install_two(install, "one", "two")
    path = tmp_path / "x.gguf"
    write_by_hand(folder, path)
    with pytest.raises(ModelError, match="is `attn-only`, which `attention_only` and `mine` read"):
        find_model(path)
    monkeypatch.setenv("GPTRS_DISABLE_PLUGINS", "mine")
    configure()
    assert find_model(path).model_type == "attention_only"


def save_as_timm(folder: Path, target: Path, architecture: str) -> Path:
    """Save the model of a folder as timm would: queries, keys and values are one tensor there."""
    weights = load_file(folder / "model.safetensors")
    found = {"tok": "tokens", "pos": "places", "head": "unembed"}
    tensors = {f"{short}.weight": weights[f"{name}.weight"] for short, name in found.items()}
    tensors["mask"] = np.ones((2, 2), np.float32)
    for number in range(SETTINGS["layers"]):
        own = [weights[f"layers.{number}.{name}.weight"] for name in ("query", "key", "value")]
        tensors[f"blocks.{number}.qkv.weight"] = np.concatenate(own)
        tensors[f"blocks.{number}.proj.weight"] = weights[f"layers.{number}.out.weight"]
    target.mkdir()
    save_file(tensors, target / "model.safetensors")
    config = {"architecture": architecture, "pretrained_cfg": {}}
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return target


def test_a_folder_of_timm_gives_the_same_logits(install, folder, tmp_path):
    install_kind(install)
    own = save_as_timm(folder, tmp_path / "timm", "attn_only_h3")
    assert find_model(own).config == {
        "model_type": "attention_only", **SETTINGS, "rotary": False
    }  # fmt: skip
    np.testing.assert_array_equal(logits(own), logits(folder))


@pytest.mark.parametrize("architecture", ["attn_only_three", "resnet18"])
def test_an_architecture_of_timm_that_no_kind_has_is_refused(
    install, folder, tmp_path, architecture
):
    install_kind(install)
    own = save_as_timm(folder, tmp_path / "timm", architecture)
    with pytest.raises(ModelError, match=r"is not supported; supported are most of `attn_only_\*`"):
        find_model(own)


@pytest.mark.parametrize("field", ["gguf", "timm"])
@pytest.mark.parametrize("given", ["x", {"a": "b"}, {"a b": "c:d"}, {3: "c:d"}, [("a", "c:d")]])
def test_malformed_architectures_are_refused(field, given):
    with pytest.raises(PluginError, match=rf"`ModelPlugin.{field}` must be a mapping of words to"):
        ModelPlugin(name="x", summary="x", api="0.1", factory="a:b", **{field: given})
