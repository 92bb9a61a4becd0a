"""Kinds of transformers that gptrs lacks, under the one of nearest architecture that it has."""

from __future__ import annotations

BERT = (
    *("bert-generation", "big_bird", "canine", "convbert"),
    *("flaubert", "fnet", "funnel", "ibert"),
    *("layoutlm", "layoutlmv3", "longformer", "luke", "megatron-bert", "mobilebert"),
    *("nystromformer", "rembert", "roformer"),
    *("splinter", "squeezebert", "xlm", "xlm-roberta-xl", "xlnet", "xmod", "yoso"),
)
"""Encoders of text."""
LLAMA = (
    *("afmoe", "aria_text", "baichuan", "bitnet", "chatglm", "dbrx", "deepseek"),
    *("diffllama", "doge", "exaone", "flex_olmo"),
    *("gemma3n", "gemma3n_text", "gemma4", "internlm2"),
    *("jais", "jetmoe", "llama4", "llama4_text", "minicpm", "minicpm3", "minimax"),
    *(
        "nemotron_h",
        "qwen",
    ),
    *("xverse", "yi", "zamba2"),
)
"""Language models with rotary positions and gated layers, or the text part of others."""
GPT2 = ("ctrl", "imagegpt", "openai-gpt")
"""Language models with learned positions."""
RESNET = ("van",)
MOBILENET_V2 = ("mobilevit", "mobilevitv2")
VIT = ("hiera", "ijepa", "swinv2", "vit_mae", "vit_msn")
"""Vision transformers."""
WAV2VEC2 = (*("data2vec-audio", "sew", "sew-d", "wav2vec2-bert", "wav2vec2-conformer", "wavlm"),)
"""Encoders of raw sound, or of its features, with a head of CTC."""
