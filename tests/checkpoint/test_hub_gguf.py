"""GGUF repositories of the hub: which file a name means, its parts, and what is fetched."""

from __future__ import annotations

import importlib
import logging

import pytest

from fuzzing import tiny_gguf
from fuzzing.tiny_gguf import gguf, random_blocks
from gptrs.errors import ModelError
from gptrs_runtime.sources import gguf_choice
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.hub import HubModel

pytest.importorskip("huggingface_hub")

MODEL = tiny_gguf.llama()
NAMES = ("tiny-Q2_K", "tiny-Q4_0", "tiny-Q8_0", "tiny-f16", "mmproj-Q4_K_M")
MANY = {f"{name}.gguf": MODEL + bytes(32 * n) for n, name in enumerate(NAMES)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name:Q4_K_M", HubModel("org/name", None, "Q4_K_M")),
        ("hf.co/org/name:q8_0", HubModel("org/name", None, "q8_0")),
        ("https://huggingface.co/org/name", HubModel("org/name")),
        ("org/name@v1:tiny-F16.gguf", HubModel("org/name", "v1", "tiny-F16.gguf")),
        ("org/name.gguf", None),
        ("org/name:", None),
        ("org/name:a/b", None),
        ("hf.co/org", HubModel("hf.co/org")),
    ],
)
def test_what_a_name_with_a_quantization_is(text, expected):
    assert HubModel.parse(text) == expected


def test_the_default_is_said_and_only_its_file_is_fetched(hub, caplog):
    hub.add("org/tiny-GGUF", MANY | {"README.md": b""})
    with caplog.at_level(logging.INFO, "gptrs"):
        source = find_model("hf.co/org/tiny-GGUF")
    assert (source.name, source.model_type) == ("org/tiny-GGUF", "llama")
    assert hub.fetched() == {"tiny-Q4_0.gguf"}
    assert any(line.startswith("taking Q4_0 (") for line in caplog.messages)
    hub.requests.clear()
    source = find_model("org/tiny-GGUF:q8_0")
    assert (source.name, source.path.name) == ("org/tiny-GGUF:q8_0", "tiny-Q8_0.gguf")
    assert source.weights.names()
    assert hub.fetched() == {"tiny-Q8_0.gguf"}


def test_a_download_that_broke_is_continued(hub, monkeypatch):
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)  # what is kept are whole ones
    hub.add("org/tiny-GGUF", {"tiny-Q4_0.gguf": MODEL})
    hub.breaking.add("tiny-Q4_0.gguf")
    source = find_model("org/tiny-GGUF:Q4_0")
    assert source.path.read_bytes() == MODEL
    assert hub.continued == ["tiny-Q4_0.gguf"]


def test_files_that_are_there_need_no_connection(hub, monkeypatch):
    hub.add("org/tiny-GGUF", MANY)
    find_model("org/tiny-GGUF:Q8_0")
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert find_model("org/tiny-GGUF:Q8_0").path.name == "tiny-Q8_0.gguf"
    assert find_model("org/tiny-GGUF").path.name == "tiny-Q8_0.gguf"
    with pytest.raises(ModelError, match=r"`org/tiny-GGUF` has no `Q4_0`.*`:Q8_0` \("):
        find_model("org/tiny-GGUF:Q4_0")
    assert hub.requests == []


def test_all_parts_of_a_split_file_are_fetched(hub):
    sizes = {"block_count": 2, "context_length": 64, "embedding_length": 32}
    sizes |= {"feed_forward_length": 32, "attention.head_count": 2}
    settings: dict[str, tiny_gguf.Value] = {f"llama.{name}": n for name, n in sizes.items()}
    settings["llama.attention.layer_norm_rms_epsilon"] = 1e-6
    whole = {"general.architecture": "llama", "split.count": 2, **settings}
    table = {"token_embd.weight": random_blocks("F16", (40, 32), 0)}
    hub.add(
        "org/split-GGUF",
        {
            "Q8_0/m-Q8_0-00001-of-00002.gguf": gguf({**whole, "split.no": 0}, table),
            "Q8_0/m-Q8_0-00002-of-00002.gguf": gguf({"split.count": 2, "split.no": 1}, {}),
            "m-Q4_0-00001-of-00002.gguf": MODEL,
        },
    )
    source = find_model("org/split-GGUF")
    assert source.path.name == "m-Q8_0-00001-of-00002.gguf"
    assert set(source.weights.names()) == {"model.embed_tokens.weight"}
    assert len(hub.fetched()) == 2


