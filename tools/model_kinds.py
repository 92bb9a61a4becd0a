"""Writes `docs/kinds.md`: which of the most used kinds of models run, and why others do not.

python tools/model_kinds.py
"""

from __future__ import annotations

from pathlib import Path

from gptrs.api import ModelError, ModelPlugin
from gptrs.plugins.manager import manager

PAGE = Path(__file__).parents[1] / "docs" / "kinds.md"
POPULAR = {
    "Encoders of text": (
        *("bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "electra", "albert"),
        *("modernbert", "nomic_bert", "gte", "eurobert"),
        *("jina_embeddings_v3", "esm", "ernie", "deberta", "deberta-v2", "roberta-prelayernorm"),
    ),
    "Language models": (
        *("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
        *("phi", "phi3", "smollm3", "olmo2", "olmo3", "granite", "starcoder2", "stablelm"),
        *("cohere", "cohere2", "exaone4", "glm4", "seed_oss", "internlm3", "arcee", "helium"),
        *("ernie4_5", "hunyuan_v1_dense", "gpt_neox", "gpt_neo", "opt", "bloom", "falcon"),
        *("gptj", "codegen", "xglm", "biogpt"),
        *("lfm2", "qwen3_next", "mamba", "mamba2", "deepseek_v3"),
        *("apertus", "hyperclovax"),
    ),
    "Mixtures of experts": (
        *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "glm4_moe", "glm4_moe_lite"),
        *("dots1", "ernie4_5_moe", "hunyuan_v1_moe", "granitemoe", "granitemoeshared"),
        *("granitemoehybrid", "phimoe", "lfm2_moe", "minimax_m2"),
    ),
    "Images": (
        *("resnet", "mobilenet_v1", "mobilenet_v2", "mobilenet_v3", "convnext", "convnextv2"),
        *("efficientnet", "regnet", "bit", "swin", "vit", "deit", "dinov2"),
        *("dinov2_with_registers", "dinov3_vit", "beit", "data2vec-vision", "clip", "siglip"),
    ),
    "Texts about texts, speech, pictures in texts": (
        *("t5", "bart", "marian", "whisper", "moonshine", "wav2vec2", "idefics3"),
    ),
    "The texts of models that also see or hear": (
        *("gemma3", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "llava_next"),
        *("llava_onevision", "internvl", "idefics2", "lfm2_vl", "aya_vision", "cohere2_vision"),
        *("deepseek_vl", "qwen2_audio", "voxtral", "qwen3_5", "qwen3_5_moe", "qwen3_vl_moe"),
    ),
}
"""Kinds that people download most, by what they are for."""
HEAD = """# Kinds of models

The kinds of models that are used most, by the `model_type` of config.json, and what gptrs does
with each. `gptrs list models --all` lists every kind that is installed, and those that are known
and refused. What it takes to add one is in [Add a kind of model](recipes/add_a_model_kind.md).
Of the models under the last heading the language model is loaded: they read texts, no images and
no sounds, and a note says so.

This page is written by tools/model_kinds.py.
"""


def refusal(kind: str) -> str | None:
    """Return the sentence with which a kind is refused, None for one that runs."""
    try:
        manager().model_plugin(kind)
    except ModelError as error:
        return f"{error.message}; {error.hint}"
    return None


def page_text() -> str:
    """Return the whole page."""
    installed = {record.name for record in manager().records(ModelPlugin)}
    nearest = manager().relatives()
    runs = sum(kind in installed for kinds in POPULAR.values() for kind in kinds)
    lines = [HEAD, f"Of {sum(map(len, POPULAR.values()))} kinds {runs} run."]
    for title, kinds in POPULAR.items():
        lines += ["", f"## {title}", "", "| `model_type` | |", "|---|---|"]
        for kind in kinds:
            near = f"; nearest is `{nearest[kind]}`" if kind in nearest else ""
            lines.append(f"| `{kind}` | {'runs' if kind in installed else f'refused{near}'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