def test_safetensors_come_first_unless_a_quantization_is_named(hub):
    hub.add(
        "org/both",
        {"config.json": b"{}", "model.safetensors": b"no", "tiny-Q4_0.gguf": MODEL},
    )
    assert find_model("org/both:Q4_0").path.suffix == ".gguf"
    assert hub.fetched() == {"config.json", "tiny-Q4_0.gguf"}
    assert find_model("org/both").path.suffix == ""


def test_no_gguf_files_at_all(hub):
    hub.add("org/empty", {"README.md": b""})
    with pytest.raises(ModelError, match="has no files of a model; gptrs reads safetensors"):
        find_model("org/empty")
    hub.add("org/plain", {"config.json": b"{}"})
    with pytest.raises(ModelError, match="`org/plain` has no GGUF files, and `Q4_0` names"):
        find_model("org/plain:Q4_0")


def sized(*names: str, unit: int = 1000) -> list[gguf_choice.GgufVariant]:
    return gguf_choice.variants({f"{name}.gguf": unit * (n + 1) for n, name in enumerate(names)})


@pytest.mark.parametrize(
    ("names", "tag", "stem"),
    [
        (("m-Q8_0", "m-Q4_K_M", "m-Q5_K_M"), None, "m-Q4_K_M"),
        (("m.q5_k_m", "m.q8_0"), None, "m.q5_k_m"),
        (("m-IQ2_XS", "m-BF16"), None, "m-BF16"),
        (("whatever",), None, "whatever"),
        (("m-Q4_K_M", "m-UD-Q4_K_XL"), "q4_k_xl", "m-UD-Q4_K_XL"),
        (("m-Q4_K_M", "m-UD-Q4_K_M"), "Q4_K_M", "m-Q4_K_M"),
        (("base-Q8_0", "chat-Q8_0"), "chat-q8_0", "chat-Q8_0"),
        (("BF16/m-00001-of-00001", "Q8_0/m"), "bf16", "BF16/m"),
        (("Model-3-8B-Q4_0_4_4", "Model-3-8B-Q4_0"), "Q4_0", "Model-3-8B-Q4_0"),
    ],
)
def test_which_file_is_taken(names, tag, stem):
    assert gguf_choice.chosen(sized(*names), tag, "it").stem == stem


@pytest.mark.parametrize(
    ("names", "tag", "problem"),
    [
        (("m-Q8_0", "m-Q4_K_M"), "Q4_K", "it has no `Q4_K`; did you mean `Q4_K_M`?"),
        (("base-Q8_0", "chat-Q8_0"), "Q8_0", "it has 2 models `Q8_0`"),
        (("base-Q8_0", "chat-Q8_0"), None, "none is named as a usual quantization"),
        (("m-IQ1_S", "m-IQ2_XS"), None, "add one of `:IQ1_S` (1 kB), `:IQ2_XS` (2 kB)"),
    ],
)
def test_a_name_that_means_no_file(names, tag, problem):
    with pytest.raises(ModelError) as caught:
        gguf_choice.chosen(sized(*names), tag, "it")
    assert problem in str(caught.value)


@pytest.mark.parametrize(("memory", "stem"), [(10_000, "m-Q8_0"), (3000, "m-Q6_K"), (9, "m-Q2_K")])
def test_the_default_fits_the_memory(monkeypatch, memory, stem):
    monkeypatch.setattr(gguf_choice, "memory_bytes", lambda: memory)
    files = {"m-IQ2_M.gguf": 500, "m-Q2_K.gguf": 600, "m-Q6_K.gguf": 2000, "m-Q8_0.gguf": 1500}
    files["m-F16.gguf"] = 9000
    # Where nothing fits, it is the smallest of those that gptrs reads.
    files["m-Q6_K.gguf"] = 9000 if stem == "m-Q8_0" else 2000
    assert gguf_choice.chosen(gguf_choice.variants(files), None, "it").stem == stem


def test_a_folder_with_one_gguf_model(tmp_path):
    (tmp_path / "m-Q8_0.gguf").write_bytes(MODEL)
    assert find_model(tmp_path).model_type == "llama"
    (tmp_path / "m-Q4_0.gguf").write_bytes(MODEL)
    with pytest.raises(ModelError, match=r"has 2 GGUF models; name one of `[^ ]+, `[^ ]+`$"):
        find_model(tmp_path)
    for number in range(4):
        (tmp_path / f"more{number}.gguf").write_bytes(MODEL)
    with pytest.raises(
        ModelError, match=r"has 6 GGUF models; name one of (`[^ ]+ ?){4}and 2 more$"
    ):
        find_model(tmp_path)
